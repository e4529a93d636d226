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

constexpr uint64_t LEAF = 0x1234, JOURNAL = 100;

union Block {
    uint8_t bytes[LAY_BLOCK_SIZE];
    lay_head head;
    lay_node node;
    lay_journal header;
    lay_journal_desc desc;
    lay_journal_revoke revoke;
    lay_journal_commit commit;
};

/* The blocks of section 12 by their addresses; bytes that are not printed are zero. */
class Example : public ::testing::Test
{
  protected:
    Example()
    {
        for (uint8_t i = 0; i < 16; i++)
            geo.uuid[i] = geo.hash_seed[i] = i;
        geo.blocks = 65536;
        geo.bitmap_start = 1;
        geo.bitmap_blocks = 3;
        geo.journal_start = JOURNAL;
        geo.journal_blocks = 256;
        geo.copies[0] = 32256;
        geo.copies[1] = 65535;
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
        if (std::sscanf(line.c_str(), " block %u, %15[a-z] %n", &value, word, &end) == 2) {
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
    /* Blocks of the journal are printed without the UUID. */
    Block &of_journal(uint64_t addr)
    {
        std::memcpy(blocks[addr].head.uuid, geo.uuid, sizeof(geo.uuid));
        return blocks[addr];
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
}

TEST_F(Example, OfAJournalIsAValidTransaction)
{
    const Block &header = of_journal(JOURNAL), &desc = of_journal(JOURNAL + 1),
                &revoke = of_journal(JOURNAL + 3), &commit = of_journal(JOURNAL + 4);
    ASSERT_EQ(lay_check_journal(&geo, &header.header, &why), 0) << why;
    EXPECT_EQ(lay_get64(header.header.tail_tid), 7u);
    EXPECT_EQ(lay_get64(header.header.tail_pos), 1u);
    EXPECT_EQ(lay_get64(header.header.super_tid), 5u);
    ASSERT_EQ(lay_check_journal_desc(&geo, &desc.desc, JOURNAL + 1, 7, &why), 0) << why;
    ASSERT_EQ(
        lay_check_journal_image(&geo, &desc.desc.tags[0], &blocks[LEAF], JOURNAL + 2, 7, &why), 0)
        << why;
    ASSERT_EQ(lay_check_journal_revoke(&geo, &revoke.revoke, JOURNAL + 3, 7, &why), 0) << why;
    EXPECT_EQ(lay_get64(revoke.revoke.blocks[0]), 0x2000u);
    ASSERT_EQ(lay_check_journal_commit(&geo, &commit.commit, JOURNAL + 4, 7, &why), 0) << why;
    EXPECT_EQ(lay_get32(commit.commit.crc),
              lay_journal_chain(lay_journal_chain(0, &desc), &revoke));
    EXPECT_EQ(lay_get32(commit.commit.blocks), 4u);
    EXPECT_EQ(lay_time_sec(commit.commit.time), 1700000000);
}

} // namespace
