/* SPDX-License-Identifier: BSD-2-Clause */
/* What every suite of the folder stands on: a simulated drive with known contents, an engine. */
#ifndef TESTS_CUDA_GQ_RIG_H
#define TESTS_CUDA_GQ_RIG_H

#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "blockdev/bdev.h"
#include "cuda/gq.h"
#include "sim/gpu/sim_cuda_dma.h"
#include "sim/sim.h"
#include "tests/cuda/gq_test_mem.h"

struct Executor {
    const char *name;
    gq_executor_kind kind;
    unsigned lanes;
    gq_doorbells doorbells = GQ_DOORBELLS_AUTO;
    bool staged = false; /* the controller refuses the memory of buffers */
};

inline const Executor kExecutors[] = {
    {"Cpu1", GQ_EXECUTOR_CPU, 1},
    {"Cpu32", GQ_EXECUTOR_CPU, 32},
    {"Cuda", GQ_EXECUTOR_CUDA, 0},
    {"Cpu1Tier0", GQ_EXECUTOR_CPU, 1, GQ_DOORBELLS_CPU},
    {"Cpu32Tier0", GQ_EXECUTOR_CPU, 32, GQ_DOORBELLS_CPU},
    {"CudaTier0", GQ_EXECUTOR_CUDA, 0, GQ_DOORBELLS_CPU},
    {"Cpu1Tier0Staged", GQ_EXECUTOR_CPU, 1, GQ_DOORBELLS_CPU, true},
    {"Cpu32Tier1Staged", GQ_EXECUTOR_CPU, 32, GQ_DOORBELLS_AUTO, true},
    {"CudaTier1Staged", GQ_EXECUTOR_CUDA, 0, GQ_DOORBELLS_AUTO, true},
};

/* What waits a second for a deadline: each lane count, tier and kind of data path once. */
inline const Executor kForWaits[] = {kExecutors[0], kExecutors[2], kExecutors[4],
                                     kExecutors[5], kExecutors[7], kExecutors[8]};

using Bytes = std::vector<uint8_t>;

/* A range of LBAs of the media, or of zeros: extents end to end make up a file. */
struct Extent {
    uint64_t lba; /* GQ_LBA_ZERO: zeros */
    uint64_t bytes;
};

Bytes random_bytes(size_t n, uint64_t seed);

/* Memory of the executor's kind, registered or not; freed at the end of its life. */
class Memory
{
  public:
    Memory(gq_executor_kind kind, size_t len);
    ~Memory();
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    gq_mem part(size_t offset, size_t len) const;
    void fill(uint8_t value);
    void write(size_t offset, const Bytes &data);
    Bytes read(size_t offset, size_t len) const;
    bool holds(size_t offset, const uint8_t *want, size_t len) const;
    bool holds(size_t offset, const Bytes &want) const;

  private:
    test_mem mem_;
};

/* One namespace of `bytes` random bytes. Change cfg and opts, then open(). */
class Rig
{
  public:
    Rig(const Executor &x, uint32_t lba_size = 512, size_t bytes = 8u << 20);
    ~Rig();
    Rig(const Rig &) = delete;
    Rig &operator=(const Rig &) = delete;
    void open();
    void close();

    gq_buffer *add(const Memory &m, size_t offset, size_t len);
    int move(gq_op op, gq_buffer *b, uint64_t buffer_offset, const std::vector<Extent> &extents,
             uint64_t skip, uint64_t len);
    Bytes peek(uint64_t offset, size_t len);
    void fault(sim_fault f);
    gq_stats stats();
    uint64_t sent(); /* reads that the controller has seen */

    Executor x;
    sim_config cfg = {};
    gq_options opts = {};
    nvme_opts driver = {};
    bool no_peer = false; /* the transport refuses device memory, like VFIO */
    /* Replaces the operations of the transport, unless NULL. */
    const nvme_transport_ops *(*with)(const nvme_transport_ops *ops) = nullptr;
    bool is_drive = false; /* the controller says that it is hardware */
    bool lends = false;    /* the controller has one queue pair, which `device` lends */
    bd_dev *device = nullptr;
    const Bytes &media; /* what the namespace held at first */
    sim *s = nullptr;
    sim_cuda_dma *gpu = nullptr;
    const sim_dma_engine *dma = nullptr; /* the drive's, with a fake executor */
    nvme_ctrlr *c = nullptr;
    gq_engine *e = nullptr;
    gq_request req = {}; /* deadline_ms and cancel are used by move() */
    gq_result result = {};

  private:
    std::string image_;
};

/* Opens a rig in its constructor. */
struct OpenRig : Rig {
    OpenRig(const Executor &executor, uint32_t lba_size = 512, size_t bytes = 8u << 20)
        : Rig(executor, lba_size, bytes)
    {
        open();
    }
};

/*
 * A Target registers its memory at the rig, until end() is called or the Target
 * is destroyed. The rig is closed only afterwards.
 */
struct Target : Memory {
    Target(Rig &rig, size_t bytes) : Memory(rig.x.kind, bytes), b(rig.add(*this, 0, bytes)) {}
    ~Target() { end(); }
    void end()
    {
        if (b)
            gq_buffer_unregister(b);
        b = nullptr;
    }
    operator gq_buffer *() const { return b; }
    gq_buffer *b;
};

/* Commands that contain that LBA meet the fault. */
inline sim_fault fault_at(sim_fault_kind kind, uint64_t lba, uint16_t status = 0)
{
    sim_fault f = {};

    f.kind = kind;
    f.first_lba = lba;
    f.lbas = 1;
    f.status = status;
    return f;
}

/* The first command meets the fault. */
inline sim_fault once(sim_fault_kind kind)
{
    sim_fault f = {};

    f.kind = kind;
    f.times = 1;
    return f;
}

/* The first command that contains that LBA meets the fault. */
inline sim_fault once_at(sim_fault_kind kind, uint64_t lba, uint16_t status = 0)
{
    sim_fault f = fault_at(kind, lba, status);

    f.times = 1;
    return f;
}

/* Skips where the executor cannot run here. */
class GqTest : public testing::TestWithParam<Executor>
{
  protected:
    void SetUp() override;
};

#define GQ_FOR_SOME_EXECUTORS(suite, executors)         \
    INSTANTIATE_TEST_SUITE_P(                           \
        Executors, suite, testing::ValuesIn(executors), \
        [](const testing::TestParamInfo<Executor> &i) { return std::string(i.param.name); })

#define GQ_FOR_EXECUTORS(suite) GQ_FOR_SOME_EXECUTORS(suite, kExecutors)

#endif
