/* SPDX-License-Identifier: BSD-2-Clause */
/* The bytes of the examples in FORMAT.md against the checks. */
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "layout/layout.h"

namespace
{

constexpr uint64_t LEAF = LAY_ADDR_CHUNK(9, 0x34);

union Block {
    uint8_t bytes[LAY_BLOCK_SIZE];
    lay_head head;
    lay_node node;
    lay_log_descriptor desc;
    lay_log_commit commit;
};

/* The leaf of section 12 by its address and the records by their positions; bytes that are not
 * printed are zero. */
class Example : public ::testing::Test
{
  protected:
    Example()
    {
        for (uint8_t i = 0; i < 16; i++)
            geo.uuid[i] = geo.hash_seed[i] = i;
        geo.blocks = 65536;
        geo.supers[0] = 2;
        geo.supers[1] = 32768;
        geo.log_id = 0x1817161514131211;
        geo.log_start = 100;
        geo.log_blocks = 256;
        read();
    }
    void read()
    {
        std::ifstream in(FORMAT_MD);
        std::string line;
        bool here = false;
        while (std::getline(in, line)) {
            here = here || line.rfind("## 12.", 0) == 0;
            if (here && line.rfind("    ", 0) == 0)
                take(line);
        }
    }
    void take(std::string line)
    {
        unsigned value;
        int end = 0;
        char word[16];
        if (std::sscanf(line.c_str(), " position %u, %15[a-z] %n", &value, word, &end) == 2) {
            at = value;
            offset = 0;
        } else if (std::sscanf(line.c_str(), " %15[0-9a-f] %n", word, &end) == 1 &&
                   std::strlen(word) == 4) {
            offset = std::stoul(word, nullptr, 16);
        } else {
            end = 0;
        }
        const char *text = line.c_str() + end;
        for (int n; std::sscanf(text, " %2x%n", &value, &n) == 1; text += n)
            blocks[at].bytes[offset++] = static_cast<uint8_t>(value);
    }
    /* Records are printed without the UUID. */
    Block &record(uint64_t pos)
    {
        std::memcpy(blocks[pos].head.uuid, geo.uuid, sizeof(geo.uuid));
        return blocks[pos];
    }

    lay_geometry geo = {};
    std::map<uint64_t, Block> blocks;
    uint64_t at = LEAF, offset = 0;
    const char *why = "";
};

TEST_F(Example, OfALeafIsValid)
{
    const lay_node &leaf = blocks[LEAF].node;
    ASSERT_EQ(lay_check_node(&geo, &leaf, LAY_MAGIC_DIR, LEAF, 1, 0, 0, UINT64_MAX, &why), 0)
        << why;
    const lay_dirent *d = lay_dirent_next(&leaf, nullptr);
    ASSERT_NE(d, nullptr);
    EXPECT_EQ(std::string(reinterpret_cast<const char *>(d->name), d->name_len), "hello.txt");
    EXPECT_EQ(lay_get64(d->ino), 2u);
    EXPECT_EQ(lay_get64(d->key), lay_name_key(geo.hash_seed, "hello.txt", 9));
}

TEST_F(Example, OfALogIsAWholeTransaction)
{
    const Block &desc = record(5), &commit = record(7);
    ASSERT_EQ(lay_check_descriptor(&geo, &desc.desc, 5, 7, &why), 0) << why;
    ASSERT_EQ(lay_check_image(&geo, &desc.desc.tags[0], &blocks[LEAF], 7, &why), 0) << why;
    EXPECT_EQ(lay_get32(desc.desc.tags[0].age), 0x64d89ebeu);
    ASSERT_EQ(lay_check_commit(&geo, &commit.commit, 7, 7, &why), 0) << why;
    EXPECT_EQ(lay_get32(commit.commit.crc), lay_log_chain(0, &desc));
    EXPECT_EQ(lay_get32(commit.commit.blocks), 3u);
    EXPECT_EQ(lay_get64(commit.commit.tail_tid), 6u);
    EXPECT_EQ(lay_get64(commit.commit.tail_pos), 3u);
    EXPECT_EQ(lay_get32(commit.commit.super_age), 0x34333231u);
    EXPECT_EQ(lay_time_sec(commit.commit.time), 1700000000);
    for (const lay_incarnation *i : {&desc.desc.incarnation, &commit.commit.incarnation})
        EXPECT_EQ(lay_get64(i->counter), 3u);
}

} // namespace
