/* SPDX-License-Identifier: BSD-2-Clause */
/* Device memory: a DMA engine whose device is host memory at another address. */
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <mutex>
#include <set>
#include <thread>

#include "sim_test_rig.h"

namespace
{

using Clock = std::chrono::steady_clock;

constexpr uint64_t DEVICE = 0x7000000000ull;

struct nvme_mem device_memory(uint64_t offset, size_t len)
{
    struct nvme_mem mem = {};
    mem.device = DEVICE + offset;
    mem.len = len;
    mem.fd = -1;
    return mem;
}

/* Copies are made by poll(), so a command is in flight for a while. */
struct FakeEngine {
    struct Job {
        bool to_device;
        std::vector<struct sim_copy> copies;
        uint64_t ticket;
        int polls;
        Clock::time_point ready;
    };
    explicit FakeEngine(size_t len, unsigned max_copies = 8, unsigned channels = 4)
        : memory(len), jobs(channels)
    {
        ops.max_copies = max_copies;
        ops.submit = [](void *ctx, unsigned ch, bool to, const struct sim_copy *c, unsigned n,
                        uint64_t *t) { return self(ctx)->submit(ch, to, c, n, t); };
        ops.poll = [](void *ctx, unsigned ch, uint64_t t) { return self(ctx)->poll(ch, t); };
        ops.pin = [](void *ctx, void *addr, size_t n) { return self(ctx)->pin(addr, n); };
        ops.unpin = [](void *ctx, void *addr) { self(ctx)->unpin(addr); };
        dma_engine.ops = &ops;
        dma_engine.ctx = this;
        dma_engine.channels = channels;
    }
    static FakeEngine *self(void *ctx) { return static_cast<FakeEngine *>(ctx); }
    int pin(void *addr, size_t len)
    {
        std::lock_guard<std::mutex> g(lock);
        if (len > pin_limit)
            return -EINVAL;
        pins.insert(addr);
        return 0;
    }
    void unpin(void *addr)
    {
        std::lock_guard<std::mutex> g(lock);
        EXPECT_EQ(pins.erase(addr), 1u);
    }
    int submit(unsigned ch, bool to_device, const struct sim_copy *c, unsigned n, uint64_t *ticket)
    {
        EXPECT_LE(n, ops.max_copies);
        EXPECT_LT(ch, jobs.size());
        for (inside++; stuck; std::this_thread::yield())
            ;
        if (jobs[ch].size() >= depth)
            return -EAGAIN;
        *ticket = ++tickets;
        std::lock_guard<std::mutex> g(lock);
        for (unsigned i = 0; i < n; i++)
            regions.push_back(c[i].region);
        of_device[ch / dma_engine.channels] += n;
        jobs[ch].push_back({to_device, {c, c + n}, *ticket, 2, Clock::now() + hold.load()});
        submissions++;
        return 0;
    }
    void finish_first(unsigned ch)
    {
        for (auto &c : jobs[ch].front().copies) {
            unsigned char *d = memory.data() + (c.device - DEVICE);
            bool to = jobs[ch].front().to_device;
            memcpy(to ? d : c.host, to ? c.host : d, c.len);
        }
        jobs[ch].pop_front();
    }
    int poll(unsigned ch, uint64_t ticket)
    {
        if (!never_ends && !jobs[ch].empty() && jobs[ch].front().polls-- <= 0 &&
            Clock::now() >= jobs[ch].front().ready)
            finish_first(ch);
        if (!jobs[ch].empty() && jobs[ch].front().ticket <= ticket)
            return 0;
        return fail ? -EIO : 1;
    }

    struct sim_dma_engine_ops ops = {};
    struct sim_dma_engine dma_engine = {};
    std::vector<unsigned char> memory;
    std::vector<std::deque<Job>> jobs;
    std::vector<uint64_t> regions; /* of all copies */
    size_t of_device[2] = {};      /* number of copies */
    std::mutex lock;
    std::set<void *> pins;
    size_t pin_limit = SIZE_MAX, depth = 2;
    std::atomic<uint64_t> tickets{0}, submissions{0};
    std::atomic<std::chrono::milliseconds> hold{std::chrono::milliseconds(0)};
    std::atomic<bool> fail{false}, never_ends{false};
    std::atomic<bool> stuck{false}; /* submit() does not return */
    std::atomic<unsigned> inside{0};
};

struct sim_config config()
{
    struct sim_config c = small_config();
    c.ns[0].bytes = 8 << 20;
    return c;
}

/* With the parameter true the DMA engine pins the media, with false it pins bounce memory only. */
struct Move : ::testing::TestWithParam<bool> {
    static constexpr size_t HALF = 512 << 10;

