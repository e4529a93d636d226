/* SPDX-License-Identifier: BSD-2-Clause */
/* Metadata is found through the chunk map, of which the log may have a newer version. */
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

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
    ImageMap()
    {
        img.fill();
    }
    ~ImageMap() override
    {
        replay_free(&log);
        image_end(&image);
        if (dev)
            bd_close(dev);
    }

    void open()
    {
        bool lost = false;
        const char *why = nullptr;
        ASSERT_EQ(bd_file_open(path("img").c_str(), 0, 0, &dev), 0);
        ASSERT_EQ(image_start(&image, dev, false, &labels), 0);
        lay_io io = image_io(&image);
        ASSERT_EQ(lay_supers_read(&io, &image.geo, &supers), 0);
        ASSERT_EQ(replay_read(&image, &labels, &supers, &log), 0);
        ASSERT_EQ(replay_super(&image, &log, &supers, false, &super, &lost, &why), 0) << why;
        ASSERT_EQ(replay_replay(&image, &log), 0);
        image.corrected = [](void *arg, uint64_t, lay_block *) {
            ++*static_cast<unsigned *>(arg);
            return 0;
        };
        image.corrected_arg = &corrected;
        ASSERT_EQ(replay_map(&image, lay_get64(super.chunks)), 0);
    }

    /* The map with a slot changed, as an image for the log. */
    std::vector<uint8_t> map_with(uint64_t segment, uint64_t block)
    {
        std::vector<uint8_t> bytes = img.copy(MAP);
        lay_slot_set(&reinterpret_cast<lay_map_block *>(bytes.data())->slots[segment], block);
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
    ASSERT_EQ(image_set_segment(&image, 9, 3072), 0);
    ASSERT_EQ(image_set_segment(&image, 5, 3584), 0);
    EXPECT_EQ(image_segment_block(&image, 5), 3584u);
    EXPECT_EQ(image_segment_block(&image, 9), 3072u);
    ASSERT_EQ(image_set_segment(&image, 5, LAY_NONE), 0);
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
