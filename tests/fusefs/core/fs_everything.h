/* SPDX-License-Identifier: BSD-2-Clause */
// A file system with every kind of metadata in chunks, for tests that damage it.
#ifndef TESTS_FUSEFS_CORE_FS_EVERYTHING_H
#define TESTS_FUSEFS_CORE_FS_EVERYTHING_H

#include <unistd.h>

#include <map>
#include <string>

#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/image_check.h"
#include "tests/printed.h"

// The interface is C11; its atomic members, which tests do not touch, have the size of plain ones.
extern "C" {
#define _Atomic
#include "fusefs/core/storage.h"
#undef _Atomic
}

using BadPlace = struct ffs_scrub::ffs_scrub_block;

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
    void expect_everything()
    {
        ASSERT_EQ(mount(), 0);
        EXPECT_EQ(read_everything(), 0);
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
    struct ffs_metadata_counts counts()
    {
        struct ffs_metadata_counts c;
        ::ffs_metadata_counts(fs, &c);
        return c;
    }
    struct ffs_scrub_counts scrub_counts()
    {
        struct ffs_scrub_counts c;
        ::ffs_scrub_counts(fs, &c);
        return c;
    }
    // Scrubs in the background until so many passes are complete.
    void scrub(uint64_t passes = 1, uint64_t bytes_per_s = 1ull << 40)
    {
        const uint64_t hour_ms = 3600000;
        passes += scrub_counts().passes;
        ASSERT_EQ(ffs_scrub_start(fs, bytes_per_s, passes > 1 ? 0 : hour_ms), 0);
        while (scrub_counts().passes < passes)
            usleep(200);
        ffs_scrub_stop(fs);
    }
    // Scrubs metadata from a position on. Returns the bad places by their block, and adds the
    // blocks that match and the chunks that got a second place.
    std::map<uint64_t, BadPlace> scrub_on_request(uint64_t from = 0, uint64_t *matching = nullptr,
                                                  uint64_t *added = nullptr)
    {
        std::map<uint64_t, BadPlace> bad;
        struct ffs_scrub found = {};
        found.next = from;
        do {
            EXPECT_EQ(ffs_scrub_metadata(fs, found.next, &found), 0);
            EXPECT_EQ(found.without, 0u);
            if (matching)
                *matching += found.matching;
            if (added)
                *added += found.added;
            for (size_t i = 0; i < found.nbad; i++)
                bad[found.bad[i].device / 4096] = found.bad[i];
        } while (found.next != 0);
        return bad;
    }
    // Runs fsck -p -f in this process, because the device plays its errors here. Stores what fsck
    // prints.
    int64_t preen(std::string *said)
    {
        int64_t problems = 0;
        *said = printed_by([&] { problems = image_preen(device.dev()); });
        return problems;
    }
};

#endif
