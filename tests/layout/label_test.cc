/* SPDX-License-Identifier: BSD-2-Clause */
/* Reading, judging and writing the copies of the label, and reading those of the superblock. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>

#include "layout/label.h"
#include "tests/layout/objects.h"

namespace
{

/* A device that keeps the blocks that a test looks at, and what was done to it. */
class Labels : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        object_make(OBJECT_LABEL, &label);
        blocks[0] = blocks[LAY_LABEL_SECOND] = label;
        lay_label_geometry(&label.label, &geo);
        object_make(OBJECT_SUPER, &super);
        for (uint64_t place : geo.supers)
            blocks[place] = super;
    }

    int read(bool reclaim = false, uint64_t device_blocks = OBJECT_BLOCKS)
    {
        return lay_labels_read(&io, device_blocks, reclaim, &found);
    }

    /* Makes the copy in a block one of a later incarnation. */
    lay_label &later(uint64_t block, uint64_t id = 0x99)
    {
        lay_label &l = blocks[block].label;
        lay_label_next(&l, id);
        lay_seal(&l, 0);
        return l;
    }

    void flip(uint64_t block, unsigned bit) { blocks[block].bytes[bit / 8] ^= 1u << bit % 8; }

    int write(uint64_t id = 0x100)
    {
        lay_label next = *lay_labels_newest(&found);
        lay_label_next(&next, id);
        trace.clear();
        return lay_labels_write(&io, &found, &next);
    }

    static int on_read(void *arg, uint64_t block, void *data)
    {
        auto *t = static_cast<Labels *>(arg);
        t->trace += "r" + std::to_string(block) + " ";
        if (t->unreadable.count(block))
            return t->unreadable[block];
        memcpy(data, &t->blocks[block], LAY_BLOCK_SIZE);
        return 0;
    }

    static int on_write(void *arg, uint64_t block, const void *data)
    {
        auto *t = static_cast<Labels *>(arg);
        t->trace += "w" + std::to_string(block) + " ";
        if (t->lost > 0)
            t->lost--;
        else
            memcpy(&t->blocks[block], data, LAY_BLOCK_SIZE);
        return t->write_error;
    }

    static int on_flush(void *arg)
    {
        static_cast<Labels *>(arg)->trace += "f ";
        return 0;
    }

    lay_io io = {on_read, on_write, on_flush, this};
    std::map<uint64_t, lay_block> blocks;
    std::map<uint64_t, int> unreadable;
    int lost = 0; // writes that will be lost
    int write_error = 0;
    std::string trace;
    lay_block label, super;
    lay_geometry geo;
    lay_labels found;
};

TEST_F(Labels, ThatAreEqualAreSound)
{
    EXPECT_EQ(read(), 0);
    EXPECT_TRUE(lay_labels_equal(&found));
    EXPECT_EQ(memcmp(lay_labels_newest(&found), &label, sizeof(label)), 0);
}

TEST_F(Labels, WithTheHigherCounterCount)
{
    later(LAY_LABEL_SECOND);
    EXPECT_EQ(read(), 0);
    EXPECT_EQ(found.newest, 1);
    EXPECT_FALSE(lay_labels_equal(&found));
    later(0);
    later(0);
    EXPECT_EQ(read(), 0);
    EXPECT_EQ(found.newest, 0);
}

TEST_F(Labels, OfOneCounterAndTwoWritersAreRefused)
{
    later(0, 1);
    later(LAY_LABEL_SECOND, 2);
    EXPECT_EQ(read(), -EUCLEAN);
    EXPECT_STREQ(found.why, "its labels contradict each other");
}

TEST_F(Labels, OfTwoFileSystemsAreRefused)
{
    blocks[LAY_LABEL_SECOND].head.uuid[3] ^= 0xff;
    later(LAY_LABEL_SECOND);
    EXPECT_EQ(read(), -EUCLEAN);
    EXPECT_STREQ(found.why, "its labels are of two file systems");
}

TEST_F(Labels, HaveOneFlippedBitCorrected)
{
    for (uint64_t block : {uint64_t{0}, uint64_t{LAY_LABEL_SECOND}}) {
        for (unsigned bit = 0; bit < 8 * LAY_BLOCK_SIZE; bit += 5) {
            flip(block, bit);
            ASSERT_EQ(read(), 0) << bit << " " << found.why;
            const lay_label_copy &copy = found.copies[block != 0];
            ASSERT_EQ(copy.error, 0);
            ASSERT_TRUE(copy.corrected);
            ASSERT_EQ(memcmp(&copy.label, &label, sizeof(label)), 0);
            ASSERT_FALSE(lay_labels_equal(&found));
            flip(block, bit);
        }
    }
}

