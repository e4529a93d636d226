/* SPDX-License-Identifier: BSD-2-Clause */
#include "sim_test_rig.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <sys/mman.h>
#include <thread>

using Clock = std::chrono::steady_clock;

Dma::Dma(struct nvme_transport *transport, size_t bytes) : t(transport), len(bytes)
{
    addr = static_cast<unsigned char *>(
        mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    struct nvme_mem mem = {};
    mem.addr = addr;
    mem.len = len;
    mem.fd = -1;
    EXPECT_EQ(t->ops->map(t, &mem, &iova), 0);
}

void Dma::unmap()
{
    if (t) {
        EXPECT_EQ(t->ops->unmap(t, iova), 0);
    }
    t = nullptr;
}

Dma::~Dma()
{
    unmap();
    munmap(addr, len);
}

struct sim_config small_config()
{
    struct sim_config c = {};
    c.ns[0].bytes = 4 << 20;
    c.ns[0].lba_size = 4096;
    c.io_queues = 4;
    c.mdts = 64 << 10;
    c.seed = 1;
    return c;
}

struct sim_config with(const std::function<void(struct sim_config &)> &change)
{
    struct sim_config c = small_config();
    change(c);
    return c;
}

struct nvme_sqe io(uint8_t opcode, uint64_t lba, uint32_t lbas, uint64_t prp1, uint64_t prp2,
                   uint16_t cid)
{
    struct nvme_sqe s = {};
    s.opcode = opcode;
    s.cid = cid;
    s.nsid = 1;
    s.prp1 = prp1;
    s.prp2 = prp2;
    s.cdw10 = static_cast<uint32_t>(lba);
    s.cdw11 = static_cast<uint32_t>(lba >> 32);
    s.cdw12 = lbas - 1;
    return s;
}

struct nvme_sqe admin_cmd(uint8_t opcode, uint32_t cdw10, uint32_t cdw11, uint64_t prp1)
{
    struct nvme_sqe s = {};
    s.opcode = opcode;
    s.prp1 = prp1;
    s.cdw10 = cdw10;
    s.cdw11 = cdw11;
    return s;
}

static uint64_t word(uint64_t seed, size_t i)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + i;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 27);
}

void fill(void *p, size_t len, uint64_t seed)
{
    auto *w = static_cast<uint64_t *>(p);
    for (size_t i = 0; i < len / 8; i++)
        w[i] = word(seed, i);
}

bool holds(const void *p, size_t len, uint64_t seed)
{
    auto *w = static_cast<const uint64_t *>(p);
    for (size_t i = 0; i < len / 8; i++)
        if (w[i] != word(seed, i))
            return false;
    return true;
}

Rig::Rig(const struct sim_config &config, bool start) : cfg(config), aq{}
{
    EXPECT_EQ(sim_create(&cfg, &sim, &t), 0);
    if (start && t)
        enable();
}

Rig::~Rig()
{
    if (t) {
        disable();
        t->ops->close(t);
    }
    char text[4096];
    sim_violations_text(sim, text, sizeof(text));
    EXPECT_EQ(sim_violations(sim), 0u) << text;
    sim_free(sim);
}

uint32_t Rig::read32(uint32_t reg)
{
    return t->ops->read(t, reg, 4);
}

void Rig::write32(uint32_t reg, uint32_t v)
{
    t->ops->write(t, reg, v, 4);
}

uint64_t Rig::read64(uint32_t reg)
{
    return t->ops->read(t, reg, 8);
}

void Rig::write64(uint32_t reg, uint64_t v)
{
    t->ops->write(t, reg, v, 8);
}

void Rig::doorbell(unsigned qid, bool cq, uint32_t v)
{
    size_t w = static_cast<size_t>(2 * qid + cq) << cfg.doorbell_stride;
    /* Release: SQEs are visible, and CQEs are read, before the doorbell. */
    __atomic_store_n(&t->doorbells[w], v, __ATOMIC_RELEASE);
    kick();
}

void Rig::kick()
{
    nvme_wake(t, 1);
}

std::unique_ptr<Dma> Rig::dma(size_t len)
{
    return std::make_unique<Dma>(t, len);
}

