/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fuzz entry of the simulated controller's commands: the input becomes entries
 * of the admin and of an I/O submission queue. For every input the controller
 * completes each command once, except Asynchronous Event Requests, accesses no
 * memory that is not mapped, and serves a correct driver afterwards.
 */
#include <nvme/types.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "blockdev/nvme/nvme_spec.h"
#include "sim/sim.h"
#include "support/clock.h"

#define DEPTH       16u
#define DATA_BYTES  (64u << 10)
#define ENTRY_BYTES 12u /* bytes of input for one entry */
#define WAIT_NS     (20ull * 1000 * 1000 * 1000)
#define LBA_BYTES   4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Memory that the controller reaches, between two pages that fault. */
struct memory {
    uint8_t *bytes;
    uint64_t iova;
};

struct queue {
    struct memory sq, cq;
    uint32_t tail, head, phase;
    bool exists;
    bool pending[UINT8_MAX + 1]; /* by CID */
    uint8_t opcode[UINT8_MAX + 1];
};

static struct fuzz {
    struct sim *sim;
    struct nvme_transport *t;
    struct memory data;
    struct queue queues[2]; /* admin, I/O */
} f;

static void fail(const char *what)
{
    fprintf(stderr, "fuzz_commands: %s\n", what);
    abort();
}

