/* SPDX-License-Identifier: BSD-2-Clause */
// Memory that cannot be had at any one allocation, and a disk that is full at any one step: errors
// come back, and the image stays sound.
#include <errno.h>
#include <string.h>

#include <atomic>

#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/fs_operations.h"

// Allocations until one fails; below zero: none does.
static std::atomic<long> allocations{-1};

static bool refused()
{
    if (allocations < 0 || allocations-- > 0)
        return false;
    errno = ENOMEM;
    return true;
}

extern "C" {
void *__real_malloc(size_t len);
void *__wrap_malloc(size_t len);
void *__real_calloc(size_t n, size_t len);
void *__wrap_calloc(size_t n, size_t len);
void *__real_realloc(void *old, size_t len);
void *__wrap_realloc(void *old, size_t len);

void *__wrap_malloc(size_t len)
{
    return refused() ? nullptr : __real_malloc(len);
}

void *__wrap_calloc(size_t n, size_t len)
{
    return refused() ? nullptr : __real_calloc(n, len);
}

void *__wrap_realloc(void *old, size_t len)
{
    return refused() ? nullptr : __real_realloc(old, len);
}
}

namespace
{

class FsExhausted : public FsTest
{
  protected:
    explicit FsExhausted(uint64_t device_bytes = 16u << 20) : FsTest(device_bytes) {}
    void SetUp() override
    {
        FsTest::SetUp();
        opts.no_thread = true;
        unmount();
        fresh = device.image();
    }
    // Whatever happened: the image can be mounted and used, and fsck finds nothing.
    void expect_sound(long n)
    {
        unmount();
        ASSERT_EQ(mount(), 0) << n;
        fs_every_operation(fs, root, "2");
        EXPECT_TRUE(lookup("r2")) << n;
        unmount();
        ASSERT_EQ(fsck(), "") << n;
    }