void Rig::enable(uint32_t depth)
{
    aq.qid = 0;
    aq.depth = depth;
    aq.tail = aq.head = 0;
    aq.phase = 1;
    aq.sq = dma(65536);
    aq.cq = dma(65536);
    write32(NVME_REG_AQA, (depth - 1) | (depth - 1) << 16);
    write64(NVME_REG_ASQ, aq.sq->iova);
    write64(NVME_REG_ACQ, aq.cq->iova);
    write32(NVME_REG_CC, NVME_CC_ENABLE | 6u << NVME_CC_IOSQES_SHIFT | 4u << NVME_CC_IOCQES_SHIFT);
    auto end = Clock::now() + std::chrono::seconds(10);
    while (!(read32(NVME_REG_CSTS) & (NVME_CSTS_READY | NVME_CSTS_FATAL)) && Clock::now() < end)
        std::this_thread::yield();
}

void Rig::disable()
{
    write32(NVME_REG_CC, 0);
    auto end = Clock::now() + std::chrono::seconds(10);
    while ((read32(NVME_REG_CSTS) & NVME_CSTS_READY) && read32(NVME_REG_CSTS) != UINT32_MAX &&
           Clock::now() < end)
        std::this_thread::yield();
    queues.clear();
    aq.sq.reset();
    aq.cq.reset();
}

void Rig::power_cut(uint64_t seed)
{
    EXPECT_EQ(sim_power_cut(sim, seed), 0);
    disable();
    t->ops->close(t);
    t = nullptr;
}

void Rig::attach()
{
    ASSERT_EQ(sim_attach(sim, &t), 0);
    enable();
}

Queue &Rig::create(uint16_t qid, uint32_t depth, uint32_t cq_depth)
{
    auto q = std::make_unique<Queue>();
    q->qid = qid;
    q->depth = depth;
    if (!cq_depth)
        cq_depth = depth;
    q->sq = dma((depth * 64 + 4095) & ~4095u);
    q->cq = dma((cq_depth * 16 + 4095) & ~4095u);
    uint32_t n = qid | (depth - 1) << 16, cn = qid | (cq_depth - 1) << 16;
    EXPECT_EQ(admin(admin_cmd(NVME_ADMIN_CREATE_CQ, cn, 1, q->cq->iova)), 0);
    EXPECT_EQ(admin(admin_cmd(NVME_ADMIN_CREATE_SQ, n, 1u | qid << 16, q->sq->iova)), 0);
    queues.push_back(std::move(q));
    return *queues.back();
}

uint16_t Rig::remove_sq(uint16_t qid)
{
    return admin(admin_cmd(NVME_ADMIN_DELETE_SQ, qid, 0));
}

uint16_t Rig::remove_cq(uint16_t qid)
{
    return admin(admin_cmd(NVME_ADMIN_DELETE_CQ, qid, 0));
}

void Rig::put(Queue &q, const struct nvme_sqe &sqe)
{
    memcpy(q.sq->as<struct nvme_sqe>() + q.tail, &sqe, sizeof(sqe));
    q.tail = (q.tail + 1) % q.depth;
}

void Rig::ring(Queue &q)
{
    doorbell(q.qid, false, q.tail);
}

static bool ready(Queue &q)
{
    auto *dw = reinterpret_cast<uint32_t *>(q.cq->as<struct nvme_cqe>() + q.head);
    /* Acquire: data and the rest of the CQE are read after the phase. */
    uint32_t last = __atomic_load_n(&dw[3], __ATOMIC_ACQUIRE);
    return (last >> 16 & 1) == q.phase;
}

bool Rig::next(Queue &q, struct nvme_cqe *cqe, bool tell)
{
    auto end = Clock::now() + std::chrono::seconds(10);
    while (!ready(q)) {
        if (Clock::now() > end)
            return false;
        std::this_thread::yield();
    }
    *cqe = q.cq->as<struct nvme_cqe>()[q.head];
    if (++q.head == q.depth) {
        q.head = 0;
        q.phase ^= 1;
    }
    if (tell)
        doorbell(q.qid, true, q.head);
    return true;
}

void Rig::wait_commands(uint64_t n)
{
    auto end = Clock::now() + std::chrono::seconds(10);
    while (stats().commands < n && Clock::now() < end)
        std::this_thread::yield();
    EXPECT_GE(stats().commands, n);
}

