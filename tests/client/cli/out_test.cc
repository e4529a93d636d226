/* SPDX-License-Identifier: BSD-2-Clause */
// Text and JSON of the tools: the same fields, and nothing of a device's text that a terminal acts
// on.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "client/cli/check/cli_check.h"
#include "client/cli/common/pages.h"
#include "support/bytes_text.h"
#include "tests/client/cli/cli_report.h"

namespace
{

void describe_group(struct cli_out *o)
{
    cli_out_string(o, "name", "Name:", "a");
    cli_out_list(o, "parts");
    for (unsigned i = 0; i < 2; i++) {
        cli_out_open(o, nullptr, "Part");
        cli_out_number(o, "index", "Index:", i);
        cli_out_flag(o, "even", "Even:", i == 0);
        cli_out_hex(o, "address", "Address:", 0xab, 8);
        cli_out_close(o);
    }
    cli_out_list_end(o);
    cli_out_number(o, "largest", "Largest:", UINT64_MAX);
    cli_out_none(o, "missing", "Missing:");
}

TEST(Out, JsonHasTheSchemaTheGroupsAndWholeNumbers)
{
    Json root = document(describe_group);
    EXPECT_EQ(number(root.get(), "schema_version"), 1u);
    EXPECT_EQ(text(root.get(), "name"), "a");
    EXPECT_EQ(number(root.get(), "largest"), UINT64_MAX);
    struct json_object *missing;
    EXPECT_TRUE(json_object_object_get_ex(root.get(), "missing", &missing));
    EXPECT_EQ(missing, nullptr);
    struct json_object *parts = member(root.get(), "parts");
    ASSERT_EQ(json_object_array_length(parts), 2u);
    struct json_object *second = json_object_array_get_idx(parts, 1);
    EXPECT_EQ(number(second, "index"), 1u);
    EXPECT_FALSE(flag(second, "even"));
    EXPECT_EQ(number(second, "address"), 0xabu);
}

TEST(Out, TextHasALineForEachFieldAndTitle)
{
    std::string all = printed(false, describe_group);
    EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 1 + 2 * 4 + 2) << all;
    EXPECT_NE(all.find("none\n"), std::string::npos) << all;
    EXPECT_NE(all.find("Address:"), std::string::npos);
    EXPECT_NE(all.find("0x000000ab\n"), std::string::npos) << all;
    EXPECT_NE(all.find("18446744073709551615\n"), std::string::npos) << all;
}

TEST(Out, BytesHaveAUnitInTextAndNoneInJson)
{
    auto sizes = [](struct cli_out *o) {
        cli_out_bytes(o, "size", "Size:", 104857600);
        struct gpunvme_ioc_stats stats = {};
        stats.gpu_read_bytes = 999;
        stats.gpu_written_bytes = 1000;
        stats.gpu_transfers = 4096;
        cli_out_counters(o, &stats);
    };
    std::string all = printed(false, sizes);
    for (auto line :
         {" 104857600 bytes (104.86 MB)\n", " 999 bytes\n", " 1000 bytes (1.00 kB)\n", " 4096\n"})
        EXPECT_NE(all.find(line), std::string::npos) << all;
    Json root = document(sizes);
    EXPECT_EQ(number(root.get(), "size"), 104857600u);
    EXPECT_EQ(number(root.get(), "gpu_written_bytes"), 1000u);
}

TEST(Out, ControlCharactersDoNotReachTheTerminal)
{
    std::string all =
        printed(false, [](struct cli_out *o) { cli_out_string(o, "a", "A:", "\033[2Jx\ny\x7f"); });
    EXPECT_NE(all.find("?[2Jx?y?\n"), std::string::npos) << all;
}

const struct cli_column kColumns[] = {
    {"device", "DEVICE", CLI_CELL_TEXT},
    {"bytes", "SIZE", CLI_CELL_BYTES},
    {"lba_size", "LBA", CLI_CELL_NUMBER},
    {"gb_per_s", "GB/s", CLI_CELL_REAL},
};