static void memory_map(struct memory *m, size_t len)
{
    uint8_t *all = mmap(NULL, len + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct nvme_mem mem = {.addr = all + 4096, .len = len, .fd = -1};

    m->bytes = all + 4096;
    if (all == MAP_FAILED || mmap(m->bytes, len, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != m->bytes)
        fail("mmap");
    if (f.t->ops->map(f.t, &mem, &m->iova) != 0)
        fail("map");
}

static void start(void)
{
    struct sim_config cfg = {.ns = {{.bytes = 1 << 20, .lba_size = LBA_BYTES}}, .io_queues = 2};

    if (sim_create(&cfg, &f.sim, &f.t) != 0)
        fail("sim_create");
    memory_map(&f.data, DATA_BYTES);
    for (unsigned i = 0; i < 2; i++) {
        memory_map(&f.queues[i].sq, 4096);
        memory_map(&f.queues[i].cq, 4096);
    }
}

static void queue_reset(struct queue *q, bool exists)
{
    memset(q->cq.bytes, 0, 4096);
    memset(q->pending, 0, sizeof(q->pending));
    q->tail = q->head = 0;
    q->phase = 1;
    q->exists = exists;
}

static void wait_status(uint32_t ready)
{
    uint64_t end = now_ns() + WAIT_NS;

    while ((f.t->ops->read(f.t, NVME_REG_CSTS, 4) & NVME_CSTS_READY) != ready) {
        if (now_ns() > end)
            fail("CSTS.RDY does not change");
    }
}

static void doorbell(unsigned qid, bool cq, uint32_t value)
{
    /*
     * Release: the new entries are visible, and the completions have been read,
     * before the doorbell rings.
     */
    __atomic_store_n(&f.t->doorbells[2 * qid + cq], value, __ATOMIC_RELEASE);
    nvme_wake(f.t, 1);
}

/* Takes a completion, and checks that its command is pending. */
static bool take(unsigned qid)
{
    struct queue *q = &f.queues[qid];
    const struct nvme_cqe *cqe = (const struct nvme_cqe *)q->cq.bytes + q->head;
    uint16_t status = __atomic_load_n(&cqe->status, __ATOMIC_ACQUIRE);

    if ((status & 1) != q->phase)
        return false;
    if (cqe->cid > UINT8_MAX || !q->pending[cqe->cid])
        fail("a completion of no command");
    if (cqe->sq_id != qid || cqe->sq_head >= DEPTH)
        fail("a completion of another queue");
    q->pending[cqe->cid] = false;
    q->head = (q->head + 1) % DEPTH;
    q->phase ^= q->head == 0;
    doorbell(qid, true, q->head);
    return true;
}

static bool waits(unsigned qid)
{
    const struct queue *q = &f.queues[qid];

    for (unsigned cid = 0; cid <= UINT8_MAX; cid++) {
        if (q->pending[cid] && !(qid == 0 && q->opcode[cid] == nvme_admin_async_event))
            return true;
    }
    return false;
}

static void post(unsigned qid, const struct nvme_sqe *sqe)
{
    struct queue *q = &f.queues[qid];

    memcpy((struct nvme_sqe *)q->sq.bytes + q->tail, sqe, sizeof(*sqe));
    q->pending[sqe->cid] = true;
    q->opcode[sqe->cid] = sqe->opcode;
    q->tail = (q->tail + 1) % DEPTH;
    doorbell(qid, false, q->tail);
    uint64_t end = now_ns() + WAIT_NS;
    while (take(qid) || waits(qid)) {
        if (now_ns() > end)
            fail("a command is not completed");
    }
}

static uint16_t run(unsigned qid, struct nvme_sqe sqe)
{
    struct queue *q = &f.queues[qid];
    uint32_t at = q->head;

    post(qid, &sqe);
    if (q->head != (at + 1) % DEPTH)
        fail("a completion too many");
    return ((const struct nvme_cqe *)q->cq.bytes)[at].status >> 1;
}

static void enable(void)
{
    for (unsigned i = 0; i < 2; i++)
        queue_reset(&f.queues[i], true);
    f.t->ops->write(f.t, NVME_REG_AQA, (DEPTH - 1) | (DEPTH - 1) << 16, 4);
    f.t->ops->write(f.t, NVME_REG_ASQ, f.queues[0].sq.iova, 8);
    f.t->ops->write(f.t, NVME_REG_ACQ, f.queues[0].cq.iova, 8);
    f.t->ops->write(f.t, NVME_REG_CC,
                    NVME_CC_ENABLE | 6u << NVME_CC_IOSQES_SHIFT | 4u << NVME_CC_IOCQES_SHIFT, 4);
    wait_status(NVME_CSTS_READY);
    const struct nvme_sqe cq = {.opcode = NVME_ADMIN_CREATE_CQ,
                                .prp1 = f.queues[1].cq.iova,
                                .cdw10 = 1 | (DEPTH - 1) << 16,
                                .cdw11 = 1};
    const struct nvme_sqe sq = {.opcode = NVME_ADMIN_CREATE_SQ,
                                .prp1 = f.queues[1].sq.iova,
                                .cdw10 = 1 | (DEPTH - 1) << 16,
                                .cdw11 = 1 | 1 << 16};
    if (run(0, cq) != 0 || run(0, sq) != 0)
        fail("no I/O queue");
}

static void disable(void)
{
    f.t->ops->write(f.t, NVME_REG_CC, 0, 4);
    wait_status(0);
}

/*
 * Returns an address: most are in the data, some in queues, at odd offsets or
 * anywhere.
 */
static uint64_t address(uint8_t choice, uint8_t more)
{
    switch (choice % 8) {
    case 0:
        return 0;
    case 1:
        return f.data.iova + more;
    case 2:
        return f.data.iova + DATA_BYTES - 4096u + 4096u * (more % 3);
    case 3:
        return UINT64_MAX - more;
    default:
        return f.data.iova + 4096ull * (more % (DATA_BYTES / 4096));
    }
}

/* Returns a number near the limits of fields. */
static uint32_t number(uint8_t byte)
{
    static const uint32_t odd[] = {0xffff, 0x10000, 0x7fffffff, UINT32_MAX, 255, 256, 0x3ff, 1};

    return byte < 128 ? byte : byte < 192 ? odd[byte % 8] : (uint32_t)byte << (byte % 24);
}

/* Returns true for commands that delete or replace the I/O queue. */
static bool changes_queues(const struct nvme_sqe *sqe)
{
    return sqe->opcode <= NVME_ADMIN_CREATE_SQ || sqe->opcode == NVME_ADMIN_DELETE_CQ ||
           sqe->opcode == NVME_ADMIN_CREATE_CQ;
}

static void run_entry(const uint8_t *data, uint8_t cid)
{
    unsigned qid = data[0] & 1;
    struct nvme_sqe sqe = {
        .opcode = data[0] & 2 ? data[1] : data[1] % 0x11,
        .flags = data[0] & 4 ? data[2] : 0,
        .cid = cid,
        .nsid = data[0] & 8 ? number(data[2]) : 1,
        .prp1 = address(data[3], data[4]),
        .prp2 = address(data[5], data[6]),
        .cdw10 = number(data[7]) | (data[0] & 16 ? (uint32_t)data[8] << 16 : 0),
        .cdw11 = number(data[8]),
        .cdw12 = number(data[9]),
        .cdw13 = number(data[10]),
        .cdw14 = number(data[11]),
    };

    if (qid == 1 && !f.queues[1].exists)
        return;
    post(qid, &sqe);
    if (qid == 0 && changes_queues(&sqe))
        f.queues[1].exists = false;
}

/* Expects that a write and a read of a correct driver work. */
static void expect_works(uint8_t seed)
{
    struct nvme_sqe sqe = {.opcode = NVME_IO_WRITE, .nsid = 1, .prp1 = f.data.iova, .cid = 1};
    const uint8_t other = seed ^ 0xff;

    memset(f.data.bytes, seed, LBA_BYTES);
    if (run(1, sqe) != 0)
        fail("a write fails");
    memset(f.data.bytes, other, 2 * LBA_BYTES);
    sqe.opcode = NVME_IO_READ;
    if (run(1, sqe) != 0 || f.data.bytes[0] != seed ||
        memcmp(f.data.bytes, f.data.bytes + 1, LBA_BYTES - 1) != 0)
        fail("a read has other bytes");
    if (f.data.bytes[LBA_BYTES] != other)
        fail("a read is longer than the LBA");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!f.sim)
        start();
    enable();
    for (size_t i = 0; (i + 1) * ENTRY_BYTES <= size && i < 64; i++)
        run_entry(data + i * ENTRY_BYTES, (uint8_t)(i + 1));
    disable();
    enable();
    expect_works(size > 0 ? data[0] : 0);
    disable();
    return 0;
}
