/* SPDX-License-Identifier: BSD-2-Clause */
// A file system with every kind of metadata in chunks, for tests that damage it.
#ifndef TESTS_FUSEFS_CORE_FS_EVERYTHING_H
#define TESTS_FUSEFS_CORE_FS_EVERYTHING_H

#include <string>

#include "tests/fusefs/core/fs_fixture.h"

constexpr const char *SLOW = "user.slow"; // an attribute in a block of its own

class FsEverything : public FsTest
{
  protected:
    using FsTest::FsTest;

    // Makes a directory of several blocks, a file of many extents, an attribute and a link.
    void make_everything()
    {
        Inode d = mkdir("dir"), f = create("file"), x = create("attr"), l;
        for (int i = 0; i < 200; i++)
            create(d, "name" + std::to_string(i));
        for (uint64_t i = 0; i < 100; i++)
            write(f, i * 8192, pattern(i, 4096));
        std::string value(3000, 'v'), target(4000, 't');
        EXPECT_EQ(ffs_setxattr(x, SLOW, value.data(), value.size(), 0), 0);
        EXPECT_EQ(ffs_symlink(root, "link", target.c_str(), &cred, l.out()), 0);
    }
    // Reads everything that make_everything() made, and returns the first error.
    int read_everything()
    {
        Inode d, f, x, l;
        char buf[4096];
        int err = ffs_lookup(root, "dir", d.out());
        for (int i = 0; i < 200 && !err; i++)
            err = ffs_lookup(d, ("name" + std::to_string(i)).c_str(), Inode().out());
        if (!err)
            err = ffs_lookup(root, "file", f.out());
        for (uint64_t i = 0; i < 100 && !err; i++) {
            ssize_t n = ffs_read(f, i * 8192, buf, sizeof(buf));
            err = n < 0 ? static_cast<int>(n) : 0;
            EXPECT_TRUE(err || std::string(buf, sizeof(buf)) == pattern(i, 4096));
        }
        if (!err)
            err = ffs_lookup(root, "attr", x.out());
        ssize_t n = err ? err : ffs_getxattr(x, SLOW, buf, sizeof(buf));
        err = n < 0 ? static_cast<int>(n) : ffs_lookup(root, "link", l.out());
        n = err ? err : ffs_readlink(l, buf, sizeof(buf));
        return n < 0 ? static_cast<int>(n) : 0;
    }
    uint8_t *at(uint64_t block)
    {
        return device.bytes() + block * 4096;
    }
};

#endif