constexpr size_t kCells = 4;

class Table : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        table_.columns = kColumns;
        table_.n_columns = kCells;
        struct json_object *first[kCells] = {
            cli_text("/dev/nvme0n1"), json_object_new_uint64(1920383410176),
            json_object_new_uint64(512), json_object_new_double(0.0625)};
        struct json_object *second[kCells] = {cli_text("vfio:0000:c1:00.0")};
        cli_table_add(&table_, first);
        cli_table_add(&table_, second);
    }
    void TearDown() override { cli_table_free(&table_); }
    struct cli_table table_ = {};
};

TEST_F(Table, IsAListOfObjectsWithNullForWhatIsNotKnown)
{
    Json root = document([&](struct cli_out *o) { cli_table_print(&table_, o, "drives"); });
    struct json_object *drives = member(root.get(), "drives");
    ASSERT_EQ(json_object_array_length(drives), 2u);
    EXPECT_EQ(number(json_object_array_get_idx(drives, 0), "bytes"), 1920383410176u);
    EXPECT_EQ(json_object_get_double(member(json_object_array_get_idx(drives, 0), "gb_per_s")),
              0.0625);
    struct json_object *second = json_object_array_get_idx(drives, 1);
    EXPECT_EQ(text(second, "device"), "vfio:0000:c1:00.0");
    EXPECT_EQ(member(second, "bytes"), nullptr);
}

TEST_F(Table, AlignsItsColumns)
{
    EXPECT_EQ(printed(false, [&](struct cli_out *o) { cli_table_print(&table_, o, "drives"); }),
              "DEVICE                SIZE  LBA   GB/s\n"
              "/dev/nvme0n1       1.92 TB  512  0.062\n"
              "vfio:0000:c1:00.0        -    -      -\n");
}

TEST_F(Table, SortsNumbersInNamesAsNumbers)
{
    struct json_object *tenth[kCells] = {cli_text("/dev/nvme10n1")}, *none[kCells] = {};
    cli_table_add(&table_, none);
    cli_table_add(&table_, tenth);
    cli_table_sort(&table_);
    EXPECT_STREQ(json_object_get_string(table_.cells[0]), "/dev/nvme0n1");
    EXPECT_STREQ(json_object_get_string(table_.cells[kCells]), "/dev/nvme10n1");
    EXPECT_STREQ(json_object_get_string(table_.cells[2 * kCells]), "vfio:0000:c1:00.0");
    EXPECT_EQ(table_.cells[3 * kCells], nullptr);
}

TEST(FormatBytes, HasDecimalUnits)
{
    char text[32];
    bytes_short(999, text, sizeof(text));
    EXPECT_STREQ(text, "999 B");
    bytes_short(512110190592, text, sizeof(text));
    EXPECT_STREQ(text, "512.11 GB");
    bytes_short(UINT64_MAX, text, sizeof(text));
    EXPECT_STREQ(text, "18.45 EB");
}

// --- Identify data and registers in words --------------------------------------------------------

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

TEST(ControllerPage, ReportsImpossibleValues)
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

TEST(NamespacePage, FormatsThatTheDriverRefusesAreNamed)
{
    Json metadata = ns_json(honest_ns().put<uint16_t>(132, 8));
    EXPECT_NE(text(metadata.get(), "problem").find("metadata"), std::string::npos);
    EXPECT_EQ(number(metadata.get(), "bytes"), 4096000000u);
    Json large = ns_json(honest_ns().put<uint8_t>(134, 14));
    EXPECT_NE(text(large.get(), "problem").find("neither 512 nor 4096"), std::string::npos);
}

TEST(NamespacePage, ASizeThatOverflowsIsShownAsZeroBytes)
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

TEST(NamespaceCheck, NamesTheSupportedFormats)
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
