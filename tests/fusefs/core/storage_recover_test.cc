/* SPDX-License-Identifier: BSD-2-Clause */
// What recovery costs and how it ends early.
#include <string.h>
#include <time.h>

#include "tests/fusefs/core/space_probe.h"
#include "tests/fusefs/core/storage_fixture.h"

namespace
{

class Recover : public StorageTest
{
  protected:
    static double cpu_seconds()
    {
        struct timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
    }
    // Sealed images of blocks that look like metadata of inode 1, for the next transaction.
    std::vector<ffs_image *> images(uint64_t segment, size_t n)
    {
        const uint64_t tid = lay_get64(newest_of(dev.get())->head.tid) + 1;

        std::vector<uint8_t> block(4096, 0);
        std::vector<ffs_image *> all;
        for (uint64_t at = LAY_ADDR_CHUNK(segment, 1); all.size() < n; at++) {
            if (lay_addr_index(at) == 0)
                continue;
            lay_head_init(reinterpret_cast<lay_head *>(block.data()), LAY_MAGIC_XATTR,
                          ffs_geometry(fs)->uuid, at, 1);
            lay_seal(block.data(), tid);
            all.push_back(ffs_image_new(at, block.data()));
        }
        return all;
    }
    // Appends a transaction that no handle has made.
    void append(const std::vector<ffs_image *> &images)
    {
        struct ffs_log_tx tx = {};
        tx.images = const_cast<ffs_image **>(images.data());
        tx.n = images.size();
        ASSERT_EQ(ffs_log_write(fs, &tx), 0);
        for (ffs_image *image : images)
            free(image);
    }
    Device crash() { return dev->cut(dev->ops(), CRASH_KEEP, 0); }
};

// The space of such a segment may hold data. As many images as the log holds take no long time.
TEST_F(Recover, ImagesOfSegmentsThatAreNotMappedAreDropped)
{
    make(128u << 20, 8192);
    ASSERT_EQ(mount(), 0) << why;
    ASSERT_EQ(space_segment(fs, 2), 0u);
    dev->record();
    append(images(2, 8000));
    Device cut = crash();
    ASSERT_EQ(unmount(), 0);
    const std::vector<uint8_t> before(cut->bytes(), cut->bytes() + (128u << 20));
    const lay_geometry geo = geometry_of(cut.get());
    double start = cpu_seconds();
    ASSERT_EQ(mount(cut.get()), 0) << why;
    EXPECT_LT(cpu_seconds() - start, 5.0);
    EXPECT_EQ(unmount(), 0);
    for (uint64_t block = 0; block < geo.blocks; block++) {
        if (lay_range_ok(&geo, block, 1)) {
            EXPECT_EQ(memcmp(&before[block << 12], cut->bytes() + (block << 12), 4096), 0) << block;
        }
    }
}

TEST_F(Recover, AnUnreadableSuperblockIsReadFromItsOtherPlace)
{
    make(32u << 20, 256);
    ASSERT_EQ(mount(), 0) << why;
    ffs_inode *inode;
    ASSERT_EQ(new_inode(&inode), 0);
    uint64_t ino = ffs_ino(inode);
    ffs_iput(inode, 1);
    const uint64_t place = ffs_geometry(fs)->supers[0];
    ASSERT_EQ(unmount(), 0);
    dev->fail_reads(place << LAY_BLOCK_SHIFT, 4096);
    EXPECT_GE(image_check(dev->dev()), 1) << "fsck finds it, and goes on";
    opts.read_only = true;
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(uid(ino), 0);
    EXPECT_EQ(unmount(), 0);
}

} // namespace
