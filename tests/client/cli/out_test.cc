/* SPDX-License-Identifier: BSD-2-Clause */
// Text and JSON of the tools: the same fields, and nothing of a device's text that a terminal acts
// on.
#include <gtest/gtest.h>

#include <algorithm>

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

} // namespace