    Image fresh;
};

TEST_F(FsExhausted, EachAllocationFailingInTurnLeavesASoundImage)
{
    for (long n = 0, refusals = 0;; n++) {
        device.put(fresh);
        ASSERT_EQ(mount(), 0);
        allocations = n;
        fs_every_operation(fs, root, "");
        bool reached = allocations < 0;
        end_mount();
        reached |= allocations < 0;
        allocations = -1;
        expect_sound(n);
        refusals += reached;
        if (!reached) {
            EXPECT_GT(refusals, 50) << "allocations are not met";
            break;
        }
    }
}

TEST_F(FsExhausted, EachAllocationOfAMountFailingInTurnIsAnError)
{
    for (long n = 0;; n++) {
        device.put(fresh);
        allocations = n;
        int err = mount();
        bool reached = allocations < 0;
        allocations = -1;
        // -EIO: the checkpoint at the end of a mount could not be made.
        EXPECT_TRUE(err == 0 || err == -ENOMEM || err == -EIO) << err << " of allocation " << n;
        if (!err)
            unmount();
        expect_sound(n);
        if (!reached) {
            EXPECT_GT(n, 5) << "allocations are not met";
            break;
        }
    }
}

// An fsync that has no memory for the images of its blocks fails, or is as good as any.
TEST_F(FsExhausted, ASuccessfulSyncIsDurableWhateverAllocationFailed)
{
    for (long n = 0, failures = 0;; n++) {
        device.put(fresh);
        ASSERT_EQ(mount(), 0);
        Inode f = create_with("f", "data");
        allocations = n;
        int err = ffs_fsync(f, false);
        bool reached = allocations < 0;
        allocations = -1;
        device.fail(MemDevice::FAIL_FROM, 0);
        f.reset();
        end_mount();
        device.fail(MemDevice::FAIL_NONE, 0);
        ASSERT_EQ(mount(), 0) << n;
        if (!err) {
            EXPECT_EQ(read_all(lookup("f")), "data") << "allocation " << n;
        }
        failures += err != 0;
        expect_sound(n);
        if (!reached) {
            EXPECT_GT(failures, 0) << "allocations are not met";
            break;
        }
    }
}

// A file system of 16 MiB on a larger device.
class FsExhaustedGrowth : public FsExhausted
{
  protected:
    FsExhaustedGrowth() : FsExhausted(24u << 20) { fs_bytes = 16u << 20; }
};

TEST_F(FsExhaustedGrowth, AnAllocationThatFailsDoesNotEndTheWriting)
{
    struct ffs_statfs st;
    for (long n = 0, failures = 0;; n++) {
        device.put(fresh);
        ASSERT_EQ(mount(), 0);
        allocations = n;
        int err = ffs_grow(fs, device.size() / 4096);
        bool reached = allocations < 0;
        allocations = -1;
        EXPECT_TRUE(err == 0 || err == -ENOMEM) << err << " of allocation " << n;
        ffs_statfs(fs, &st);
        EXPECT_EQ(st.blocks, (err ? fs_bytes : device.size()) / 4096) << n;
        write(create("later"), 0, "data");
        EXPECT_EQ(ffs_sync(fs), 0) << n;
        failures += err != 0;
        expect_sound(n);
        if (!reached) {
            EXPECT_GT(failures, 5) << "allocations are not met";
            break;
        }
    }
}

// All that is free, less `blocks`, becomes a file.
void take_all_but(struct ffs *fs, ffs_inode *root, uint64_t blocks, const ffs_cred *cred)
{
    Inode big;
    struct ffs_statfs st;
    ASSERT_EQ(ffs_mknod(root, "big", S_IFREG | 0600, 0, cred, big.out()), 0);
    for (uint64_t len = 1024, at = 0; len > 0;) {
        ffs_statfs(fs, &st);
        if (st.free_blocks >= blocks + len && ffs_fallocate(big, 0, at * 4096, len * 4096) == 0)
            at += len;
        else
            len /= 2;
    }
    ASSERT_EQ(ffs_sync(fs), 0);
}

TEST_F(FsExhausted, ADiskFullAtEachStepLeavesASoundImage)
{
    for (uint64_t blocks = 0; blocks < 60; blocks++) {
        device.put(fresh);
        ASSERT_EQ(mount(), 0);
        take_all_but(fs, root, blocks, &cred);
        fs_every_operation(fs, root, "");
        unmount();
        ASSERT_EQ(fsck(), "") << blocks;
        ASSERT_EQ(mount(), 0) << blocks;
        ASSERT_EQ(ffs_unlink(root, "big"), 0) << blocks;
        ASSERT_EQ(ffs_sync(fs), 0);
        unmount();
        expect_sound(static_cast<long>(blocks));
    }
}

// Sets attributes of one block each until there is no room, and returns their number.
int fill_metadata(ffs_inode *root, const ffs_cred *cred)
{
    std::string value(3000, 'v');
    int n = 0, err = 0;
    while (!err) {
        Inode f;
        std::string name = "m" + std::to_string(n / 200);
        err = ffs_lookup(root, name.c_str(), f.out());
        if (err)
            err = ffs_mknod(root, name.c_str(), S_IFREG | 0600, 0, cred, f.out());
        if (!err)
            err = ffs_setxattr(f, ("user." + std::to_string(n)).c_str(), value.data(), value.size(),
                               0);
        n += err == 0;
    }
    EXPECT_EQ(err, -ENOSPC);
    return n;
}

TEST_F(FsExhausted, MetadataThatHasNoRoomAtEachStepLeavesASoundImage)
{
    ASSERT_EQ(mount(), 0);
    take_all_but(fs, root, 0, &cred);
    const int all = fill_metadata(root, &cred);
    unmount();
    fresh = device.image();
    ASSERT_EQ(fsck(), "");
    for (int left = 0; left < 40; left++) {
        device.put(fresh);
        ASSERT_EQ(mount(), 0);
        for (int i = all - left; i < all; i++) {
            Inode f = lookup("m" + std::to_string(i / 200));
            ASSERT_EQ(ffs_removexattr(f, ("user." + std::to_string(i)).c_str()), 0) << left;
        }
        fs_every_operation(fs, root, "");
        unmount();
        ASSERT_EQ(fsck(), "") << left;
        ASSERT_EQ(mount(), 0) << left;
        ASSERT_EQ(ffs_unlink(root, "big"), 0) << left;
        ASSERT_EQ(ffs_unlink(root, "m0"), 0) << left;
        ASSERT_EQ(ffs_sync(fs), 0);
        unmount();
        expect_sound(left);
    }
}

} // namespace
