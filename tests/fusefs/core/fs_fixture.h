/* SPDX-License-Identifier: BSD-2-Clause */
// A file system in memory for tests of its operations: format, mount, operate, remount, check.
#ifndef TESTS_FUSEFS_FS_FIXTURE_H
#define TESTS_FUSEFS_FS_FIXTURE_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fusefs/core/ffs.h"
#include "tests/fusefs/core/inode_ref.h"
#include "tests/test_device.h"

// What a device holds before anything is written to it.
constexpr char FS_GARBAGE = '\xee';

// An Image has all bytes of a device.
using Image = std::vector<uint8_t>;

// A memfd, mapped.
struct Memory {
    uint8_t *at = nullptr;
    uint64_t bytes = 0; // whole pages
    int fd = -1;
};

// A block device in a memfd, so that fsck can look at it by path, full of garbage. Its transfers
// can be made to fail from a chosen one on.
class MemDevice : public TestDevice
{
  public:
    explicit MemDevice(uint64_t bytes, uint32_t lba_size = 512);
    ~MemDevice() override;

    uint8_t *bytes() { return memory_.at; }
    std::string path() const;
    Image image() const { return Image(memory_.at, memory_.at + size()); }
    void put(const Image &image) { memcpy(memory_.at, image.data(), image.size()); }
    bool has(const Image &image) const
    {
        return memcmp(memory_.at, image.data(), image.size()) == 0;
    }

    enum Fail { FAIL_NONE, FAIL_ONCE, FAIL_FROM, FAIL_LOSE };
    // Fails the n-th transfer from now (0: the next), or all from there on. FAIL_LOSE: the n-th
    // write succeeds and changes nothing.
    void fail(Fail how, long n, int error = -EIO)
    {
        how_ = how;
        countdown_ = n;
        error_ = error;
    }
    // The next read of this block has `flips` as the first bytes' flipped bits; later ones are
    // right.
    void misread(uint64_t block, uint8_t flips)
    {
        misread_ = block;
        flips_ = flips;
    }
    // Makes reads of this block fail until it is written.
    void make_unreadable(uint64_t block) { unreadable_ = block; }
    // Makes reads and writes of these blocks fail; UINT64_MAX: of none.
    void make_broken(uint64_t block, uint64_t other = UINT64_MAX)
    {
        broken_[0] = block;
        broken_[1] = other;
    }
    // Called before each write, without locks of the device; may be set while nothing is written.
    std::function<void(const bd_io &)> before_write;
    // Writes that have changed a byte.
    long changes() const { return changes_; }
    // Below zero once the transfer that fail() chose has been met.
    long countdown() const { return countdown_; }

  private:
    int transfer(bd_io *io) override;

    const Memory memory_;
    std::atomic<int> how_{FAIL_NONE};
    std::atomic<long> countdown_{0};
    std::atomic<int> error_{-EIO};
    std::atomic<uint64_t> misread_{UINT64_MAX};
    std::atomic<uint8_t> flips_{0};
    std::atomic<uint64_t> unreadable_{UINT64_MAX};
    std::atomic<uint64_t> broken_[2] = {UINT64_MAX, UINT64_MAX};
    std::atomic<long> changes_{0};
};

class FsTest : public ::testing::Test
{
  protected:
    explicit FsTest(uint64_t bytes = 64u << 20, uint32_t lba_size = 512) : device(bytes, lba_size)
    {
    }
    void SetUp() override;
    // Unmounts, and runs fsck on the image.
    void TearDown() override;

    void format();
    int mount();
    void unmount();
    // Unmounts if there is a mount, and returns the result of ffs_unmount().
    int end_mount();
    void remount();
    // Remounts without the inode, and looks it up again.
    void remount(Inode &inode, const std::string &name);
    // Unmounts, and leaves on the device what a power cut before would have left.
    void crash();
    // Returns a block of the device.
    uint8_t *at(uint64_t block) { return device.bytes() + block * 4096; }
    template <typename T> T &at(uint64_t block) { return *reinterpret_cast<T *>(at(block)); }
    // What fsck.gpunvme says; "" when it finds nothing.
    std::string fsck(const std::string &how = "-n");

    Inode create(ffs_inode *dir, const std::string &name, uint32_t mode = S_IFREG | 0644);
    Inode create(const std::string &name, uint32_t mode = S_IFREG | 0644)
    {
        return create(root, name, mode);
    }
    // Creates a file with these bytes.
    Inode create_with(const std::string &name, const std::string &data);
    Inode mkdir(ffs_inode *dir, const std::string &name, uint32_t mode = 0755);
    Inode mkdir(const std::string &name, uint32_t mode = 0755) { return mkdir(root, name, mode); }
    Inode lookup(ffs_inode *dir, const std::string &name);
    Inode lookup(const std::string &name) { return lookup(root, name); }
    int lookup_error(ffs_inode *dir, const std::string &name);
    ffs_attr attr(ffs_inode *inode);
    int truncate(ffs_inode *inode, uint64_t size);
    std::string read(ffs_inode *inode, uint64_t offset, size_t len);
    std::string read_all(ffs_inode *inode);
    ssize_t write(ffs_inode *inode, uint64_t offset, const std::string &data);
    std::vector<std::string> names(ffs_inode *dir);
    // Free blocks once everything freed is free for good. Those in chunks count, and so do the
    // entries of chunks, so that a chunk that is mapped changes nothing.
    uint64_t free_blocks();
    // The same without the free blocks in chunks.
    uint64_t free_data();

    MemDevice device;
    struct ffs *fs = nullptr;
    Inode root;
    ffs_mount_opts opts = {};
    ffs_cred cred = {1000, 1000, 0};
    uint64_t fs_bytes = 0;                           // size of the file system; 0: the whole device
    bool data_csum = getenv("DATA_CSUM") != nullptr; // set in a second run of the tests
    bool meta_copies = getenv("META_COPIES") != nullptr; // set in a third run of the tests
    bool check_at_end = true;
};

// Bytes that tell where they belong.
std::string pattern(uint64_t seed, size_t len);

#endif
