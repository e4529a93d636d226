/* SPDX-License-Identifier: BSD-2-Clause */
// File data against a string: every alignment, holes, preallocation, truncation.
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "layout/format.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/rounds.h"

class FsData : public FsTest, public ::testing::WithParamInterface<int>
{
  protected:
    FsData() : FsTest(96u << 20, GetParam() % 2 ? 512 : 4096) {}
    void TearDown() override
    {
        file.reset();
        FsTest::TearDown();
    }
    uint64_t pick(uint64_t n) { return rng() % n; }
    // Offsets near edges of blocks and units as often as anywhere.
    uint64_t offset()
    {
        static const uint64_t edges[] = {4096, 512, 65536, 2u << 20};
        uint64_t at = pick(limit);
        if (pick(2) == 0)
            at = at / edges[pick(4)] * edges[pick(4)] + pick(3);
        return std::min(at, limit - 1);
    }
    void step();
    void do_write();
    void do_fallocate();
    void do_map_write();
    void check_read(uint64_t at, size_t len);
    void check_seek();
    void make_file(bool gpu_bound);
    void run(int steps);

    std::mt19937_64 rng{static_cast<uint64_t>(GetParam())};
    uint64_t limit = 9u << 20;
    std::string model;
    Inode file;
};

void FsData::make_file(bool gpu_bound)
{
    file = create("f");
    if (gpu_bound) {
        ffs_attr a = {};
        a.flags = LAY_INODE_GPU_BOUND;
        ASSERT_EQ(ffs_setattr(file, &a, FFS_SET_FLAGS, nullptr), 0);
    }
}

void FsData::do_write()
{
    uint64_t at = offset();
    std::string bytes = pattern(rng(), 1 + pick(pick(4) ? 20000 : 3000000));
    bytes.resize(std::min<uint64_t>(bytes.size(), limit - at));
    ASSERT_EQ(write(file, at, bytes), static_cast<ssize_t>(bytes.size()));
    if (model.size() < at + bytes.size())
        model.resize(at + bytes.size());
    model.replace(at, bytes.size(), bytes);
}

void FsData::do_fallocate()
{
    static const uint32_t modes[] = {
        0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
        FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE};
    uint32_t mode = modes[pick(5)];
    uint64_t at = offset(), len = std::min(1 + pick(3000000), limit - at);
    ASSERT_EQ(ffs_fallocate(file, mode, at, len), 0);
    if (!(mode & FALLOC_FL_KEEP_SIZE) && model.size() < at + len)
        model.resize(at + len);
    if ((mode & ~FALLOC_FL_KEEP_SIZE) && at < model.size())
        std::fill_n(model.begin() + static_cast<ssize_t>(at), std::min(len, model.size() - at), 0);
    // Most of the file is zeros before long: a fault at an edge has to be seen at once.
    for (uint64_t edge : {at, at + len})
        check_read(edge - std::min<uint64_t>(edge, 5000), 10000);
}

// What the GPU path does, with a copy to the device's memory in the GPU's place. A transfer that
// stops early leaves everything behind that point as it was.
void FsData::do_map_write()
{
    uint64_t at = offset() & ~4095ull;
    std::string bytes = pattern(rng(), (1 + pick(100)) * 4096);
    uint64_t done = pick(2) ? bytes.size() : pick(bytes.size());
    ffs_map map;
    ASSERT_EQ(ffs_map_write(file, at, bytes.size(), &map), 0);
    for (size_t i = 0; i < map.count; i++) {
        uint64_t skip = map.segments[i].offset - at;
        ASSERT_NE(map.segments[i].device, FFS_HOLE);
        if (skip < done)
            memcpy(device.bytes() + map.segments[i].device, bytes.data() + skip,
                   std::min(map.segments[i].len, done - skip));
    }
    ASSERT_EQ(ffs_map_write_end(&map, done, nullptr), 0);
    if (done && model.size() < at + done)
        model.resize(at + done);
    model.replace(std::min<size_t>(at, model.size()), done, bytes, 0, done);
}

void FsData::check_read(uint64_t at, size_t len)
{
    std::string want = at < model.size() ? model.substr(at, len) : "";
    ASSERT_TRUE(read(file, at, len) == want) << at << " " << len << " of " << model.size();
}

// Between SEEK_HOLE and SEEK_DATA everything reads as zeros, and positions go up.
void FsData::check_seek()
{
    uint64_t at = offset();
    int64_t data = ffs_seek(file, at, SEEK_DATA), hole = ffs_seek(file, at, SEEK_HOLE);
    if (at >= model.size()) {
        EXPECT_EQ(data, -ENXIO);
        EXPECT_EQ(hole, -ENXIO);
        return;
    }
    uint64_t stop = data == -ENXIO ? model.size() : static_cast<uint64_t>(data);
    ASSERT_GE(stop, at);
    EXPECT_EQ(model.find_first_not_of('\0', at) < stop, false);
    EXPECT_GE(hole, static_cast<int64_t>(at));
    EXPECT_LE(hole, static_cast<int64_t>(model.size()));
}

void FsData::step()
{
    uint64_t at = offset();
    switch (pick(8)) {
    case 0:
    case 1:
    case 2:
        return do_write();
    case 3:
        ASSERT_EQ(truncate(file, at), 0);
        model.resize(at);
        return;
    case 4:
        return do_fallocate();
    case 5:
        return check_seek();
    default:
        return check_read(at, 1 + pick(100000));
    }
}

void FsData::run(int steps)
{
    for (int i = 0; i < steps && !HasFailure(); i++)
        step();
    ASSERT_EQ(attr(file).size, model.size());
    check_read(0, model.size() + 1);
    remount(file, "f");
    check_read(0, model.size() + 1);
}

TEST_P(FsData, RandomChangesReadBack)
{
    make_file(false);
    run(300);
    run(300);
}

TEST_P(FsData, RandomChangesOfAGpuBoundFileReadBack)
{
    make_file(true);
    run(150);
    ffs_segment s[64];
    ssize_t n = ffs_extents(file, 0, s, 64);
    for (ssize_t i = 0; i < n; i++) {
        EXPECT_EQ(s[i].offset % (2u << 20), 0u);
        if (s[i].device == FFS_HOLE)
            continue;
        EXPECT_EQ(s[i].len % (2u << 20), 0u);
        EXPECT_EQ(s[i].device % (2u << 20), 0u);
    }
}

TEST_P(FsData, MapsForWritingChangeOnlyTheirRange)
{
    make_file(GetParam() % 2);
    for (int i = 0; i < 20 && !HasFailure(); i++) {
        do_write();
        do_map_write();
        check_read(0, limit + 1);
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, FsData, ::testing::Range(1, 1 + test_rounds(4, 24)));
