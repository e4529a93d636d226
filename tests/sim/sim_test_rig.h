/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A driver that can make every mistake: raw registers, rings and doorbells over
 * a simulated controller. For the suites of sim only.
 */
#ifndef TESTS_SIM_SIM_TEST_RIG_H
#define TESTS_SIM_SIM_TEST_RIG_H

#include <cstdint>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <nvme/types.h>
#include <vector>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/transport.h"
#include "sim/sim.h"

constexpr uint64_t MS = 1000 * 1000; // in nanoseconds

/* Shared memory mapped for the controller. */
struct Dma {
    Dma(struct nvme_transport *t, size_t len);
    ~Dma();
    Dma(const Dma &) = delete;
    Dma &operator=(const Dma &) = delete;

    void unmap();
    template <class T> T *as(size_t offset = 0) { return reinterpret_cast<T *>(addr + offset); }

    struct nvme_transport *t;
    unsigned char *addr;
    size_t len;
    uint64_t iova = 0;
};

struct Queue {
    uint16_t qid;
    uint32_t depth, tail = 0, head = 0;
    uint16_t phase = 1;
    std::unique_ptr<Dma> sq, cq;
};

class Rig
{
  public:
    explicit Rig(const struct sim_config &cfg, bool start = true);
    ~Rig();

    void enable(uint32_t admin_depth = 16);
    void disable();
    void power_cut(uint64_t seed);
    void attach();

    uint32_t read32(uint32_t reg);
    void write32(uint32_t reg, uint32_t v);
    uint64_t read64(uint32_t reg);
    void write64(uint32_t reg, uint64_t v);
    void doorbell(unsigned qid, bool cq, uint32_t v);
    void kick();

    std::unique_ptr<Dma> dma(size_t len);
    Queue &create(uint16_t qid, uint32_t depth, uint32_t cq_depth = 0);
    uint16_t remove_sq(uint16_t qid);
    uint16_t remove_cq(uint16_t qid);

    /* Puts an SQE in the ring; ring() then moves the doorbell. */
    void put(Queue &q, const struct nvme_sqe &sqe);
    void ring(Queue &q);
    /* Waits for the next completion; false after ten seconds. */
    bool next(Queue &q, struct nvme_cqe *cqe, bool tell = true);
    /*
     * Waits until the controller has fetched n commands of all queues; fails
     * after ten seconds.
     */
    void wait_commands(uint64_t n);
    /* Returns true if no completion arrives within ms. Does not take it. */
    bool quiet(Queue &q, unsigned ms = 20);
    /* Runs one command. Returns its status. */
    uint16_t run(Queue &q, struct nvme_sqe sqe, uint32_t *result = nullptr);
    uint16_t admin(struct nvme_sqe sqe, uint32_t *result = nullptr);

    uint64_t events(enum sim_event e);
    /*
     * Returns true if this event, and no other, was counted, at least `times`;
     * forgives it.
     */
    bool only(enum sim_event e, uint64_t times = 1);
    struct sim_stats stats();

    struct sim *sim = nullptr;
    struct nvme_transport *t = nullptr;
    struct sim_config cfg;
    Queue aq;
    std::vector<std::unique_ptr<Queue>> queues;
};

struct sim_config small_config();
struct sim_config with(const std::function<void(struct sim_config &)> &change);
struct nvme_sqe io(uint8_t opcode, uint64_t lba, uint32_t lbas, uint64_t prp1, uint64_t prp2 = 0,
                   uint16_t cid = 1);
struct nvme_sqe admin_cmd(uint8_t opcode, uint32_t cdw10, uint32_t cdw11, uint64_t prp1 = 0);
void fill(void *p, size_t len, uint64_t seed);
bool holds(const void *p, size_t len, uint64_t seed);
/* Returns a rule that fires once. */
struct sim_fault fault(enum sim_fault_kind kind, uint64_t delay_ns = 0);
/* Returns a rule for Identify, or for another admin command. */
struct sim_fault admin_fault(enum sim_fault_kind kind, uint64_t delay_ns = 0,
                             uint8_t opcode = NVME_ADMIN_IDENTIFY);

/* OneQueue has a drive with one I/O queue, and memory for data. */
struct OneQueue : ::testing::Test {
    explicit OneQueue(const struct sim_config &c = small_config(), uint32_t depth = 64);

    void add(const struct sim_fault &f);
    /* Each command reads the block, and into the page, of its CID. */
    struct nvme_sqe read_of(uint16_t cid);
    void submit(uint16_t cid);
    void submit_all(uint16_t n);
    void submit_identify(uint16_t cid);
    /* Submits a command that the drive withholds, and waits until the drive has it. */
    void submit_held(uint16_t cid);
    uint16_t read(uint64_t lba = 0);
    uint16_t identify();
    /* Return the CIDs, and the status, of the next completions. */
    std::vector<uint16_t> order(unsigned n);
    uint16_t next_status(Queue &from);
    void expect_success(unsigned n);
    void wait_fatal();

    Rig r;
    Queue *q;
    std::unique_ptr<Dma> buf;
};

#endif
