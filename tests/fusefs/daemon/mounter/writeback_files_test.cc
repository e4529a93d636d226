/* SPDX-License-Identifier: BSD-2-Clause */
// Tests which files the mounter syncs at the end of a mount.
#include <cerrno>
#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/e2e/mounted.h"

extern "C" {
#include "fusefs/daemon/mounter/writeback.h"
}

namespace
{

constexpr uint64_t NOWHERE = 12345; // the number of an inode that is not in use

int write_back(Mounted *m, const std::vector<uint64_t> &inodes)
{
    auto *targets = static_cast<sync_target *>(calloc(inodes.size(), sizeof(sync_target)));
    for (size_t i = 0; i < inodes.size(); i++)
        targets[i].ino = inodes[i];
    return writeback_files(m->mountpoint().c_str(), targets, inodes.size(), 30);
}

TEST(WritebackFiles, ReturnsTheErrorOfAnyFile)
{
    Mounted m(64 << 20);
    ASSERT_TRUE(m.mount());
    struct stat root;
    ASSERT_EQ(stat(m.mountpoint().c_str(), &root), 0);
    EXPECT_EQ(write_back(&m, {root.st_ino, root.st_ino}), 0);
    EXPECT_EQ(write_back(&m, {NOWHERE, root.st_ino}), -ESTALE);
    EXPECT_EQ(write_back(&m, {root.st_ino, NOWHERE}), -ESTALE);
    EXPECT_TRUE(m.unmount());
    EXPECT_EQ(write_back(&m, {NOWHERE}), 0) << "nothing is mounted";
}

} // namespace
