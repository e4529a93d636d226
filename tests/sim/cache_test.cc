/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The volatile cache: LBAs that a power cut may lose, and LBAs that it must
 * keep.
 */
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <string>
#include <unistd.h>

#include "sim_test_rig.h"

namespace
{

struct sim_config tracked()
{
    struct sim_config c = small_config();
    c.track_cache = true;
    return c;
}

/* Outcome for a block that was written with one pattern after another. */
enum Fate { KEPT, DROPPED, TORN, OTHER };

Fate fate(Rig &r, uint64_t lba, uint8_t before, uint8_t after)
{
    unsigned char block[4096];
    EXPECT_EQ(sim_peek(r.sim, 1, lba * 4096, block, 4096), 0);
    unsigned olds = 0, news = 0;
    for (int s = 0; s < 8; s++) {
        unsigned char sector[512];
        memset(sector, before, 512);
        olds += memcmp(block + s * 512, sector, 512) == 0;
        memset(sector, after, 512);
        news += memcmp(block + s * 512, sector, 512) == 0;
    }
    if (olds + news != 8)
        return OTHER;
    return news == 8 ? KEPT : olds == 8 ? DROPPED : TORN;
}

struct Cache : ::testing::Test {
    Cache() : r(tracked()), q(&r.create(1, 16)), buf(r.dma(4096)) {}
    void write(uint64_t lba, uint8_t value, bool fua = false)
    {
        memset(buf->addr, value, 4096);
        struct nvme_sqe s = io(NVME_IO_WRITE, lba, 1, buf->iova);
        s.cdw12 |= fua ? NVME_RW_FUA : 0;
        ASSERT_EQ(r.run(*q, s), 0);
    }
    void flush()
    {
        struct nvme_sqe f = {};
        f.nsid = 1;
        ASSERT_EQ(r.run(*q, f), 0);
    }
    void cut(uint64_t seed)
    {
        buf.reset();
        r.power_cut(seed);
    }
    void restart()
    {
        r.attach();
        q = &r.create(1, 16);
        buf = r.dma(4096);
    }
    Rig r;
    Queue *q;
    std::unique_ptr<Dma> buf;
};

TEST_F(Cache, UnflushedWritesHaveEveryOutcomeOverSeeds)
{
    bool seen[4] = {};
    for (uint64_t seed = 0; seed < 5; seed++) {
        for (uint64_t lba = 0; lba < 10; lba++)
            write(lba, 0);
        flush();
        for (uint64_t lba = 0; lba < 10; lba++)
            write(lba, 1);
        cut(seed);
        for (uint64_t lba = 0; lba < 10; lba++)
            seen[fate(r, lba, 0, 1)] = true;
        restart();
    }
    EXPECT_TRUE(seen[KEPT] && seen[DROPPED] && seen[TORN]);
    EXPECT_FALSE(seen[OTHER]);
}

TEST_F(Cache, FlushedDataAndFuaDataAreAlwaysKept)
{
    for (uint64_t seed = 0; seed < 16; seed++) {
        bool fua = seed % 2;
        auto pattern = static_cast<uint8_t>(10 + seed);
        for (uint64_t lba = 0; lba < 10; lba++) {
            write(lba, 1); /* cached, then overwritten */
            write(lba, pattern, fua);
        }
        if (!fua)
            flush();
        cut(seed);
        for (uint64_t lba = 0; lba < 10; lba++)
            EXPECT_EQ(fate(r, lba, 0xee, pattern), KEPT) << seed;
        restart();
    }
}

TEST_F(Cache, ManyWritesBetweenFlushesAreAllTracked)
{
    for (int round = 0; round < 4; round++) {
        for (uint64_t lba = 0; lba < 300; lba += 1 + round)
            write(lba, static_cast<uint8_t>(round + 1), round == 2);
    }
    cut(3);
    for (uint64_t lba = 1; lba < 300; lba += 12) /* written in the first round only */
        EXPECT_NE(fate(r, lba, 0, 1), OTHER);
}

TEST_F(Cache, ShutdownFlushes)
{
    write(3, 7);
    r.write32(NVME_REG_CC, r.read32(NVME_REG_CC) | NVME_CC_SHN_ORDERLY);
    EXPECT_EQ(r.read32(NVME_REG_CSTS) & NVME_CSTS_SHST_BITS, NVME_CSTS_SHST_COMPLETE);
    cut(0);
    EXPECT_EQ(fate(r, 3, 0, 7), KEPT);
}

TEST_F(Cache, TheSameSeedHasTheSameOutcome)
{
    std::string outcomes[2];
    for (auto &outcome : outcomes) {
        for (uint64_t lba = 0; lba < 20; lba++)
            write(lba, 0);
        flush();
        for (uint64_t lba = 20; lba-- > 0;)
            write(lba, 1);
        cut(99);
        for (uint64_t lba = 0; lba < 20; lba++)
            outcome += static_cast<char>('0' + fate(r, lba, 0, 1));
        restart();
    }
    EXPECT_EQ(outcomes[0], outcomes[1]);
}

TEST_F(Cache, RegistersReadAllOnesWithoutPower)
{
    ASSERT_EQ(sim_power_cut(r.sim, 1), 0);
    EXPECT_EQ(r.read32(NVME_REG_CSTS), UINT32_MAX);
    EXPECT_EQ(r.read64(NVME_REG_CAP), UINT64_MAX);
    r.doorbell(1, false, 3);
    EXPECT_TRUE(r.quiet(*q));
}

TEST(CacheOff, PowerCutNeedsTracking)
{
    Rig r(small_config());
    EXPECT_EQ(sim_power_cut(r.sim, 1), -EINVAL);
}

struct Image {
    Image()
    {
        char name[] = "/tmp/sim-image-XXXXXX";
        int fd = mkstemp(name);
        EXPECT_EQ(ftruncate(fd, 1 << 20), 0);
        close(fd);
        path = name;
    }
    ~Image() { unlink(path.c_str()); }
    struct sim_config config()
    {
        struct sim_config c = small_config();
        c.ns[0].path = path.c_str();
        c.ns[0].bytes = 0;
        return c;
    }
    std::string path;
};

TEST(MediaFile, IsLockedExclusively)
{
    Image image;
    Rig r(image.config());
    struct sim_config second = image.config();
    struct sim *s;
    struct nvme_transport *t;
    EXPECT_EQ(sim_create(&second, &s, &t), -EBUSY);
    second.ns[0].read_only = true;
    EXPECT_EQ(sim_create(&second, &s, &t), -EBUSY);
}

TEST(MediaFile, SharedControllersSeeEachOthersWrites)
{
    Image image;
    struct sim_config c = image.config();
    c.ns[0].shared = true;
    Rig a(c), b(c);
    Queue &qa = a.create(1, 8), &qb = b.create(1, 8);
    auto from = a.dma(4096), to = b.dma(4096);
    fill(from->addr, 4096, 5);
    ASSERT_EQ(a.run(qa, io(NVME_IO_WRITE, 9, 1, from->iova)), 0);
    ASSERT_EQ(b.run(qb, io(NVME_IO_READ, 9, 1, to->iova)), 0);
    EXPECT_TRUE(holds(to->addr, 4096, 5));
    struct sim_config alone = image.config();
    struct sim *s;
    struct nvme_transport *t;
    EXPECT_EQ(sim_create(&alone, &s, &t), -EBUSY);
}

TEST(MediaFile, RefusesInvalidConfigurations)
{
    struct sim *s;
    struct nvme_transport *t;
    Image image;
    struct sim_config c = image.config();
    c.ns[0].bytes = 2 << 20; /* larger than the file */
    EXPECT_EQ(sim_create(&c, &s, &t), -EINVAL);
    c = small_config();
    c.ns[0].path = "/nonexistent/image";
    EXPECT_EQ(sim_create(&c, &s, &t), -ENOENT);
    c = small_config();
    c.ns[0].lba_size = 1024;
    EXPECT_EQ(sim_create(&c, &s, &t), -EINVAL);
    c = small_config();
    for (unsigned mdts : {4096u, 3 * 4096u, 16u << 20}) {
        c.mdts = mdts; /* one page would be reported as "no limit" */
        EXPECT_EQ(sim_create(&c, &s, &t), -EINVAL) << mdts;
    }
    c = small_config();
    c.ns[0].bytes = 0;
    EXPECT_EQ(sim_create(&c, &s, &t), -EINVAL);
}

} // namespace
