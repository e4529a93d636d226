/* SPDX-License-Identifier: BSD-2-Clause */
/* mkfs_lay_out() and mkfs_format(), which need no more than a device. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "layout/label.h"
#include "mkfs/mkfs_core.h"
#include "tests/test_device.h"

namespace
{

/* --- mkfs_lay_out ----------------------------------------------------------------------------- */

struct Format : ::testing::Test {
    mkfs_params params{};
    mkfs_plan plan;
};

struct Plans : Format, ::testing::WithParamInterface<uint64_t> {
};

TEST_P(Plans, IsAGeometryThatTheChecksAccept)
{
    params.uuid[0] = 1;
    ASSERT_EQ(mkfs_lay_out(&params, GetParam(), &plan), 0);
    uint64_t len = uint64_t{LAY_SEGMENT_BLOCKS} << plan.geo.chunk_shift;
    EXPECT_EQ(plan.chunks, 1 + plan.geo.reserve);
    for (uint32_t i = 0; i < plan.chunks; i++) {
        EXPECT_EQ(plan.chunk_starts[i] % LAY_SEGMENT_BLOCKS, 0u);
        EXPECT_TRUE(lay_range_ok(&plan.geo, plan.chunk_starts[i], len));
    }
    EXPECT_LE(plan.geo.log_blocks, plan.geo.blocks / 16);
    EXPECT_GE(plan.geo.log_blocks, LAY_MIN_LOG);
}

/*
 * Adds the second places, which are in the second half of the device, and
 * returns their number.
 */
unsigned add_copies(const mkfs_plan &plan, std::map<uint64_t, uint64_t> &areas)
{
    const lay_geometry &geo = plan.geo;
    const size_t before = areas.size();
    areas[geo.map_copy] = geo.map_len;
    areas[geo.bitmap_copy] = geo.bitmap_len;
    areas[geo.log_copy] = geo.log_blocks;
    if (geo.sums_len)
        areas[geo.sums_copy] = geo.sums_len;
    for (uint32_t i = 0; i < plan.chunks; i++)
        areas[plan.chunk_copies[i]] = uint64_t{LAY_SEGMENT_BLOCKS} << geo.chunk_shift;
    EXPECT_GT(geo.map_copy, geo.supers[1]);
    EXPECT_GT(geo.log_copy, geo.supers[1]);
    EXPECT_EQ(areas.size() - before, (geo.sums_len ? 4u : 3u) + plan.chunks);
    return (geo.sums_len ? 4u : 3u) + plan.chunks;
}

TEST_P(Plans, HasAreasThatDoNotOverlapAndCountsTheRestAsFree)
{
    for (unsigned features = 0; features < 4; features++) {
        const bool data_csum = features & 1, copies = features & 2;
        params.data_csum = data_csum;
        params.meta_copies = copies;
        ASSERT_EQ(mkfs_lay_out(&params, GetParam(), &plan), 0);
        const lay_geometry &geo = plan.geo;
        std::map<uint64_t, uint64_t> areas = {{0, 1},
                                              {LAY_MMP_BLOCK, 1},
                                              {LAY_LABEL_SECOND, 1},
                                              {geo.supers[0], 1},
                                              {geo.supers[1], 1},
                                              {geo.bitmap_start, geo.bitmap_len},
                                              {geo.log_start, geo.log_blocks},
                                              {geo.map_start, geo.map_len}};
        if (data_csum)
            areas[geo.sums_start] = geo.sums_len;
        for (uint32_t i = 0; i < plan.chunks; i++)
            areas[plan.chunk_starts[i]] = uint64_t{LAY_SEGMENT_BLOCKS} << geo.chunk_shift;
        unsigned count = (data_csum ? 9u : 8u) + plan.chunks;
        if (copies)
            count += add_copies(plan, areas);
        EXPECT_EQ(areas.size(), count);
        uint64_t end = 0, used = 0;
        for (const auto &[start, len] : areas) {
            EXPECT_GE(start, end);
            end = start + len;
            used += len;
        }
        EXPECT_LE(end, geo.blocks);
        EXPECT_EQ(plan.free_blocks, geo.blocks - used);
    }
}

const uint64_t GROUP_BYTES = uint64_t{LAY_GROUP_BLOCKS} << LAY_BLOCK_SHIFT;
INSTANTIATE_TEST_SUITE_P(Sizes, Plans,
                         ::testing::Values(MKFS_MIN_BYTES, MKFS_MIN_BYTES + 511, GROUP_BYTES - 4096,
                                           GROUP_BYTES, GROUP_BYTES + 4096, 2 * GROUP_BYTES,
                                           uint64_t{1} << 40, uint64_t{1} << 47,
                                           uint64_t{LAY_MAX_BLOCKS} << 12));