TEST_F(Labels, AreUsedWhenTheOtherCopyIsDamagedOrUnreadable)
{
    flip(0, 4000);
    flip(0, 5000);
    EXPECT_EQ(read(), 0);
    EXPECT_EQ(found.newest, 1);
    EXPECT_EQ(found.copies[0].error, -EUCLEAN);
    unreadable[LAY_LABEL_SECOND] = -EIO;
    EXPECT_EQ(read(), -EUCLEAN);
    EXPECT_STREQ(found.why, "checksum");
    unreadable[0] = -EIO;
    EXPECT_EQ(read(), -EIO);
    unreadable.erase(LAY_LABEL_SECOND);
    EXPECT_EQ(read(), 0) << "an unreadable block 0 is no evidence";
}

TEST_F(Labels, ReturnOtherErrorsOfTheDevice)
{
    unreadable[LAY_LABEL_SECOND] = -ETIMEDOUT;
    EXPECT_EQ(read(), -ETIMEDOUT);
}

TEST_F(Labels, BelongToSomeoneElseWithoutTheMagicInBlock0)
{
    blocks[0] = lay_block{};
    EXPECT_EQ(read(), -EINVAL);
    EXPECT_STREQ(found.why, "holds no gpunvmefs file system");
    EXPECT_EQ(read(true), 0);
    EXPECT_EQ(found.newest, 1);
    blocks[0] = label;
    flip(0, 0); // one bit of the magic
    flip(0, 9000);
    EXPECT_EQ(read(), 0);
    flip(0, 1);
    EXPECT_EQ(read(), -EINVAL);
}

TEST_F(Labels, OfAnotherVersionAreRefused)
{
    blocks[0].label.version_major = lay_put16(2);
    lay_seal(&blocks[0], 0);
    EXPECT_EQ(read(), -ENOTSUP);
    EXPECT_NE(std::string(found.why).find("older format"), std::string::npos);
    EXPECT_EQ(read(true), -ENOTSUP);
}

TEST_F(Labels, NameUnknownFeatures)
{
    for (uint64_t block : {uint64_t{0}, uint64_t{LAY_LABEL_SECOND}}) {
        blocks[block].label.incompat = lay_put64(uint64_t{1} << 33);
        lay_seal(&blocks[block], 0);
    }
    EXPECT_EQ(read(), -ENOTSUP);
    EXPECT_EQ(found.features, uint64_t{1} << 33);
}

TEST_F(Labels, OfATruncatedDeviceAreFoundAndRefused)
{
    EXPECT_EQ(read(false, OBJECT_BLOCKS - 1), -ERANGE);
    EXPECT_EQ(lay_get64(lay_labels_newest(&found)->members[0].blocks), OBJECT_BLOCKS);
    EXPECT_EQ(read(false, 100), -ERANGE);
}

TEST_F(Labels, GetTheNextIncarnation)
{
    lay_label next = label.label;
    lay_label_next(&next, 0x1234);
    EXPECT_EQ(lay_get64(next.incarnation.counter), lay_get64(label.label.incarnation.counter) + 1);
    EXPECT_EQ(lay_get64(next.incarnation.id), 0x1234u);
    EXPECT_EQ(memcmp(&next.members[0].seen, &label.label.incarnation, sizeof(lay_incarnation)), 0);
}

TEST_F(Labels, AreWrittenOneAfterTheOtherTheWorseOneFirst)
{
    ASSERT_EQ(read(), 0);
    ASSERT_EQ(write(), 0);
    EXPECT_EQ(trace, "w0 f r0 w2048 f r2048 ");
    EXPECT_TRUE(lay_labels_equal(&found));
    ASSERT_EQ(read(), 0);
    EXPECT_EQ(lay_get64(lay_labels_newest(&found)->incarnation.id), 0x100u);

    flip(LAY_LABEL_SECOND, 4000);
    ASSERT_EQ(read(), 0);
    ASSERT_EQ(write(), 0);
    EXPECT_EQ(trace, "w2048 f r2048 w0 f r0 ") << "the one with a flipped bit";

    flip(0, 4000);
    ASSERT_EQ(read(), 0);
    ASSERT_EQ(write(), 0);
    EXPECT_EQ(trace, "w0 f r0 w2048 f r2048 ") << "the one with a flipped bit";

    later(LAY_LABEL_SECOND);
    ASSERT_EQ(read(), 0);
    ASSERT_EQ(write(), 0);
    EXPECT_EQ(trace, "w0 f r0 w2048 f r2048 ") << "the older one";
}

