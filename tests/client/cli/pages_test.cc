/* SPDX-License-Identifier: BSD-2-Clause */
// Identify data and registers in words: what an honest controller says is shown as it is, and what
// a lying one says never harms.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "client/cli/check/cli_check.h"
#include "client/cli/common/pages.h"
#include "tests/client/cli/cli_report.h"

namespace
{

// Bytes at their offsets in the specification (Base 2.0, figure 275; NVM 1.0, figure 97).
struct alignas(8) Page {
    std::array<uint8_t, 4096> bytes{};

    template <typename T> Page &put(size_t offset, T value)
    {
        memcpy(&bytes[offset], &value, sizeof(value));
        return *this;
    }
    Page &put_text(size_t offset, size_t len, const std::string &text)
    {
        memset(&bytes[offset], ' ', len);
        memcpy(&bytes[offset], text.data(), std::min(len, text.size()));
        return *this;
    }
};

Page honest_ctrlr()
{
    Page p;
    p.put<uint16_t>(0, 0x144d).put_text(4, 20, "S123").put_text(24, 40, "A drive");
    p.put_text(64, 8, "FW1").put<uint8_t>(77, 5).put<uint32_t>(80, 0x20000);
    p.put<uint8_t>(512, 0x66).put<uint8_t>(513, 0x44).put<uint32_t>(516, 16);
    p.put<uint16_t>(520, 0x0c).put<uint8_t>(525, 1);
    return p;
}

Page honest_ns()
{
    Page p;
    p.put<uint64_t>(0, 1000000).put<uint64_t>(8, 1000000).put<uint8_t>(25, 1).put<uint8_t>(26, 1);
    p.put<uint8_t>(130, 9).put<uint8_t>(134, 12);
    return p;
}

Json ctrlr_json(const Page &page)
{
    uint32_t nn;
    return document([&](struct cli_out *o) { cli_show_ctrlr(o, page.bytes.data(), &nn); });
}

Json ns_json(const Page &page)
{
    return document([&](struct cli_out *o) { cli_show_ns(o, page.bytes.data(), 1, 0); });
}

TEST(ControllerPage, IsShownAsItIs)
{
    Json root = ctrlr_json(honest_ctrlr());
    EXPECT_EQ(number(root.get(), "vid"), 0x144du);
    EXPECT_EQ(text(root.get(), "sn"), "S123");
    EXPECT_EQ(text(root.get(), "mn"), "A drive");
    EXPECT_EQ(text(root.get(), "fr"), "FW1");
    EXPECT_EQ(number(root.get(), "max_transfer"), 131072u);
    EXPECT_TRUE(flag(root.get(), "volatile_cache"));
    EXPECT_TRUE(flag(root.get(), "write_zeroes"));
    EXPECT_FALSE(flag(root.get(), "compare"));
    EXPECT_TRUE(flag(root.get(), "usable"));
    EXPECT_EQ(text(root.get(), "problem"), "none");
}

TEST(ControllerPage, NamesWhatCannotBe)
{
    Json root = ctrlr_json(honest_ctrlr().put<uint8_t>(512, 0x77));
    EXPECT_FALSE(flag(root.get(), "usable"));
    EXPECT_NE(text(root.get(), "problem").find("SQES"), std::string::npos);
}

TEST(ControllerPage, TextAndJsonHaveTheSameFields)
{
    Page page = honest_ctrlr();
    Json root = ctrlr_json(page);
    uint32_t nn;
    std::string all =
        printed(false, [&](struct cli_out *o) { cli_show_ctrlr(o, page.bytes.data(), &nn); });
    EXPECT_EQ(std::count(all.begin(), all.end(), '\n'),
              json_object_object_length(root.get()) - 1 /* schema_version */)
        << all;
}

TEST(NamespacePage, IsShownAsItIs)
{
    Json root = ns_json(honest_ns());
    EXPECT_EQ(number(root.get(), "bytes"), 4096000000u);
    EXPECT_EQ(number(root.get(), "lba_size"), 4096u);
    EXPECT_TRUE(flag(root.get(), "usable"));
    struct json_object *formats = member(root.get(), "lba_formats");
    ASSERT_EQ(json_object_array_length(formats), 2u);
    EXPECT_EQ(number(json_object_array_get_idx(formats, 0), "lba_size"), 512u);
    EXPECT_TRUE(flag(json_object_array_get_idx(formats, 1), "in_use"));
}

TEST(NamespacePage, FormatsTheDriverDoesNotTakeAreNamed)
{
    Json metadata = ns_json(honest_ns().put<uint16_t>(132, 8));
    EXPECT_NE(text(metadata.get(), "problem").find("metadata"), std::string::npos);
    EXPECT_EQ(number(metadata.get(), "bytes"), 4096000000u);
    Json large = ns_json(honest_ns().put<uint8_t>(134, 14));
    EXPECT_NE(text(large.get(), "problem").find("neither 512 nor 4096"), std::string::npos);
}

TEST(NamespacePage, ASizeThatOverflowsIsNotBelieved)
{
    Json root = ns_json(honest_ns().put<uint64_t>(0, UINT64_MAX));
    EXPECT_EQ(number(root.get(), "bytes"), 0u);
    EXPECT_EQ(number(root.get(), "nsze"), UINT64_MAX);
    EXPECT_FALSE(flag(root.get(), "usable"));
}

TEST(NamespacePage, NoFormatIsReadPastTheTable)
{
    Json root = ns_json(honest_ns().put<uint8_t>(25, 255).put<uint8_t>(26, 0x6f));
    EXPECT_EQ(json_object_array_length(member(root.get(), "lba_formats")), 64u);
    EXPECT_FALSE(flag(root.get(), "usable"));
}

// Whatever a page holds, it is a document, and a check comes to a verdict.
TEST(AnyPage, IsADocumentInBothForms)
{
    std::mt19937_64 rng(4);
    for (int i = 0; i < 300; i++) {
        Page page;
        for (size_t at = 0; at < page.bytes.size(); at += 8)
            page.put<uint64_t>(at, i == 0 ? UINT64_MAX : rng());
        EXPECT_TRUE(ctrlr_json(page));
        EXPECT_TRUE(ns_json(page));
        std::string all =
            printed(false, [&](struct cli_out *o) { cli_show_ns(o, page.bytes.data(), 1, 0); });
        for (char c : all)
            EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << static_cast<int>(c);
        struct check c = {};
        check_ctrlr_page(&c, page.bytes.data());
        check_ns_page(&c, page.bytes.data(), 1, 0);
        check_cap(&c, rng());
        EXPECT_GE(c.n, 3u);
        check_free(&c);
    }
}

struct Capability {
    const char *name;
    uint64_t cap;
    enum check_level worst;
};

using CapabilityTest = ::testing::TestWithParam<Capability>;

TEST_P(CapabilityTest, HasItsVerdict)
{
    struct check c = {};
    check_cap(&c, GetParam().cap);
    EXPECT_EQ(c.worst, GetParam().worst);
    check_free(&c);
}

constexpr uint64_t kNvm = 1ull << 37, kDeep = 1023;

INSTANTIATE_TEST_SUITE_P(Cap, CapabilityTest,
                         ::testing::Values(Capability{"good", kNvm | kDeep, CHECK_OK},
                                           Capability{"shallow", kNvm | 7, CHECK_WARN},
                                           Capability{"no_nvm_set", kDeep, CHECK_FAIL},
                                           Capability{"big_pages", kNvm | kDeep | 1ull << 48,
                                                      CHECK_FAIL},
                                           Capability{"gone", UINT64_MAX, CHECK_FAIL}),
                         [](const auto &info) { return info.param.name; });

TEST(NamespaceCheck, NamesTheFormatsThatWouldDo)
{
    struct check c = {};
    Page page = honest_ns().put<uint8_t>(26, 0).put<uint16_t>(128, 8); // format 0 has metadata
    check_ns_page(&c, page.bytes.data(), 1, 0);
    ASSERT_EQ(c.worst, CHECK_FAIL);
    EXPECT_NE(std::string(c.all[0].advice).find("4096 (format 1)"), std::string::npos)
        << c.all[0].advice;
    check_free(&c);
}

TEST(Registers, AreDecodedBitByBit)
{
    uint64_t values[CLI_REGS] = {};
    values[0] = 1ull << 57 | 1ull << 37 | 15ull << 24 | 1 << 16 | 2047; // CAP
    values[1] = 0x00010400;                                             // VS
    values[4] = 0x1;                                                    // CSTS
    Json root = document([&](struct cli_out *o) { cli_show_regs(o, values); });
    struct json_object *cap = member(root.get(), "cap");
    EXPECT_EQ(number(cap, "value"), values[0]);
    EXPECT_EQ(number(cap, "mqes"), 2047u);
    EXPECT_EQ(number(cap, "cqr"), 1u);
    EXPECT_EQ(number(cap, "to"), 15u);
    EXPECT_EQ(number(cap, "cmbs"), 1u);
    EXPECT_EQ(number(member(root.get(), "vs"), "minor"), 4u);
    EXPECT_EQ(number(member(root.get(), "csts"), "rdy"), 1u);
}

} // namespace