using Plan = Format;

TEST_F(Plan, LeavesTheDocumentedPartOfASmallFileSystemForData)
{
    params.data_csum = true;
    ASSERT_EQ(mkfs_lay_out(&params, MKFS_MIN_BYTES, &plan), 0);
    EXPECT_EQ(plan.free_blocks, 2803u);
    EXPECT_EQ(plan.chunk_starts[0], LAY_SEGMENT_BLOCKS);
    EXPECT_EQ(plan.chunk_starts[1], 2 * LAY_SEGMENT_BLOCKS);
}

TEST_F(Plan, HasRoomForChunksBehindTheLargestLog)
{
    params.log_blocks = 1024;
    ASSERT_EQ(mkfs_lay_out(&params, MKFS_MIN_BYTES, &plan), 0);
    EXPECT_EQ(plan.chunk_starts[0], 3 * LAY_SEGMENT_BLOCKS);
    EXPECT_EQ(plan.chunk_starts[1], 5 * LAY_SEGMENT_BLOCKS) << "behind label and superblock";
}

TEST_F(Plan, HasSegmentsOfAChunkBehindEachOther)
{
    ASSERT_EQ(mkfs_lay_out(&params, uint64_t{1} << 48, &plan), 0);
    ASSERT_EQ(plan.geo.chunk_shift, 2u);
    EXPECT_EQ(mkfs_segment_start(&plan, 0), plan.chunk_starts[0]);
    EXPECT_EQ(mkfs_segment_start(&plan, 7), plan.chunk_starts[1] + 3 * LAY_SEGMENT_BLOCKS);
}

struct Free {
    void operator()(void *memory) const { free(memory); }
};

/*
 * Implements a device in memory that inverts a byte of each write to one of its blocks. calloc()
 * returns zeros without touching them, so that only pages in use cost a page fault.
 */
struct Wrong : TestDevice {
    std::unique_ptr<uint8_t[], Free> bytes{static_cast<uint8_t *>(calloc(size(), 1))};
    std::vector<uint64_t> written; /* blocks */
    uint64_t block;

    explicit Wrong(uint64_t wrong = UINT64_MAX, uint64_t size = MKFS_MIN_BYTES)
        : TestDevice(size, 4096), block(wrong)
    {
    }

    void write(const bd_io &io)
    {
        memcpy(&bytes[io.offset], io.buf, io.len);
        for (uint64_t at = io.offset; at < io.offset + io.len; at += 4096) {
            written.push_back(at / 4096);
            bytes[at] ^= at / 4096 == block ? 0xff : 0;
        }
    }

    int transfer(bd_io *io) override
    {
        if (io->op == BD_READ)
            memcpy(io->buf, &bytes[io->offset], io->len);
        else if (io->op == BD_WRITE)
            write(*io);
        return 0;
    }

    /* Is there a label, in one of its places? */
    bool mountable()
    {
        const lay_io io = {[](void *arg, uint64_t block, void *data) {
                               memcpy(data, &static_cast<Wrong *>(arg)->bytes[block * 4096], 4096);
                               return 0;
                           },
                           nullptr, nullptr, this};
        lay_labels labels;

        return lay_labels_read(&io, size() / 4096, true, &labels) == 0;
    }
};

// A drive on which pages 4 and 5 of each command change places, of writes and of reads; a command
// has 32 pages at most.
struct Swapping : Wrong {
    int transfer(bd_io *io) override
    {
        Wrong::transfer(io);
        swap(*io);
        return 0;
    }
    void swap(const bd_io &io)
    {
        if (io.op != BD_WRITE && io.op != BD_READ)
            return;
        uint8_t *data = io.op == BD_WRITE ? &bytes[io.offset] : static_cast<uint8_t *>(io.buf);
        for (size_t at = 0; at + 6 * 4096 <= io.len; at += 32 * 4096)
            std::swap_ranges(data + at + 4 * 4096, data + at + 5 * 4096, data + at + 5 * 4096);
    }
};

/*
 * What a device held before is not read, because the ages of those blocks are 0. fsck checks the
 * written blocks (mkfs_test.cc).
 */
TEST_F(Format, WritesNoBlockThatIsNew)
{
    params.data_csum = true;
    for (uint64_t bytes : {uint64_t{MKFS_MIN_BYTES}, MKFS_MIN_BYTES + 5000, 3 * GROUP_BYTES}) {
        Wrong dev(UINT64_MAX, bytes);
        ASSERT_EQ(mkfs_format(dev.dev(), &params, &plan), 0);
        const std::set<uint64_t> written(dev.written.begin(), dev.written.end());
        const lay_geometry &geo = plan.geo;
        for (uint64_t i = 0; i < geo.sums_len; i++)
            EXPECT_EQ(written.count(geo.sums_start + i), 0u) << i;
        for (uint64_t i = 1; i < geo.map_blocks; i++)
            EXPECT_EQ(written.count(geo.map_start + i), 0u) << i;
    }
}

