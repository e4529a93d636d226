/* SPDX-License-Identifier: BSD-2-Clause */
// The storage half on a device in memory.
#ifndef TESTS_FUSEFS_STORAGE_FIXTURE_H
#define TESTS_FUSEFS_STORAGE_FIXTURE_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

// The interface is C11; its atomic members, which tests do not touch, have the size of plain ones.
extern "C" {
#define _Atomic
#include "fusefs/core/alloc/alloc.h"
#include "fusefs/core/data/sums.h"
#include "fusefs/core/journal/journal.h"
#include "fusefs/core/storage.h"
#undef _Atomic
}
#include "tests/fusefs/core/crash_device.h"
#include "tests/fusefs/core/image_check.h"
#include "tests/fusefs/core/image_repair.h"
#include "tests/fusefs/core/inode_ref.h"

using Device = std::unique_ptr<CrashDevice>;

// Makes an empty file system; 0 or -errno.
int storage_format(CrashDevice *d, uint64_t log_blocks);

class StorageTest : public ::testing::Test
{
  protected:
    StorageTest();
    ~StorageTest() override;

  public:
    static const bool meta_copies; // set in a further run of the tests

  protected:
    // A fresh device with a file system, not mounted.
    void make(uint64_t bytes, uint64_t log_blocks, uint32_t lba_size = 512);
    int mount(CrashDevice *d = nullptr);
    int unmount();
    void remount();
    // Unmounts if there is a mount, and expects that fsck finds nothing.
    void expect_sound();
    int commit() { return ffs_commit(fs, ffs_running_tid(fs)); }

    // Commits so that what has been freed can be allocated again.
    int commit_freed() { return ffs_commit_freed(fs); }
    // The geometry of the file system on a device, from what is in place.
    static lay_geometry geometry_of(CrashDevice *d);
    // The first place of the superblock.
    static lay_super *super_of(CrashDevice *d);
    // The newest commit of the log.
    static lay_log_commit *newest_of(CrashDevice *d);
    // What a failed medium may do to one of two logs, the first (1) or the second one (2), and not
    // to both: zeroes all its blocks, or, if `seed` is odd, some of them. 0 does nothing.
    static void lose_log(CrashDevice *d, unsigned long which, unsigned long seed);

    // Runs body in a handle; ends it when body returns 0, aborts it otherwise.
    int handle(const std::function<int(ffs_tx *)> &body, unsigned credits = 32);
    Inode root();
    // Returns a file of the root directory, or null if there is none.
    Inode lookup(const std::string &name);
    // An empty file of the root directory; referenced.
    int new_file(const char *name, ffs_inode **out);
    int remove_file(const std::string &name);
    // Makes a file of all blocks that data may have, and returns their number.
    uint64_t fill_data(const char *name);
    // A sound inode without a name; referenced.
    int new_inode(ffs_inode **out);
    // A file of the free blocks of group 0 before areas and chunks, which no long range includes.
    void fill_low_blocks();
    int set_uid(uint64_t ino, uint32_t uid);
    // -errno when there is no such inode.
    int64_t uid(uint64_t ino);
    uint64_t free_blocks();
    // Returns the mapped segments of chunks.
    std::set<uint64_t> segments();

    Device dev;
    struct ffs *fs = nullptr;
    ffs_mount_opts opts = {};
    std::string why;
    static thread_local std::vector<std::string> log;
};

#endif
