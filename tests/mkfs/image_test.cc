/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Metadata is found through the chunk map, of which the log may have a newer version, and is what
 * the ages say.
 */
#include <gtest/gtest.h>

#include <cstring>

#include "fusefs/core/ffs.h"
#include "mkfs/replay.h"
#include "mkfs/walk.h"
#include "tests/mkfs/mkfs_rig.h"

namespace
{

const uint64_t MAP = LAY_ADDR(LAY_KIND_MAP, 0);
const uint64_t IN_SEGMENT_1 = LAY_ADDR_CHUNK(1, 0);

class ImageMap : public ToolTest
{
  protected:
    ImageMap() { img.fill(); }
    ~ImageMap() override
    {
        replay_free(&log);
        image_end(&image);
        if (dev)
            bd_close(dev);
    }

    void open()
    {
        const char *why = nullptr;
        ASSERT_EQ(bd_file_open(path("img").c_str(), 0, 0, &dev), 0);
        ASSERT_EQ(image_start(&image, dev, false, &labels), 0);
        lay_io io = ffs_io(image.dev);
        ASSERT_EQ(lay_supers_read(&io, &image.geo, &supers), 0);
        ASSERT_EQ(replay_read(&image, &labels, &supers, &log), 0);
        ASSERT_EQ(replay_super(&image, &log, &supers, &super, &lost, &why), 0) << why;
        ASSERT_EQ(replay_replay(&image, &log), 0);
        image.corrected = [](void *arg, uint64_t, lay_block *) {
            ++*static_cast<unsigned *>(arg);
            return 0;
        };
        image.corrected_arg = &corrected;
        ASSERT_EQ(replay_map(&image, lay_get64(super.chunks)), 0);
    }

    image_age age_of(uint64_t addr)
    {
        lay_block b;
        EXPECT_EQ(image_read(&image, addr, &b), 0);
        return image.age;
    }

    /* Makes a new version of a block and puts the old one back in its place. */
    void make_stale(uint64_t addr)
    {
        const lay_block old = img.at<lay_block>(addr);
        img.seal(addr, 9);
        img.at<lay_block>(addr) = old;
    }

    /* The map with a slot changed, as an image for the log. */
    std::vector<uint8_t> map_with(uint64_t segment, uint64_t block)
    {
        std::vector<uint8_t> bytes = img.copy(MAP);
        lay_slot_set(&reinterpret_cast<lay_map_block *>(bytes.data())->slots[segment], block,
                     LAY_NONE);
        return bytes;
    }