    Move() : fake(2 * HALF), r(config()), q(&r.create(1, 64))
    {
        if (!GetParam())
            fake.pin_limit = 4 << 20;
        map();
    }
    void map()
    {
        struct nvme_mem mem = device_memory(0, fake.memory.size());
        ASSERT_EQ(sim_set_dma_engine(r.sim, &fake.dma_engine), 0);
        ASSERT_EQ(r.t->ops->map(r.t, &mem, &iova), 0);
    }
    void unmap()
    {
        EXPECT_EQ(r.t->ops->unmap(r.t, iova), 0);
        EXPECT_TRUE(fake.pins.empty());
    }
    /* Sends n reads whose copies take long, and returns when copies have begun. */
    void hold_copies(uint16_t n)
    {
        fake.hold = std::chrono::milliseconds(200);
        for (uint16_t i = 0; i < n; i++)
            r.put(*q, io(NVME_IO_READ, i, 1, iova, 0, i));
        r.ring(*q);
        while (!fake.submissions)
            std::this_thread::yield();
    }
    /* Maps the two halves of the device memory instead of all of it. */
    void map_halves(uint64_t *first, uint64_t *second)
    {
        struct nvme_mem mem = device_memory(0, HALF);

        unmap();
        ASSERT_EQ(r.t->ops->map(r.t, &mem, first), 0);
        mem.device += HALF;
        ASSERT_EQ(r.t->ops->map(r.t, &mem, second), 0);
    }
    FakeEngine fake;
    Rig r;
    Queue *q;
    uint64_t iova = 0;
};

TEST_P(Move, DataIsCopiedToTheDeviceAndBack)
{
    auto list = r.dma(4096);
    for (int i = 1; i < 16; i++)
        list->as<uint64_t>()[i - 1] = iova + 8192 * i;
    for (int i = 0; i < 16; i++)
        fill(fake.memory.data() + 8192 * i, 4096, i);
    ASSERT_EQ(r.run(*q, io(NVME_IO_WRITE, 100, 16, iova, list->iova)), 0);
    memset(fake.memory.data(), 0, fake.memory.size());
    ASSERT_EQ(r.run(*q, io(NVME_IO_READ, 100, 16, iova, list->iova)), 0);
    for (int i = 0; i < 16; i++)
        EXPECT_TRUE(holds(fake.memory.data() + 8192 * i, 4096, i)) << i;
    EXPECT_EQ(r.stats().device_bytes, 2u * 65536);
    unmap();
}

TEST_P(Move, ManyCommandsShareSubmissions)
{
    for (int round = 0; round < 20; round++) {
        for (uint16_t i = 0; i < 60; i++)
            r.put(*q, io(i % 2 ? NVME_IO_WRITE : NVME_IO_READ, i, 1, iova + 4096 * i, 0, i));
        r.ring(*q);
        struct nvme_cqe cqe;
        for (int i = 0; i < 60; i++) {
            ASSERT_TRUE(r.next(*q, &cqe));
            ASSERT_EQ(NVME_STATUS(cqe.status), 0);
        }
    }
    EXPECT_LT(fake.submissions, 1200u);
    unmap();
}

/*
 * Reads of one page from pinned media take the short path, which leaves errors
 * to the general path.
 */
TEST_P(Move, WrongReadsAmongValidOnesAreReported)
{
    struct {
        uint16_t status;
        enum sim_event event;
        struct nvme_sqe sqe;
    } wrong[] = {
        {NVME_ERR_LBA_RANGE, SIM_EV_LBA_RANGE, io(NVME_IO_READ, 2048, 1, iova)},
        {NVME_ERR_INVALID_PRP_OFFSET, SIM_EV_PRP_MISALIGNED, io(NVME_IO_READ, 0, 1, iova + 2)},
        {NVME_ERR_INVALID_FIELD, SIM_EV_RESERVED_FIELD, io(NVME_IO_READ, 0, 1, iova, iova)},
        {NVME_ERR_INVALID_FIELD, SIM_EV_RESERVED_FIELD, io(NVME_IO_READ, 0, 1, iova)},
        {NVME_ERR_INVALID_FIELD, SIM_EV_RESERVED_FIELD, io(NVME_IO_READ, 0, 1, iova)},
        {NVME_ERR_DATA_TRANSFER, SIM_EV_PRP_UNMAPPED, io(NVME_IO_READ, 0, 1, iova + (1 << 20))},
        {NVME_ERR_INVALID_NS, SIM_EV_BAD_NSID, io(NVME_IO_READ, 0, 1, iova)},
        {NVME_ERR_INVALID_FIELD, SIM_EV_RESERVED_FIELD, io(NVME_IO_READ, 0, 1, iova)},
        {NVME_ERR_INVALID_FIELD, SIM_EV_RESERVED_FIELD, io(NVME_IO_READ, 0, 1, iova)},
        {NVME_ERR_INVALID_FIELD, SIM_EV_RESERVED_FIELD, io(NVME_IO_READ, 0, 1, iova)},
        {NVME_ERR_INVALID_FIELD, SIM_EV_RESERVED_FIELD, io(NVME_IO_READ, 0, 1, iova)},
        {NVME_ERR_DATA_TRANSFER, SIM_EV_PRP_UNMAPPED, io(NVME_IO_READ, 0, 1, iova + 512)},
        {NVME_ERR_INVALID_OPCODE, SIM_EV_BAD_OPCODE, io(0x7f, 0, 1, iova)},
    };
    constexpr uint16_t kWrong = sizeof(wrong) / sizeof(wrong[0]), kAll = 2 * kWrong;
    wrong[3].sqe.cdw15 = 1;
    wrong[4].sqe.cdw12 |= 1u << 20;
    wrong[6].sqe.nsid = 9;
    wrong[7].sqe.cdw3 = 1;
    wrong[8].sqe.mptr = 8;
    wrong[9].sqe.cdw13 = 0x100;
    wrong[10].sqe.flags = 1;
    for (uint16_t i = 0; i < kAll; i++) {
        fill(fake.memory.data() + 4096 * i, 4096, i);
        ASSERT_EQ(r.run(*q, io(NVME_IO_WRITE, i, 1, iova + 4096 * i)), 0);
    }
    memset(fake.memory.data(), 0, fake.memory.size());
    for (uint16_t i = 0; i < kAll; i++) {
        struct nvme_sqe sqe = i % 2 ? wrong[i / 2].sqe : io(NVME_IO_READ, i, 1, iova + 4096 * i);
        sqe.cid = i;
        r.put(*q, sqe);
    }
    r.ring(*q);
    for (uint16_t i = 0; i < kAll; i++) {
        struct nvme_cqe cqe = {};
        ASSERT_TRUE(r.next(*q, &cqe));
        EXPECT_EQ(NVME_STATUS(cqe.status), cqe.cid % 2 ? wrong[cqe.cid / 2].status : 0) << cqe.cid;
    }
    for (uint16_t i = 0; i < kAll; i += 2)
        EXPECT_TRUE(holds(fake.memory.data() + 4096 * i, 4096, i)) << i;
    for (auto &w : wrong)
        EXPECT_GT(r.events(w.event), 0u) << sim_event_name(w.event);
    EXPECT_EQ(r.events(SIM_EV_RESERVED_FIELD), 7u);
    for (auto &w : wrong)
        sim_forgive(r.sim, w.event);
    EXPECT_EQ(sim_violations(r.sim), 0u);
    EXPECT_EQ(r.stats().reads, kWrong);
    unmap();
}

/*
 * Adjacent allocations, on the device and on the media, remain separate
 * regions.
 */
TEST_P(Move, CopiesNameTheirMapping)
{
    uint64_t first, second;

    ASSERT_NO_FATAL_FAILURE(map_halves(&first, &second));
    ASSERT_EQ(r.run(*q, io(NVME_IO_READ, 0, 1, first + HALF - 4096)), 0);
    ASSERT_EQ(r.run(*q, io(NVME_IO_READ, 1, 1, second)), 0);
    ASSERT_EQ(r.run(*q, io(NVME_IO_READ, 2, 1, second + 4096)), 0);
    ASSERT_EQ(fake.regions.size(), 3u);
    EXPECT_NE(fake.regions[0], fake.regions[1]);
    EXPECT_EQ(fake.regions[1], fake.regions[2]);
    EXPECT_EQ(r.t->ops->unmap(r.t, first), 0);
    EXPECT_EQ(r.t->ops->unmap(r.t, second), 0);
}

/* The bounds differ: sizes of namespaces and of mappings are different. */
TEST(MoveBatch, ReadsMayDifferInNamespaceAndMapping)
{
    constexpr uint16_t kReads = 32;
    FakeEngine fake(1 << 20, 24);
    struct sim_config c = config();
    c.namespaces = 2;
    c.ns[1].bytes = 1 << 20;
    c.ns[1].lba_size = 512;
    Rig r(c);
    Queue &q = r.create(1, 64);
    uint64_t iova[2], lba[2] = {0, 2048 - kReads};
    ASSERT_EQ(sim_set_dma_engine(r.sim, &fake.dma_engine), 0);
    auto host = r.dma(4096);
    for (uint64_t i = 0; i < 2; i++) {
        struct nvme_mem mem = device_memory(i << 19, i ? 8192 : 1 << 19);
        ASSERT_EQ(r.t->ops->map(r.t, &mem, &iova[i]), 0);
    }
    for (uint16_t i = 0; i < kReads; i++) {
        struct nvme_sqe sqe = io(NVME_IO_WRITE, lba[i % 2] + i, 1, host->iova);
        sqe.nsid = 1 + i % 2;
        fill(host->addr, 4096, i);
        ASSERT_EQ(r.run(q, sqe), 0);
    }
    for (uint16_t i = 0; i < kReads; i++) {
        uint64_t at = i % 4 == 3 ? iova[1] + i / 4 * 512u : iova[0] + i * 4096u;
        struct nvme_sqe sqe = io(NVME_IO_READ, lba[i % 2] + i, 1, at, 0, i);
        sqe.nsid = 1 + i % 2;
        r.put(q, sqe);
    }
    r.ring(q);
    for (uint16_t i = 0; i < kReads; i++) {
        struct nvme_cqe cqe = {};
        ASSERT_TRUE(r.next(q, &cqe));
        ASSERT_EQ(NVME_STATUS(cqe.status), 0);
    }
    for (uint16_t i = 0; i < kReads; i++) {
        size_t at = i % 4 == 3 ? (1u << 19) + i / 4 * 512u : i * 4096u;
        fill(host->addr, 4096, i);
        EXPECT_EQ(memcmp(&fake.memory[at], host->addr, i % 2 ? 512 : 4096), 0) << i;
    }
    EXPECT_EQ(r.stats().reads, kReads);
    EXPECT_EQ(r.stats().read_bytes, kReads / 2 * (4096u + 512u));
    EXPECT_EQ(r.t->ops->unmap(r.t, iova[0]), 0);
    EXPECT_EQ(r.t->ops->unmap(r.t, iova[1]), 0);
}

/*
 * The second command is partly queued when the host's memory of all commands is
 * unmapped.
 */
TEST_P(Move, MemoryOfACommandThatWaitsForRoomCanBeUnmapped)
{
    auto list = r.dma(4096), host = r.dma(4096);
    for (int i = 1; i < 16; i++)
        list->as<uint64_t>()[i - 1] = i < 15 ? iova + 8192 * i : host->iova;
    fake.hold = std::chrono::milliseconds(200);
    for (uint16_t cid = 0; cid < 3; cid++)
        r.put(*q, io(NVME_IO_READ, 0, 16, iova, list->iova, cid));
    r.ring(*q);
    while (fake.submissions < fake.depth)
        std::this_thread::yield();
    host.reset();
    fake.hold = std::chrono::milliseconds(0);
    std::set<uint16_t> failed;
    for (int i = 0; i < 3; i++) {
        struct nvme_cqe cqe = {};
        ASSERT_TRUE(r.next(*q, &cqe));
        if (NVME_STATUS(cqe.status) == NVME_ERR_DATA_TRANSFER)
            failed.insert(cqe.cid);
    }
    EXPECT_EQ(failed, (std::set<uint16_t>{1, 2}));
    EXPECT_TRUE(r.only(SIM_EV_UNMAP_IN_FLIGHT));
    unmap();
}

TEST_P(Move, FailedCopiesFailTheirCommands)
{
    fake.fail = true;
    EXPECT_EQ(r.run(*q, io(NVME_IO_READ, 0, 1, iova)), NVME_ERR_DATA_TRANSFER);
    fake.fail = false;
    EXPECT_EQ(r.run(*q, io(NVME_IO_READ, 0, 1, iova)), 0);
    unmap();
}

TEST_P(Move, CorruptReadFlipsOneBitButNotOnTheMedia)
{
    struct sim_fault f = {};
    f.kind = SIM_FAULT_CORRUPT;
    f.times = 1;
    ASSERT_EQ(sim_add_fault(r.sim, &f), 0);
    memset(fake.memory.data(), 0xff, 4096);
    int bits = 0;
    ASSERT_EQ(r.run(*q, io(NVME_IO_READ, 0, 1, iova)), 0);
    for (int i = 0; i < 4096; i++)
        bits += __builtin_popcount(fake.memory[i]);
    EXPECT_EQ(bits, 1);
    ASSERT_EQ(r.run(*q, io(NVME_IO_READ, 0, 1, iova)), 0);
    EXPECT_EQ(fake.memory, std::vector<unsigned char>(fake.memory.size()));
    unmap();
}

TEST_P(Move, UnmapWaitsForCopiesAndReportsThem)
{
    hold_copies(1);
    EXPECT_EQ(r.t->ops->unmap(r.t, iova), 0);
    EXPECT_TRUE(fake.jobs[0].empty());
    EXPECT_TRUE(r.only(SIM_EV_UNMAP_IN_FLIGHT));
}

struct MoveStuck : Move {
};

TEST_P(MoveStuck, UnmapWaitsOnceForCopiesThatDoNotEnd)
{
    uint64_t first, second;
    auto unmap_in = [&](uint64_t at, int result) {
        auto start = Clock::now();
        EXPECT_EQ(r.t->ops->unmap(r.t, at), result);
        return Clock::now() - start;
    };

    ASSERT_NO_FATAL_FAILURE(map_halves(&first, &second));
    fake.never_ends = true;
    r.put(*q, io(NVME_IO_READ, 0, 2, first + HALF - 4096, second));
    r.ring(*q);
    while (!fake.submissions)
        std::this_thread::yield();
    auto waited = unmap_in(first, -ETIMEDOUT);
    EXPECT_LT(unmap_in(second, -ETIMEDOUT), waited / 2);
    fake.never_ends = false;
    while (r.t->ops->unmap(r.t, first) == -ETIMEDOUT)
        std::this_thread::yield();
    unmap_in(second, 0);
    EXPECT_TRUE(r.only(SIM_EV_UNMAP_IN_FLIGHT));
}

TEST_P(Move, DeletingTheQueueWaitsForItsCopies)
{
    hold_copies(8);
    EXPECT_EQ(r.remove_sq(1), 0);
    EXPECT_TRUE(fake.jobs[0].empty());
    unmap();
}

TEST_P(Move, ResetStaysReadyUntilCopiesHaveEnded)
{
    hold_copies(1);
    r.disable();
    EXPECT_TRUE(fake.jobs[0].empty());
    EXPECT_EQ(r.t->ops->unmap(r.t, iova), 0);
}

TEST_P(Move, ListInDeviceMemoryIsRefused)
{
    auto host = r.dma(4096);
    EXPECT_EQ(r.run(*q, io(NVME_IO_READ, 0, 3, host->iova, iova)), NVME_ERR_DATA_TRANSFER);
    EXPECT_TRUE(r.only(SIM_EV_PRP_UNMAPPED));
    unmap();
}

TEST_P(Move, HostAndDevicePagesMayBeMixed)
{
    auto host = r.dma(4096);
    fill(host->addr, 4096, 1);
    fill(fake.memory.data(), 4096, 2);
    ASSERT_EQ(r.run(*q, io(NVME_IO_WRITE, 4, 2, host->iova, iova)), 0);
    ASSERT_EQ(r.run(*q, io(NVME_IO_READ, 4, 2, iova, host->iova)), 0);
    EXPECT_TRUE(holds(fake.memory.data(), 4096, 1));
    EXPECT_TRUE(holds(host->addr, 4096, 2));
    unmap();
}

INSTANTIATE_TEST_SUITE_P(Pinned, Move, ::testing::Values(true));
INSTANTIATE_TEST_SUITE_P(Bounced, Move, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Pinned, MoveStuck, ::testing::Values(true));

TEST(MoveChannels, ThreadsShareChannelsWhenThereAreFew)
{
    FakeEngine fake(1 << 20, 8, 1);
    struct sim_config c = config();
    c.threads = 3;
    Rig r(c);
    struct nvme_mem mem = device_memory(0, fake.memory.size());
    uint64_t iova;
    ASSERT_EQ(sim_set_dma_engine(r.sim, &fake.dma_engine), 0);
    Queue *q[3] = {&r.create(1, 64), &r.create(2, 64), &r.create(3, 64)};
    fake.depth = 8;
    ASSERT_EQ(r.t->ops->map(r.t, &mem, &iova), 0);
    for (uint16_t i = 0; i < 60; i++)
        for (auto *each : q)
            r.put(*each, io(NVME_IO_READ, i, 1, iova + 4096 * i, 0, i));
    for (auto *each : q)
        r.ring(*each);
    struct nvme_cqe cqe;
    for (int i = 0; i < 60; i++)
        for (auto *each : q)
            ASSERT_TRUE(r.next(*each, &cqe));
    EXPECT_EQ(r.t->ops->unmap(r.t, iova), 0);
}

TEST(MoveChannels, AThreadWithoutItsChannelDoesOtherWork)
{
    FakeEngine fake(1 << 20, 8, 1);
    struct sim_config c = config();
    c.threads = 2;
    Rig r(c);
    struct nvme_mem mem = device_memory(0, fake.memory.size());
    uint64_t iova;
    ASSERT_EQ(sim_set_dma_engine(r.sim, &fake.dma_engine), 0);
    Queue *q[2] = {&r.create(1, 8), &r.create(2, 8)};
    auto host = r.dma(4096);
    ASSERT_EQ(r.t->ops->map(r.t, &mem, &iova), 0);
    /*
     * The thread of the second queue also serves the admin queue and would
     * pause all threads for it.
     */
    for (int i = 0; i < 2; i++)
        ASSERT_EQ(r.run(*q[1], io(NVME_IO_READ, 0, 1, host->iova)), 0);
    fake.stuck = true;
    r.put(*q[0], io(NVME_IO_READ, 0, 1, iova));
    r.ring(*q[0]);
    while (!fake.inside)
        std::this_thread::yield();
    uint64_t fetched = r.stats().commands;
    r.put(*q[1], io(NVME_IO_READ, 1, 1, iova + 4096, 0, 1));
    r.ring(*q[1]);
    while (r.stats().commands == fetched) /* fetched in a round before that of the next command */
        std::this_thread::yield();
    r.put(*q[1], io(NVME_IO_READ, 2, 1, host->iova, 0, 2));
    r.ring(*q[1]);
    struct nvme_cqe cqe = {};
    EXPECT_TRUE(r.next(*q[1], &cqe));
    EXPECT_EQ(cqe.cid, 2);
    fake.stuck = false;
    EXPECT_TRUE(r.next(*q[0], &cqe));
    EXPECT_TRUE(r.next(*q[1], &cqe));
    EXPECT_EQ(cqe.cid, 1);
    EXPECT_EQ(r.t->ops->unmap(r.t, iova), 0);
}

/* Commands of two devices are in flight at the same time, and one has data of both. */
TEST(MoveMap, EachDeviceHasChannelsOfItsOwn)
{
    constexpr size_t HALF = 512 << 10;
    constexpr uint16_t COMMANDS = 32;
    FakeEngine engine(2 * HALF, 8, 8);
    Rig r(config());
    struct nvme_mem mem[] = {device_memory(0, HALF), device_memory(HALF, HALF)};
    uint64_t iova[2];
    Queue &q = r.create(1, 64);
    auto page = [&](unsigned i) { return engine.memory.data() + i % 2 * HALF + i / 2 * 4096; };

    engine.ops.open = [](void *, uint64_t device) { return device < DEVICE + HALF ? 0 : 1; };
    engine.dma_engine.channels = 4;
    ASSERT_EQ(sim_set_dma_engine(r.sim, &engine.dma_engine), 0);
    for (int d = 0; d < 2; d++)
        ASSERT_EQ(r.t->ops->map(r.t, &mem[d], &iova[d]), 0);
    for (uint16_t i = 0; i < COMMANDS; i++) {
        fill(page(i), 4096, i);
        ASSERT_EQ(r.run(q, io(NVME_IO_WRITE, i, 1, iova[i % 2] + i / 2 * 4096)), 0);
    }
    EXPECT_EQ(engine.of_device[0], engine.of_device[1]);
    memset(engine.memory.data(), 0, engine.memory.size());
    for (uint16_t i = 0; i < COMMANDS; i += 2)
        r.put(q, io(NVME_IO_READ, i, 2, iova[0] + i / 2 * 4096, iova[1] + i / 2 * 4096, i));
    r.ring(q);
    for (uint16_t i = 0; i < COMMANDS; i += 2) {
        struct nvme_cqe cqe = {};
        ASSERT_TRUE(r.next(q, &cqe));
        EXPECT_EQ(NVME_STATUS(cqe.status), 0);
    }
    for (uint16_t i = 0; i < COMMANDS; i++)
        EXPECT_TRUE(holds(page(i), 4096, i)) << i;
    for (int d = 0; d < 2; d++)
        EXPECT_EQ(r.t->ops->unmap(r.t, iova[d]), 0);
    EXPECT_TRUE(engine.pins.empty());
}

/* The memory is like that of a GPU that the engine's copies do not reach. */
TEST(MoveMap, MemoryOfAnotherDeviceIsRefusedAlsoByAnEngineInUse)
{
    FakeEngine engine(1 << 20);
    Rig r(small_config());
    struct nvme_mem mem = device_memory(0, 4096), other = device_memory(1 << 20, 4096);
    uint64_t iova, refused;

    engine.ops.open = [](void *, uint64_t device) {
        return device < DEVICE + (1 << 20) ? 0 : -EFAULT;
    };
    ASSERT_EQ(sim_set_dma_engine(r.sim, &engine.dma_engine), 0);
    EXPECT_EQ(r.t->ops->map(r.t, &other, &refused), -EFAULT);
    ASSERT_EQ(r.t->ops->map(r.t, &mem, &iova), 0);
    EXPECT_EQ(r.t->ops->map(r.t, &other, &refused), -EFAULT);
    EXPECT_EQ(r.t->ops->unmap(r.t, iova), 0);
}

TEST(MoveMap, AnEngineInUseCannotBeReplaced)
{
    FakeEngine a(1 << 20), b(1 << 20);
    Rig r(small_config());
    struct nvme_mem mem = device_memory(0, 4096);
    uint64_t first, second;
    EXPECT_EQ(r.t->ops->map(r.t, &mem, &first), -EFAULT) << "no DMA engine";
    ASSERT_EQ(sim_set_dma_engine(r.sim, &a.dma_engine), 0);
    ASSERT_EQ(r.t->ops->map(r.t, &mem, &first), 0);
    EXPECT_EQ(sim_set_dma_engine(r.sim, &b.dma_engine), -EBUSY);
    EXPECT_EQ(r.t->ops->unmap(r.t, first), 0);
    EXPECT_TRUE(a.pins.empty());
    ASSERT_EQ(sim_set_dma_engine(r.sim, &b.dma_engine), 0);
    ASSERT_EQ(r.t->ops->map(r.t, &mem, &second), 0);
    EXPECT_EQ(r.t->ops->unmap(r.t, second), 0);
    a.pin_limit = 0;
    ASSERT_EQ(sim_set_dma_engine(r.sim, &a.dma_engine), 0);
    EXPECT_EQ(r.t->ops->map(r.t, &mem, &first),
              -EFAULT); /* bounce memory cannot be pinned either */
}

} // namespace
