/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * All forms of data pointers, namespaces, block sizes, and commands without
 * data.
 */
#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>
#include <nvme/types.h>

#include "sim_test_rig.h"

namespace
{

struct Data : ::testing::Test {
    explicit Data(struct sim_config c = small_config())
        : r(c), q(r.create(1, 16)), buf(r.dma(2 << 20)), list(r.dma(64 << 10))
    {
    }
    void seed_media(size_t lbas)
    {
        media.resize(lbas * 4096);
        fill(media.data(), media.size(), 42);
        for (size_t l = 0; l < lbas; l++) {
            memcpy(buf->addr, media.data() + l * 4096, 4096);
            ASSERT_EQ(r.run(q, io(NVME_IO_WRITE, l, 1, buf->iova)), 0);
        }
        memset(buf->addr, 0xee, buf->len);
    }
    struct nvme_sqe sgl(uint64_t lba, uint32_t lbas, struct nvme_sgl_desc d)
    {
        struct nvme_sqe s = io(NVME_IO_READ, lba, lbas, 0);
        s.flags = NVME_PSDT_SGL;
        memcpy(&s.prp1, &d, sizeof(d));
        return s;
    }
    Rig r;
    Queue &q;
    std::unique_ptr<Dma> buf, list;
    std::vector<unsigned char> media;
};

struct nvme_sgl_desc desc(uint8_t type, uint64_t addr, uint32_t len)
{
    struct nvme_sgl_desc d = {};
    d.type = type;
    d.addr = addr;
    d.length = len;
    return d;
}

TEST_F(Data, TwoPagesUsePrp2)
{
    seed_media(2);
    ASSERT_EQ(r.run(q, io(NVME_IO_READ, 0, 2, buf->iova + 8192, buf->iova)), 0);
    EXPECT_EQ(memcmp(buf->addr + 8192, media.data(), 4096), 0);
    EXPECT_EQ(memcmp(buf->addr, media.data() + 4096, 4096), 0);
}

TEST_F(Data, Prp1MayStartInsideAPage)
{
    seed_media(1);
    ASSERT_EQ(r.run(q, io(NVME_IO_READ, 0, 1, buf->iova + 100, buf->iova + 4096)), 0);
    EXPECT_EQ(memcmp(buf->addr + 100, media.data(), 4096), 0);
    EXPECT_EQ(buf->addr[99], 0xee);
    EXPECT_EQ(buf->addr[4196], 0xee);
}

TEST_F(Data, ListScattersPages)
{
    seed_media(16);
    for (int i = 1; i < 16; i++)
        list->as<uint64_t>(32)[i - 1] = buf->iova + (16 - i) * 8192;
    ASSERT_EQ(r.run(q, io(NVME_IO_READ, 0, 16, buf->iova, list->iova + 32)), 0);
    for (int i = 0; i < 16; i++)
        EXPECT_EQ(memcmp(buf->addr + (i ? 16 - i : 0) * 8192, media.data() + i * 4096, 4096), 0);
}

TEST_F(Data, ListChainsAtTheEndOfItsPage)
{
    seed_media(8);
    auto *first = list->as<uint64_t>() + 509, *second = list->as<uint64_t>(8192);
    for (int i = 1; i < 8; i++)
        (i <= 2 ? first + (i - 1) : second + (i - 3))[0] = buf->iova + i * 8192;
    first[2] = list->iova + 8192;
    ASSERT_EQ(r.run(q, io(NVME_IO_READ, 0, 8, buf->iova, list->iova + 509 * 8)), 0);
    for (int i = 0; i < 8; i++)
        EXPECT_EQ(memcmp(buf->addr + i * 8192, media.data() + i * 4096, 4096), 0);
}

TEST_F(Data, LastEntryOfAPageIsDataWhenNothingFollows)
{
    seed_media(3);
    auto *e = list->as<uint64_t>() + 510;
    e[0] = buf->iova + 4096;
    e[1] = buf->iova + 8192;
    ASSERT_EQ(r.run(q, io(NVME_IO_READ, 0, 3, buf->iova, list->iova + 510 * 8)), 0);
    EXPECT_EQ(memcmp(buf->addr, media.data(), 3 * 4096), 0);
}

TEST_F(Data, SglOfOneBlockIsAccepted)
{
    seed_media(4);
    ASSERT_EQ(r.run(q, sgl(0, 4, desc(NVME_SGL_DATA_BLOCK, buf->iova + 3, 16384))), 0);
    EXPECT_EQ(memcmp(buf->addr + 3, media.data(), 16384), 0);
}

TEST_F(Data, SglSegmentsMayBeChained)
{
    seed_media(2);
    auto *a = list->as<struct nvme_sgl_desc>(), *b = list->as<struct nvme_sgl_desc>(4096);
    a[0] = desc(NVME_SGL_DATA_BLOCK, buf->iova, 1000);
    a[1] = desc(NVME_SGL_LAST_SEGMENT, list->iova + 4096, 32);
    b[0] = desc(NVME_SGL_DATA_BLOCK, buf->iova + 5000, 0);
    b[1] = desc(NVME_SGL_DATA_BLOCK, buf->iova + 1000, 7192);
    ASSERT_EQ(r.run(q, sgl(0, 2, desc(NVME_SGL_SEGMENT, list->iova, 32))), 0);
    EXPECT_EQ(memcmp(buf->addr, media.data(), 8192), 0);
}

TEST_F(Data, SglMistakesAreReported)
{
    auto *a = list->as<struct nvme_sgl_desc>();
    a[0] = desc(NVME_SGL_DATA_BLOCK, buf->iova, 4096);
    struct {
        struct nvme_sgl_desc d;
        uint16_t status;
    } cases[] = {
        {desc(NVME_SGL_DATA_BLOCK, buf->iova, 4000), NVME_ERR_INVALID_SGL_LENGTH},
        {desc(NVME_SGL_DATA_BLOCK, buf->iova, 5000), NVME_ERR_INVALID_SGL_LENGTH},
        {desc(0x10, buf->iova, 4096), NVME_ERR_INVALID_SGL_TYPE},
        {desc(0x01, buf->iova, 4096), NVME_ERR_INVALID_SGL_TYPE},
        {desc(NVME_SGL_LAST_SEGMENT, list->iova, 15), NVME_ERR_INVALID_SGL_SEGMENT},
        {desc(NVME_SGL_LAST_SEGMENT, list->iova, 0), NVME_ERR_INVALID_SGL_SEGMENT},
        {desc(NVME_SGL_SEGMENT, list->iova, 16), NVME_ERR_INVALID_SGL_SEGMENT},
    };
    for (auto &c : cases) {
        EXPECT_EQ(r.run(q, sgl(0, 1, c.d)), c.status);
        EXPECT_TRUE(r.only(SIM_EV_SGL_INVALID));
    }
}

TEST_F(Data, SglThatNeverEndsIsRefused)
{
    *list->as<struct nvme_sgl_desc>() = desc(NVME_SGL_SEGMENT, list->iova, 16);
    EXPECT_EQ(r.run(q, sgl(0, 1, desc(NVME_SGL_SEGMENT, list->iova, 16))),
              NVME_ERR_INVALID_SGL_COUNT);
}

TEST_F(Data, WriteZeroesAndDeallocateReadAsZeros)
{
    seed_media(8);
    struct nvme_sqe wz = io(NVME_IO_WRITE_ZEROES, 1, 2, 0);
    ASSERT_EQ(r.run(q, wz), 0);
    auto *range = list->as<struct nvme_dsm_range>();
    range[0] = {0, 1, 4};
    range[1] = {0, 2, 6};
    struct nvme_sqe dsm = io(NVME_IO_DSM, 0, 1, list->iova);
    dsm.cdw10 = 1;
    dsm.cdw11 = NVME_DSM_DEALLOCATE;
    ASSERT_EQ(r.run(q, dsm), 0);
    for (int l : {0, 1, 2, 3, 4, 5, 6, 7}) {
        ASSERT_EQ(r.run(q, io(NVME_IO_READ, l, 1, buf->iova)), 0);
        bool zero = l == 1 || l == 2 || l == 4 || l >= 6;
        for (int i = 0; i < 4096; i++)
            ASSERT_EQ(buf->addr[i], zero ? 0 : media[l * 4096 + i]) << l;
    }
}

TEST(DataNamespaces, HaveTheirOwnMediaAndBlockSize)
{
    struct sim_config c = small_config();
    c.namespaces = 2;
    c.ns[1].bytes = 1 << 20;
    c.ns[1].lba_size = 512;
    Rig r(c);
    Queue &q = r.create(1, 8);
    auto a = r.dma(4096), b = r.dma(4096);
    fill(a->addr, 4096, 1);
    fill(b->addr, 4096, 2);
    struct nvme_sqe second = io(NVME_IO_WRITE, 8, 8, b->iova);
    second.nsid = 2;
    ASSERT_EQ(r.run(q, io(NVME_IO_WRITE, 1, 1, a->iova)), 0);
    ASSERT_EQ(r.run(q, second), 0);
    unsigned char seen[4096];
    ASSERT_EQ(sim_peek(r.sim, 1, 4096, seen, 4096), 0);
    EXPECT_TRUE(holds(seen, 4096, 1));
    ASSERT_EQ(sim_peek(r.sim, 2, 4096, seen, 4096), 0);
    EXPECT_TRUE(holds(seen, 4096, 2));
    EXPECT_EQ(sim_peek(r.sim, 2, 1 << 20, seen, 1), -EINVAL);
}

TEST(DataNamespaces, ReadOnlyRefusesWrites)
{
    struct sim_config c = small_config();
    c.ns[0].read_only = true;
    Rig r(c);
    Queue &q = r.create(1, 8);
    auto a = r.dma(4096);
    EXPECT_EQ(r.run(q, io(NVME_IO_WRITE, 0, 1, a->iova)), 0x20);
    EXPECT_EQ(r.run(q, io(NVME_IO_READ, 0, 1, a->iova)), 0);
}

TEST(DataMap, RefusesUnreachableMemory)
{
    Rig r(small_config());
    struct nvme_mem mem = {};
    uint64_t iova;
    mem.len = 4096;
    mem.fd = -1;
    EXPECT_EQ(r.t->ops->map(r.t, &mem, &iova), -EFAULT); /* device memory without a DMA engine */
    alignas(4096) static unsigned char page[8192];
    mem.addr = page + 16;
    EXPECT_EQ(r.t->ops->map(r.t, &mem, &iova), -EINVAL);
    mem.addr = page;
    mem.len = 100;
    EXPECT_EQ(r.t->ops->map(r.t, &mem, &iova), -EINVAL);
    EXPECT_EQ(r.t->ops->unmap(r.t, 0x1000), -ENOENT);
}

/* map() accesses no memory, so addresses without memory serve here. */
struct Fake {
    explicit Fake(Rig &rig, size_t len) : t(rig.t), len(len)
    {
        struct nvme_mem mem = {};
        mem.fd = -1;
        mem.addr = reinterpret_cast<void *>(1ull << 40);
        mem.len = len;
        rc = t->ops->map(t, &mem, &iova);
    }
    ~Fake()
    {
        if (rc == 0) {
            EXPECT_EQ(t->ops->unmap(t, iova), 0);
        }
    }
    bool apart_from(const Fake &other) const
    {
        return iova + len < other.iova || other.iova + other.len < iova;
    }
    struct nvme_transport *t;
    size_t len;
    uint64_t iova = 0;
    int rc;
};

TEST(DataMap, AddressesDoNotRunOut)
{
    Rig r(small_config());
    Fake low(r, 4096), passing(r, 1ull << 50), high(r, 8192);
    uint64_t last = passing.iova;
    for (int i = 0; i < 50; i++) {
        Fake large(r, 1ull << 50), small(r, 4096);
        ASSERT_EQ(large.rc, 0) << i;
        ASSERT_EQ(small.rc, 0) << i;
        for (const Fake *other : {&low, &passing, &high, &small})
            EXPECT_TRUE(large.apart_from(*other)) << i;
        for (const Fake *other : {&low, &passing, &high})
            EXPECT_TRUE(small.apart_from(*other)) << i;
        EXPECT_NE(large.iova, last) << "used again at once";
        last = large.iova;
    }
    EXPECT_EQ(Fake(r, 1ull << 52).rc, -ENOSPC);
}

} // namespace