TEST_F(Format, ADriveThatReordersPagesIsDetected)
{
    Swapping dev;
    EXPECT_EQ(mkfs_format(dev.dev(), &params, &plan), -EUCLEAN);
    EXPECT_FALSE(dev.mountable());
}

// So that a mount's self-test sees which page is where.
TEST_F(Format, NoTwoPagesAtTheStartOfTheLogAreEqual)
{
    Wrong dev;
    std::set<std::string> seen;
    ASSERT_EQ(mkfs_format(dev.dev(), &params, &plan), 0);
    uint64_t n = std::min<uint64_t>(plan.geo.log_blocks, 1024);
    for (uint64_t i = 0; i < n; i++) {
        const auto *page =
            reinterpret_cast<const char *>(&dev.bytes[(plan.geo.log_start + i) * 4096]);
        seen.insert(std::string(page + 2048, 2048));
    }
    EXPECT_EQ(seen.size(), n);
}

int checks_left;

TEST_F(Format, AFailureLeavesNothingThatCanBeMounted)
{
    Wrong good;
    params.uuid[0] = 1;
    ASSERT_EQ(mkfs_format(good.dev(), &params, &plan), 0);
    ASSERT_TRUE(good.mountable());
    for (uint64_t block : std::set<uint64_t>(good.written.begin(), good.written.end())) {
        Wrong bad(block);
        EXPECT_EQ(mkfs_format(bad.dev(), &params, &plan), -EUCLEAN) << block;
        EXPECT_FALSE(bad.mountable()) << block;
    }
}

// An older file system stays whole until something is written.
TEST_F(Format, AnInterruptionLeavesNothingThatCanBeMountedOrTheOlderFileSystem)
{
    mkfs_params old{};
    Wrong before;
    old.uuid[0] = 2;
    params.uuid[0] = 1;
    params.interrupted = [] { return checks_left-- <= 0; };
    for (bool over : {false, true}) {
        if (over) {
            ASSERT_EQ(mkfs_format(before.dev(), &old, &plan), 0);
        }
        for (int checks = 0, err = -EINTR; err; checks++) {
            Wrong dev;
            memcpy(dev.bytes.get(), before.bytes.get(), dev.size());
            checks_left = checks;
            err = mkfs_format(dev.dev(), &params, &plan);
            ASSERT_TRUE(err == 0 || err == -EINTR) << err;
            bool is_old = over && memcmp(dev.bytes.get(), before.bytes.get(), dev.size()) == 0;
            EXPECT_EQ(dev.mountable(), err == 0 || is_old) << checks;
        }
    }
}

/* The identifiers that nobody gives follow from the hash seed, and differ from each other. */
TEST_F(Format, IdentifiersAreDerivedFromTheParameters)
{
    std::set<std::string> seen;
    params.uuid[0] = 7;
    for (int round = 0; round < 4; round++) {
        params.hash_seed[0] = round == 1;
        params.time_sec = round == 2;
        params.uuid[1] = round == 3;
        Wrong dev;
        ASSERT_EQ(mkfs_format(dev.dev(), &params, &plan), 0);
        const auto *label = reinterpret_cast<const lay_label *>(dev.bytes.get());
        EXPECT_EQ(memcmp(label->uuid, params.uuid, 16), 0);
        for (const void *id : {static_cast<const void *>(label->head.uuid),
                               static_cast<const void *>(label->members[0].uuid)})
            EXPECT_TRUE(seen.insert(std::string(static_cast<const char *>(id), 16)).second);
        for (const le64 &id : {label->log_id, label->incarnation.id})
            EXPECT_TRUE(seen.insert(std::string(reinterpret_cast<const char *>(&id), 8)).second);
    }
}

using PlanLimits = Format;

TEST_F(PlanLimits, HaveDistinctErrors)
{
    EXPECT_EQ(mkfs_lay_out(&params, MKFS_MIN_BYTES - 1, &plan), -EINVAL);
    EXPECT_EQ(mkfs_lay_out(&params, (uint64_t{LAY_MAX_BLOCKS} << 12) + 4096, &plan), -EFBIG);
    params.bytes = 2 * MKFS_MIN_BYTES;
    EXPECT_EQ(mkfs_lay_out(&params, MKFS_MIN_BYTES, &plan), -ENOSPC);
    params.bytes = 0;
    params.log_blocks = LAY_MIN_LOG - 1;
    EXPECT_EQ(mkfs_lay_out(&params, MKFS_MIN_BYTES, &plan), -EINVAL);
}

} // namespace
