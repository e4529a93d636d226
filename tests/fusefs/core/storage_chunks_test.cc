/* SPDX-License-Identifier: BSD-2-Clause */
// Metadata blocks are taken from chunks, which are mapped and unmapped as needed (FORMAT.md 5.7).
#include <string.h>

#include <map>

#include "tests/fusefs/core/space_probe.h"
#include "tests/fusefs/core/storage_fixture.h"

namespace
{

constexpr uint64_t ROOM = LAY_SEGMENT_BLOCKS - 1; // free blocks of an empty chunk of one segment
constexpr uint64_t OWNER = 3;                     // of blocks that belong to nothing

class Chunks : public StorageTest
{
  protected:
    void SetUp() override
    {
        make(64 << 20, 512);
        ASSERT_EQ(mount(), 0) << why;
        read_all_entries();
    }
    // Takes and gives back one block of each segment, so that the free blocks of all are known.
    void read_all_entries()
    {
        for (uint64_t segment = 0; space_segment(fs, segment) != 0; segment++) {
            std::vector<uint64_t> one;
            ASSERT_EQ(take(1, LAY_ADDR_CHUNK(segment, 0), &one), 0);
            ASSERT_EQ(drop(&one), 0);
        }
    }
    // Adds n metadata blocks to the list, a few in each handle.
    int take(uint64_t n, uint64_t goal, std::vector<uint64_t> *blocks)
    {
        int err = 0;
        while (n > 0 && !err) {
            err = handle([&](ffs_tx *tx) {
                uint64_t addr, len;
                int e = ffs_alloc_meta_run(tx, goal, std::min<uint64_t>(n, 16), &addr, &len);
                for (uint64_t i = 0; i < len && !e; i++) {
                    ffs_buf *buf;
                    e = ffs_tx_new(tx, addr + i, LAY_MAGIC_XATTR, OWNER, &buf);
                    if (!e)
                        ffs_buf_put(buf);
                }
                for (uint64_t i = 0; i < len && !e; i++, n--)
                    blocks->push_back(addr + i);
                return e;
            });
        }
        return err;
    }
    // Frees them from the last one on.
    int drop(std::vector<uint64_t> *blocks, size_t left = 0)
    {
        int err = 0;
        while (blocks->size() > left && !err) {
            err = handle([&](ffs_tx *tx) {
                int e = 0;
                for (int i = 0; i < 16 && blocks->size() > left && !e; i++) {
                    e = ffs_free_meta(tx, blocks->back());
                    blocks->pop_back();
                }
                return e;
            });
        }
        return err;
    }
    int checkpoint()
    {
        int err = commit_freed();
        return err ? err : ffs_checkpoint_now(fs);
    }
};

TEST_F(Chunks, ABlockIsTakenNearItsGoal)
{
    std::vector<uint64_t> first, next, other;
    ASSERT_EQ(take(1, 0, &first), 0);
    ASSERT_EQ(take(4, first[0], &next), 0);
    for (uint64_t addr : next)
        EXPECT_EQ(lay_addr_segment(addr), lay_addr_segment(first[0]));
    EXPECT_EQ(next[0], first[0] + 1);
    ASSERT_EQ(take(1, LAY_ADDR_CHUNK(1, 300), &other), 0);
    EXPECT_EQ(other[0], LAY_ADDR_CHUNK(1, 300));
    for (auto *blocks : {&first, &next, &other})
        ASSERT_EQ(drop(blocks), 0);
    expect_sound();
}

TEST_F(Chunks, ARunStaysInItsSegmentAndOmitsTheEntries)
{
    for (uint64_t goal : {LAY_ADDR_CHUNK(0, 505), LAY_ADDR_CHUNK(1, 0), LAY_ADDR_CHUNK(1, 511)}) {
        uint64_t addr = 0, len = 0;
        int err = handle([&](ffs_tx *tx) {
            int e = ffs_alloc_meta_run(tx, goal, 1000, &addr, &len);
            return e ? e : -ECANCELED; // the abort gives the blocks back
        });
        ASSERT_EQ(err, -ECANCELED);
        EXPECT_GT(len, 0u);
        EXPECT_NE(lay_addr_index(addr), 0u);
        EXPECT_EQ(lay_addr_segment(addr), lay_addr_segment(addr + len - 1)) << len;
    }
    expect_sound();
}

TEST_F(Chunks, NoBlockIsGivenOutTwice)
{
    std::vector<uint64_t> blocks, more;
    ASSERT_EQ(take(1500, 0, &blocks), 0);
    for (size_t i = 0; i < blocks.size(); i += 3) // every third one becomes free
        std::swap(blocks[i], blocks[blocks.size() - 1 - i / 3]);
    ASSERT_EQ(drop(&blocks, 1000), 0);
    ASSERT_EQ(take(1200, LAY_ADDR_CHUNK(1, 1), &more), 0);
    std::map<uint64_t, int> times;
    for (auto *list : {&blocks, &more}) {
        for (uint64_t addr : *list) {
            EXPECT_EQ(++times[addr], 1) << addr;
            EXPECT_NE(lay_addr_index(addr), 0u) << "a block of entries";
            EXPECT_NE(space_segment(fs, lay_addr_segment(addr)), 0u) << "not mapped";
        }
        ASSERT_EQ(drop(list), 0);
    }
    expect_sound();
}

TEST_F(Chunks, AChunkIsMappedBeforeTheReserveIsUsed)
{
    ASSERT_EQ(ffs_geometry(fs)->reserve, 1u);
    ASSERT_EQ(space_chunks(fs), 2u);
    std::vector<uint64_t> blocks;
    const uint64_t data = free_blocks(), spare = space_meta_free(fs) - ROOM;
    ASSERT_EQ(take(spare, 0, &blocks), 0);
    EXPECT_EQ(space_chunks(fs), 2u) << "the reserve is whole";
    ASSERT_EQ(take(1, 0, &blocks), 0);
    EXPECT_EQ(space_chunks(fs), 2u) << "it was whole before";
    ASSERT_EQ(take(1, 0, &blocks), 0);
    EXPECT_EQ(space_chunks(fs), 3u);
    EXPECT_EQ(segments(), (std::set<uint64_t>{0, 1, 2})) << "the lowest number";
    EXPECT_EQ(free_blocks(), data - LAY_SEGMENT_BLOCKS);
    EXPECT_EQ(space_segment(fs, 2) % LAY_SEGMENT_BLOCKS, 0u);
    remount();
    EXPECT_EQ(space_chunks(fs), 3u);
    EXPECT_EQ(free_blocks(), data - LAY_SEGMENT_BLOCKS);
    ASSERT_EQ(drop(&blocks), 0);
    expect_sound();
}

TEST_F(Chunks, AnEmptyChunkIsUnmappedIfTheOthersHaveRoom)
{
    std::vector<uint64_t> blocks;
    const uint64_t data = free_blocks();
    ASSERT_EQ(take(3 * ROOM, 0, &blocks), 0);
    const uint64_t most = space_chunks(fs);
    EXPECT_GE(most, 4u);
    ASSERT_EQ(drop(&blocks), 0);
    const uint64_t left = space_chunks(fs);
    EXPECT_LT(left, most);
    EXPECT_GE(space_meta_free(fs), 2 * ROOM) << "reserve + 1";
    EXPECT_LT(space_meta_free(fs), 4 * ROOM) << "not more than one chunk above that";
    EXPECT_NE(space_segment(fs, 0), 0u) << "chunk 0 stays";
    // One block more or less maps and unmaps nothing.
    for (int i = 0; i < 5; i++) {
        ASSERT_EQ(take(1, 0, &blocks), 0);
        ASSERT_EQ(drop(&blocks), 0);
        EXPECT_EQ(space_chunks(fs), left);
    }
    ASSERT_EQ(checkpoint(), 0);
    EXPECT_EQ(free_blocks(), data - (left - 2) * LAY_SEGMENT_BLOCKS);
    remount();
    EXPECT_EQ(space_chunks(fs), left);
    expect_sound();
}

// The log may have images of the chunk that had the number before.
TEST_F(Chunks, ANumberIsUsedAgainAfterTheNextCheckpoint)
{
    ASSERT_EQ(unmount(), 0);
    make(64 << 20, 4096); // so that a checkpoint comes only when it is asked for
    ASSERT_EQ(mount(), 0) << why;
    read_all_entries();
    std::vector<uint64_t> blocks;
    ASSERT_EQ(take(3 * ROOM, 0, &blocks), 0);
    ASSERT_EQ(checkpoint(), 0);
    const std::set<uint64_t> before = segments();
    ASSERT_EQ(drop(&blocks), 0);
    const std::set<uint64_t> after = segments();
    ASSERT_LT(after.size(), before.size());
    ASSERT_EQ(commit(), 0);
    ASSERT_EQ(take(3 * ROOM, 0, &blocks), 0);
    for (uint64_t segment : before) {
        EXPECT_TRUE(after.count(segment) || space_segment(fs, segment) == 0) << segment;
    }
    ASSERT_EQ(checkpoint(), 0);
    const uint64_t chunks = space_chunks(fs);
    while (space_chunks(fs) == chunks)
        ASSERT_EQ(take(16, 0, &blocks), 0);
    uint64_t lowest = 0;
    while (after.count(lowest))
        lowest++;
    EXPECT_NE(space_segment(fs, lowest), 0u) << "number " << lowest << " can be used again";
    ASSERT_EQ(drop(&blocks), 0);
    expect_sound();
}

TEST_F(Chunks, AnAbortTakesBackWhatAHandleMapsAndUnmaps)
{
    std::vector<uint64_t> blocks, all;
    while (space_chunks(fs) == 2)
        ASSERT_EQ(take(1, 0, &blocks), 0);
    ASSERT_EQ(drop(&blocks, blocks.size() - 1),
              0); // the next but one maps again, if it is unmapped
    ASSERT_EQ(take(space_meta_free(fs) - ROOM, 0, &blocks), 0);
    const auto places = segments();
    const uint64_t data = free_blocks(), metadata = space_meta_free(fs);
    for (int round = 0; round < 3; round++) {
        int err = handle([&](ffs_tx *tx) {
            int e = 0;
            for (int i = 0; i < 20 && !e; i++) {
                uint64_t addr;
                e = ffs_alloc_meta(tx, 0, &addr);
            }
            EXPECT_EQ(space_chunks(fs), places.size() + 1);
            return e ? e : -ECANCELED;
        });
        ASSERT_EQ(err, -ECANCELED);
        EXPECT_EQ(segments(), places);
        EXPECT_EQ(space_chunks(fs), places.size());
        EXPECT_EQ(free_blocks(), data);
        EXPECT_EQ(space_meta_free(fs), metadata);
    }
    ASSERT_EQ(drop(&blocks), 0);
    ASSERT_EQ(take(3 * ROOM, 0, &blocks), 0);
    const auto more = segments();
    while (!blocks.empty()) {
        std::vector<uint64_t> some(blocks.end() - std::min<size_t>(blocks.size(), 16),
                                   blocks.end());
        const uint64_t chunks = space_chunks(fs);
        int err = handle([&](ffs_tx *tx) {
            int e = 0;
            for (size_t i = 0; i < some.size() && !e; i++)
                e = ffs_free_meta(tx, some[i]);
            return e ? e : -ECANCELED;
        });
        ASSERT_EQ(err, -ECANCELED);
        ASSERT_EQ(space_chunks(fs), chunks);
        ASSERT_EQ(drop(&blocks, blocks.size() - some.size()), 0);
    }
    expect_sound();
}

TEST_F(Chunks, WithoutSpaceTheLastBlocksAreTaken)
{
    fill_data("all");
    std::vector<uint64_t> blocks;
    int err = 0;
    while (!err)
        err = take(1, 0, &blocks);
    EXPECT_EQ(err, -ENOSPC);
    EXPECT_GT(blocks.size(), ROOM / 2);
    EXPECT_EQ(remove_file("all"), 0) << "what frees space still can";
    ASSERT_EQ(commit_freed(), 0);
    EXPECT_EQ(take(2 * ROOM, 0, &blocks), 0) << "further chunks";
    ASSERT_EQ(drop(&blocks), 0);
    expect_sound();
}

TEST_F(Chunks, ASegmentWithDamagedEntriesIsLeftAlone)
{
    std::vector<uint64_t> there, blocks;
    ASSERT_EQ(take(5, LAY_ADDR_CHUNK(1, 100), &there), 0);
    ASSERT_EQ(lay_addr_segment(there[0]), 1u);
    const uint64_t at = space_segment(fs, 1) << LAY_BLOCK_SHIFT;
    ASSERT_EQ(unmount(), 0);
    memset(dev->bytes() + at + 100, 0x5a, 50);
    ASSERT_EQ(mount(), 0) << why;
    ASSERT_EQ(take(40, LAY_ADDR_CHUNK(1, 105), &blocks), 0);
    for (uint64_t addr : blocks)
        EXPECT_NE(lay_addr_segment(addr), 1u);
    EXPECT_EQ(handle([&](ffs_tx *tx) { return ffs_free_meta(tx, there[0]); }), -EUCLEAN);
    EXPECT_EQ(take(ROOM, 0, &blocks), 0) << "other chunks are mapped";
    EXPECT_EQ(drop(&blocks), 0);
    EXPECT_EQ(unmount(), 0);
}

TEST_F(Chunks, FreeingWhatIsFreeIsFound)
{
    EXPECT_EQ(handle([&](ffs_tx *tx) { return ffs_free_meta(tx, LAY_ADDR_CHUNK(0, 400)); }),
              -EUCLEAN);
    EXPECT_EQ(unmount(), -EUCLEAN);
}

} // namespace
