/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Drives one I/O queue pair from one CPU thread: posts entries, rings, polls
 * and releases.
 *
 * A ring has one owner at a time and no locks; the caller orders a hand-over to
 * another thread. The command identifier belongs to the caller, which uses it
 * as an index into its trackers and never has more than depth - 1 commands in
 * flight. So the SQ cannot overrun, and the CQ always has room. GCC's atomic
 * builtins are used because rings and doorbells are plain memory shared with a
 * device or a GPU.
 */
#ifndef BLOCKDEV_NVME_NVME_QUEUE_H
#define BLOCKDEV_NVME_NVME_QUEUE_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "blockdev/nvme/nvme.h"

__BEGIN_DECLS

struct nvme_ring {
    struct nvme_sqe *sq;
    struct nvme_cqe *cq;
    volatile uint32_t *sq_doorbell;
    volatile uint32_t *cq_doorbell;
    uint32_t depth;
    uint32_t sq_tail; /* index of the next entry to post */
    uint32_t cq_head; /* index of the next completion */
    uint32_t phase;   /* phase bit of a new completion */
};

/*
 * Initialises the ring of a pair just created or recreated: nothing posted,
 * phase 1.
 */
static inline void nvme_ring_init(struct nvme_ring *r, const struct nvme_qpair *qp)
{
    r->sq = qp->sq;
    r->cq = qp->cq;
    r->sq_doorbell = qp->sq_doorbell;
    r->cq_doorbell = qp->cq_doorbell;
    r->depth = qp->depth;
    r->sq_tail = 0;
    r->cq_head = 0;
    r->phase = 1;
}

/*
 * Writes one entry at the tail. The controller sees it only after
 * nvme_ring_doorbell().
 */
static inline void nvme_ring_post(struct nvme_ring *r, const struct nvme_sqe *sqe)
{
    r->sq[r->sq_tail] = *sqe;
    if (++r->sq_tail == r->depth)
        r->sq_tail = 0;
}

/*
 * Announces all posted entries to the controller. The release makes the
 * entries, PRP lists and data written before visible to a reader of the new
 * tail. On x86-64 a plain store also orders them for hardware, since an
 * uncached store never passes earlier stores to ordinary memory.
 */
static inline void nvme_ring_doorbell(struct nvme_ring *r)
{
    assert(r->sq_tail < r->depth && "a tail beyond the queue stalls some controllers for good");
    __atomic_store_n(r->sq_doorbell, r->sq_tail, __ATOMIC_RELEASE);
}

/*
 * CID and status lie in one dword, which is loaded as a whole; it may alias
 * struct nvme_cqe.
 */
typedef uint32_t __attribute__((may_alias)) nvme_cqe_dword;

/*
 * Takes the next completion; returns false if there is none. The acquire is on
 * the dword with the phase bit, which a controller writes last: the rest of the
 * entry and the data of the command are read after it. The entry remains
 * occupied until nvme_ring_release().
 */
static inline bool nvme_ring_poll(struct nvme_ring *r, struct nvme_cqe *out)
{
    const struct nvme_cqe *cqe = &r->cq[r->cq_head];
    const nvme_cqe_dword *last = (const nvme_cqe_dword *)(const void *)&cqe->cid;
    uint32_t cid_status = __atomic_load_n(last, __ATOMIC_ACQUIRE);

    if (NVME_CQE_PHASE(cid_status >> 16) != r->phase)
        return false;
    out->result = cqe->result;
    out->reserved = 0;
    out->sq_head = cqe->sq_head;
    out->sq_id = cqe->sq_id;
    out->cid = (uint16_t)cid_status;
    out->status = (uint16_t)(cid_status >> 16);
    if (++r->cq_head == r->depth) {
        r->cq_head = 0;
        r->phase ^= 1u;
    }
    return true;
}

/*
 * Returns all polled entries to the controller. The release orders the reads of
 * these entries before the controller may overwrite them. One call per poll is
 * enough.
 */
static inline void nvme_ring_release(struct nvme_ring *r)
{
    __atomic_store_n(r->cq_doorbell, r->cq_head, __ATOMIC_RELEASE);
}

__END_DECLS

#endif