    Image img{path("img")};
    bd_dev *dev = nullptr;
    ::image image{};
    lay_labels labels{};
    lay_supers supers{};
    lay_super super{};
    ::log log{};
    unsigned corrected = 0;
    bool lost = false;
};

TEST_F(ImageMap, FindsBlocksInChunks)
{
    lay_inode inode;
    lay_block b;
    open();
    EXPECT_EQ(image.segment_count, img.segments.size());
    EXPECT_EQ(image_segment_block(&image, 1), img.segments[1]);
    EXPECT_EQ(image_segment_block(&image, 2), LAY_NONE);
    ASSERT_EQ(walk_read_inode(&image, &super, INO_DIR, &inode, nullptr), 0);
    ASSERT_EQ(image_read(&image, img.dir_leaf, &b), 0);
    EXPECT_EQ(memcmp(&b, &img.at<lay_block>(img.dir_leaf), sizeof(b)), 0);
}

TEST_F(ImageMap, HasNoPlaceForOtherSegments)
{
    uint64_t places[2];
    lay_block b;
    open();
    EXPECT_EQ(image_places(&image, LAY_ADDR_CHUNK(2, 1), places), 0u);
    ASSERT_EQ(image_read(&image, LAY_ADDR_CHUNK(2, 1), &b), 0);
    EXPECT_EQ(lay_get32(b.head.magic), 0u);
}

TEST_F(ImageMap, ChangesInMemory)
{
    open();
    ASSERT_EQ(image_set_segment(&image, 9, 3072, LAY_NONE), 0);
    ASSERT_EQ(image_set_segment(&image, 5, 3584, LAY_NONE), 0);
    EXPECT_EQ(image_segment_block(&image, 5), 3584u);
    EXPECT_EQ(image_segment_block(&image, 9), 3072u);
    ASSERT_EQ(image_set_segment(&image, 5, LAY_NONE, LAY_NONE), 0);
    EXPECT_EQ(image_segment_block(&image, 5), LAY_NONE);
    EXPECT_EQ(image_segment_block(&image, 9), 3072u);
}

TEST_F(ImageMap, IsThatOfTheLog)
{
    img.log({map_with(1, 3072)});
    open();
    EXPECT_EQ(image_segment_block(&image, 1), 3072u);
}

TEST_F(ImageMap, DropsImagesOfSegmentsThatTheLastMapDoesNotHave)
{
    img.log({img.copy(IN_SEGMENT_1), img.copy(img.root_leaf)});
    img.log({map_with(1, LAY_NONE)});
    open();
    EXPECT_EQ(image_find_patch(&image, IN_SEGMENT_1), nullptr);
    EXPECT_NE(image_find_patch(&image, img.root_leaf), nullptr);
}

TEST_F(ImageMap, KeepsImagesOfSegmentsWhoseSlotIsLost)
{
    img.at<lay_map_block>(MAP).reserved = lay_put64(1);
    img.seal(MAP);
    img.log({img.copy(IN_SEGMENT_1)});
    open();
    ASSERT_EQ(image.bad_map_count, 1u);
    EXPECT_STREQ(image.bad_maps[0].why, "reserved");
    EXPECT_EQ(image.segment_count, 0u);
    EXPECT_NE(image_find_patch(&image, IN_SEGMENT_1), nullptr);
}

TEST_F(ImageMap, IsReadWithOneWrongBit)
{
    img.at<lay_map_block>(MAP).slots[3].reserved = lay_put32(4);
    open();
    EXPECT_EQ(corrected, 1u);
    EXPECT_EQ(image.segment_count, img.segments.size());
}

TEST_F(ImageMap, IsDamagedIfItIsAnOlderVersion)
{
    make_stale(MAP);
    open();
    ASSERT_EQ(image.bad_map_count, 1u);
    EXPECT_STREQ(image.bad_maps[0].why, IMAGE_STALE_WHY);
}

class ImageAges : public ImageMap
{
  protected:
    /* Adds an area of checksums of which no block was written, and what the device held before. */
    void add_sums()
    {
        lay_area &area = img.super().area;
        img.geo.incompat |= LAY_INCOMPAT_DATA_CSUM;
        img.label().incompat = lay_put64(img.geo.incompat);
        img.seal_label();
        img.geo.sums_start = 3500;
        img.geo.sums_blocks = lay_sums_blocks(img.geo.blocks);
        img.geo.sums_len = lay_area_blocks(img.geo.sums_blocks);
        memset(&img.at<uint8_t>(3500), 0xee, img.geo.sums_len * LAY_BLOCK_SIZE);
        memset(&img.at<uint8_t>(SUMS_TOP), 0, LAY_BLOCK_SIZE);
        area.sums[0] = lay_put64(img.geo.sums_start);
        area.sums[1] = lay_put64(LAY_NONE);
        img.seal_super();
    }
    const uint64_t SUMS_TOP = LAY_ADDR_LEVEL(LAY_KIND_SUMS, 1, 0);
};

TEST_F(ImageAges, AreThoseThatAreNamed)
{
    open();
    for (uint64_t addr : img.metadata)
        EXPECT_EQ(age_of(addr), IMAGE_AGE_RIGHT) << std::hex << addr;
}

TEST_F(ImageAges, TellOlderVersionsOfAllBlocks)
{
    const std::vector<uint64_t> blocks = img.metadata;
    for (size_t i = 1; i < blocks.size(); i++) { // all but the map
        make_stale(blocks[i]);
        open();
        EXPECT_EQ(age_of(blocks[i]), IMAGE_AGE_STALE) << std::hex << blocks[i];
        EXPECT_EQ(corrected, 0u);
        replay_free(&log);
        image_end(&image);
        bd_close(dev);
        img.seal(blocks[i]);
    }
    open();
}

TEST_F(ImageAges, TellBlocksThatWereNeverWritten)
{
    add_sums();
    open();
    for (uint64_t i = 0; i < img.geo.sums_blocks; i++)
        EXPECT_EQ(age_of(LAY_ADDR(LAY_KIND_SUMS, i)), IMAGE_AGE_NEW);
    EXPECT_EQ(age_of(SUMS_TOP), IMAGE_AGE_NEW);
}

TEST_F(ImageAges, AreInLevels)
{
    add_sums();
    lay_block &sums = img.at<lay_block>(LAY_ADDR(LAY_KIND_SUMS, 2));
    lay_new_block(&img.geo, LAY_ADDR(LAY_KIND_SUMS, 2), &sums);
    sums.sums.sums[7] = lay_put32(7);
    img.seal(LAY_ADDR(LAY_KIND_SUMS, 2));
    open();
    EXPECT_EQ(age_of(SUMS_TOP), IMAGE_AGE_RIGHT);
    EXPECT_EQ(age_of(LAY_ADDR(LAY_KIND_SUMS, 2)), IMAGE_AGE_RIGHT);
    EXPECT_EQ(age_of(LAY_ADDR(LAY_KIND_SUMS, 3)), IMAGE_AGE_NEW);
}

TEST_F(ImageAges, AreUnknownBelowADamagedBlock)
{
    memset(&img.at<uint8_t>(LAY_ADDR_CHUNK(0, 0)) + 3000, 0xee, 100);
    open();
    EXPECT_EQ(age_of(LAY_ADDR_CHUNK(0, 0)), IMAGE_AGE_DAMAGED);
    EXPECT_EQ(age_of(img.root_leaf), IMAGE_AGE_UNKNOWN);
    EXPECT_EQ(age_of(IN_SEGMENT_1), IMAGE_AGE_RIGHT);
}

TEST_F(ImageAges, AreUnknownBelowAnOlderVersion)
{
    make_stale(LAY_ADDR_CHUNK(0, 0));
    open();
    EXPECT_EQ(age_of(img.root_leaf), IMAGE_AGE_UNKNOWN);
}

TEST_F(ImageAges, OfTheTopsAreUnknownWithoutTheSuperblockThatTheLogNames)
{
    img.commit().super_age = lay_put32(1);
    img.seal_commit();
    open();
    EXPECT_TRUE(lost);
    EXPECT_EQ(age_of(MAP), IMAGE_AGE_UNKNOWN);
    EXPECT_EQ(age_of(LAY_ADDR(LAY_KIND_BITMAP, 0)), IMAGE_AGE_UNKNOWN);
    EXPECT_EQ(age_of(img.root_leaf), IMAGE_AGE_RIGHT);
}

TEST_F(ImageAges, DoNotMatterForABlockOfTheLog)
{
    make_stale(img.root_leaf);
    img.log({img.copy(img.root_leaf)});
    open();
    EXPECT_EQ(age_of(img.root_leaf), IMAGE_AGE_RIGHT);
}

TEST_F(ImageAges, KeepAnOlderVersionFromBeingCorrected)
{
    make_stale(img.root_leaf);
    img.at<lay_node>(img.root_leaf).u.bytes[9] ^= 1;
    open();
    EXPECT_EQ(age_of(img.root_leaf), IMAGE_AGE_DAMAGED);
    EXPECT_EQ(corrected, 0u);
}

TEST_F(ImageMap, EntriesAreReadWithOneWrongBit)
{
    lay_block b;
    const char *why = nullptr;
    img.at<lay_entries>(IN_SEGMENT_1).used[5] ^= 4;
    open();
    ASSERT_EQ(image_read(&image, IN_SEGMENT_1, &b), 0);
    EXPECT_EQ(lay_check_entries(&image.geo, &b.entries, 1, &why), 0) << why;
    EXPECT_EQ(corrected, 1u);
}

} // namespace