bool Rig::quiet(Queue &q, unsigned ms)
{
    auto end = Clock::now() + std::chrono::milliseconds(ms);
    while (Clock::now() < end) {
        if (ready(q))
            return false;
        std::this_thread::yield();
    }
    return true;
}

uint16_t Rig::run(Queue &q, struct nvme_sqe sqe, uint32_t *result)
{
    struct nvme_cqe cqe = {};
    put(q, sqe);
    ring(q);
    if (!next(q, &cqe))
        return 0xffff;
    EXPECT_EQ(cqe.cid, sqe.cid);
    EXPECT_EQ(cqe.sq_id, q.qid);
    if (result)
        *result = cqe.result;
    return NVME_STATUS(cqe.status);
}

uint16_t Rig::admin(struct nvme_sqe sqe, uint32_t *result)
{
    return run(aq, sqe, result);
}

struct sim_stats Rig::stats()
{
    struct sim_stats s;
    sim_get_stats(sim, &s);
    return s;
}

uint64_t Rig::events(enum sim_event e)
{
    return stats().events[e];
}

bool Rig::only(enum sim_event e, uint64_t times)
{
    auto end = Clock::now() + std::chrono::seconds(5);
    while (events(e) < times && Clock::now() < end)
        std::this_thread::yield();
    bool seen = events(e) >= times;
    sim_forgive(sim, e);
    if (sim_violations(sim) == 0)
        return seen;
    char text[4096];
    sim_violations_text(sim, text, sizeof(text));
    fprintf(stderr, "%s", text);
    return false;
}

struct sim_fault fault(enum sim_fault_kind kind, uint64_t delay_ns)
{
    struct sim_fault f = {};
    f.kind = kind;
    f.times = 1;
    f.delay_ns = delay_ns;
    f.status = NVME_ERR_INTERNAL;
    return f;
}

struct sim_fault admin_fault(enum sim_fault_kind kind, uint64_t delay_ns, uint8_t opcode)
{
    struct sim_fault f = fault(kind, delay_ns);
    f.admin = f.match_opcode = true;
    f.opcode = opcode;
    return f;
}

OneQueue::OneQueue(const struct sim_config &c, uint32_t depth)
    : r(c), q(&r.create(1, depth)), buf(r.dma(1 << 20))
{
}

void OneQueue::add(const struct sim_fault &f)
{
    ASSERT_EQ(sim_add_fault(r.sim, &f), 0);
}

struct nvme_sqe OneQueue::read_of(uint16_t cid)
{
    return io(NVME_IO_READ, cid, 1, buf->iova + 4096u * cid, 0, cid);
}

void OneQueue::submit(uint16_t cid)
{
    r.put(*q, read_of(cid));
    r.ring(*q);
}

void OneQueue::submit_all(uint16_t n)
{
    for (uint16_t cid = 0; cid < n; cid++)
        r.put(*q, read_of(cid));
    r.ring(*q);
}

void OneQueue::submit_identify(uint16_t cid)
{
    struct nvme_sqe s = admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_CTRL, 0, buf->iova);
    s.cid = cid;
    r.put(r.aq, s);
    r.ring(r.aq);
}

void OneQueue::submit_held(uint16_t cid)
{
    uint64_t before = r.stats().commands;
    submit(cid);
    r.wait_commands(before + 1);
}

uint16_t OneQueue::read(uint64_t lba)
{
    return r.run(*q, io(NVME_IO_READ, lba, 1, buf->iova));
}

uint16_t OneQueue::identify()
{
    return r.admin(admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_CTRL, 0, buf->iova));
}

std::vector<uint16_t> OneQueue::order(unsigned n)
{
    std::vector<uint16_t> cids;
    struct nvme_cqe cqe;
    while (cids.size() < n && r.next(*q, &cqe))
        cids.push_back(cqe.cid);
    return cids;
}

uint16_t OneQueue::next_status(Queue &from)
{
    struct nvme_cqe cqe;
    return r.next(from, &cqe) ? NVME_STATUS(cqe.status) : 0xffff;
}

void OneQueue::expect_success(unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        EXPECT_EQ(next_status(*q), 0) << i;
}

void OneQueue::wait_fatal()
{
    while (!(r.read32(NVME_REG_CSTS) & NVME_CSTS_FATAL))
        std::this_thread::yield();
}
