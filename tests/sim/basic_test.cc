/* SPDX-License-Identifier: BSD-2-Clause */
/* Enable, Identify, queues, and data in both directions. */
#include <cstring>
#include <gtest/gtest.h>
#include <nvme/types.h>

#include "sim_test_rig.h"
#include "support/processors.h"

TEST(SimBasic, CapabilitiesReflectTheConfiguration)
{
    struct sim_config c = small_config();
    c.max_depth = 128;
    c.doorbell_stride = 2;
    Rig r(c);
    uint64_t cap = r.read64(NVME_REG_CAP);
    EXPECT_EQ(NVME_CAP_MQES(cap), 127u);
    EXPECT_EQ(NVME_CAP_CQR(cap), 1u);
    EXPECT_EQ(NVME_CAP_DSTRD(cap), 2u);
    EXPECT_EQ(NVME_CAP_CSS(cap) & 1, 1u);
    EXPECT_EQ(NVME_CAP_MPSMIN(cap), 0u);
}

TEST(SimBasic, IdentifyDescribesControllerAndNamespace)
{
    Rig r(small_config());
    auto page = r.dma(4096);
    ASSERT_EQ(r.admin(admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_CTRL, 0, page->iova)), 0);
    EXPECT_EQ(page->addr[77], 4); /* MDTS: 64 KiB is 2^4 pages */
    EXPECT_EQ(memcmp(page->addr + 24, "gpunvmefs simulated", 19), 0);
    struct nvme_sqe s = admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_NS, 0, page->iova);
    s.nsid = 1;
    ASSERT_EQ(r.admin(s), 0);
    EXPECT_EQ(*page->as<uint64_t>(), 1024u);
    EXPECT_EQ(page->addr[130], 12); /* LBAF0.LBADS */
}

TEST(SimBasic, SharedNamespacesAreReported)
{
    struct sim_config c = small_config();
    for (bool shared : {false, true}) {
        c.ns[0].shared = shared;
        Rig r(c);
        auto page = r.dma(4096);
        ASSERT_EQ(r.admin(admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_CTRL, 0, page->iova)), 0);
        EXPECT_EQ(page->addr[76], shared ? 2 : 0); /* CMIC */
        struct nvme_sqe s = admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_NS, 0, page->iova);
        s.nsid = 1;
        ASSERT_EQ(r.admin(s), 0);
        EXPECT_EQ(page->addr[30], shared ? 1 : 0); /* NMIC */
    }
}

TEST(SimBasic, WrittenDataIsReadBack)
{
    Rig r(small_config());
    Queue &q = r.create(1, 16);
    auto a = r.dma(4096), b = r.dma(4096);
    fill(a->addr, 4096, 7);
    ASSERT_EQ(r.run(q, io(NVME_IO_WRITE, 5, 1, a->iova)), 0);
    ASSERT_EQ(r.run(q, io(NVME_IO_READ, 5, 1, b->iova)), 0);
    EXPECT_TRUE(holds(b->addr, 4096, 7));
    struct nvme_sqe f = {};
    f.nsid = 1;
    EXPECT_EQ(r.run(q, f), 0);
    EXPECT_EQ(r.stats().reads, 1u);
    EXPECT_EQ(r.stats().writes, 1u);
    EXPECT_EQ(r.stats().flushes, 1u);
}

/* Of a machine's processors, with taskset(1) or in a container. */
TEST(Processors, AreThoseThatTheThreadMayRunOn)
{
    cpu_set_t all, one;

    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    EXPECT_EQ(processors_allowed(), static_cast<unsigned>(CPU_COUNT(&all)));
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++) {
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(processors_allowed(), 1u);
    ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}