TEST_F(Labels, AreWrittenOnceMoreIfAWriteWasLost)
{
    ASSERT_EQ(read(), 0);
    lost = 1;
    ASSERT_EQ(write(), 0);
    EXPECT_EQ(trace, "w0 f r0 w0 f r0 w2048 f r2048 ");
    lost = 2;
    ASSERT_EQ(write(0x101), -EIO);
    EXPECT_EQ(trace, "w0 f r0 w0 f r0 ") << "the other copy stays as it is";
    EXPECT_EQ(found.copies[1].error, 0);
    write_error = -ENODEV;
    EXPECT_EQ(write(0x102), -ENODEV);
}

TEST_F(Labels, ThatNobodyWouldAcceptAreNotWritten)
{
    for (uint64_t block : {uint64_t{0}, uint64_t{LAY_LABEL_SECOND}}) {
        blocks[block].label.incarnation.counter = lay_put64(LAY_MAX_COUNTER);
        lay_seal(&blocks[block], 0);
    }
    ASSERT_EQ(read(), 0);
    EXPECT_EQ(write(), -EINVAL) << "no counter is left";
    EXPECT_EQ(trace, "");
    EXPECT_EQ(read(), 0);
}

TEST_F(Labels, CrashesBetweenWritesNeverTearBothCopies)
{
    for (int n = 0; n < 6; n++) {
        ASSERT_EQ(read(), 0);
        unsigned worse = lay_labels_equal(&found) ? 0 : 1 - found.newest;
        flip(worse ? LAY_LABEL_SECOND : 0, 5000); // a torn write
        flip(worse ? LAY_LABEL_SECOND : 0, 9000);
    }
    EXPECT_EQ(read(), 0);
}

/* --- Superblocks ----------------------------------------------------------------------------- */

TEST_F(Labels, SuperblocksAreFoundByTheirAge)
{
    lay_supers supers;
    blocks[geo.supers[1]].super.mounts = lay_put64(9);
    lay_seal(&blocks[geo.supers[1]], OBJECT_TID);
    ASSERT_EQ(lay_supers_read(&io, &geo, &supers), 0);
    EXPECT_EQ(lay_supers_of_age(&supers, lay_age(&super)), &supers.copies[0]);
    EXPECT_EQ(lay_supers_of_age(&supers, lay_age(&blocks[geo.supers[1]])), &supers.copies[1]);
    EXPECT_EQ(lay_supers_of_age(&supers, 1), nullptr);
    EXPECT_EQ(lay_supers_newest(&supers), &supers.copies[0]);
    lay_seal(&blocks[geo.supers[1]], OBJECT_TID + 1);
    ASSERT_EQ(lay_supers_read(&io, &geo, &supers), 0);
    EXPECT_EQ(lay_supers_newest(&supers), &supers.copies[1]);
}

TEST_F(Labels, SuperblocksHaveOneFlippedBitCorrected)
{
    lay_supers supers;
    flip(geo.supers[0], 3000);
    flip(geo.supers[1], 3000);
    flip(geo.supers[1], 3001);
    ASSERT_EQ(lay_supers_read(&io, &geo, &supers), 0);
    EXPECT_TRUE(supers.corrected[0]);
    EXPECT_EQ(memcmp(&supers.copies[0], &super, sizeof(super)), 0);
    EXPECT_EQ(supers.errors[1], -EUCLEAN);
    EXPECT_STREQ(supers.why[1], "checksum");
    EXPECT_EQ(lay_supers_of_age(&supers, lay_age(&super)), &supers.copies[0]);
}

TEST_F(Labels, SuperblocksMayBeUnreadable)
{
    lay_supers supers;
    unreadable[geo.supers[0]] = -EIO;
    ASSERT_EQ(lay_supers_read(&io, &geo, &supers), 0);
    EXPECT_EQ(supers.errors[0], -EIO);
    EXPECT_EQ(lay_supers_of_age(&supers, lay_age(&super)), &supers.copies[1]);
    unreadable[geo.supers[0]] = -ETIMEDOUT;
    EXPECT_EQ(lay_supers_read(&io, &geo, &supers), -ETIMEDOUT);
}

} // namespace
