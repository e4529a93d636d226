/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Creates and deletes I/O queue pairs through the admin queue; their rings are
 * shared memory.
 */
#include <errno.h>
#include <string.h>

#include "blockdev/nvme/nvme_internal.h"
#include "support/page.h"

#define QUEUE_CONTIGUOUS 1u /* CDW11 of both creations: PC */

/* Returns the memory of both rings, which are contiguous with the SQ first. */
static struct nvme_dma rings(const struct nvme_qpair *qp)
{
    return (struct nvme_dma){.addr = qp->sq,
                             .len = qp->sq_len + qp->cq_len,
                             .iova = qp->sq_iova,
                             .fd = qp->fd,
                             .fd_offset = qp->fd_offset};
}

static int alloc_rings(struct nvme_ctrlr *c, struct nvme_qpair *qp)
{
    struct nvme_dma mem = {0};
    int rc;

    qp->sq_len = page_whole(qp->depth * sizeof(struct nvme_sqe));
    qp->cq_len = page_whole(qp->depth * sizeof(struct nvme_cqe));
    rc = nvme_dma_alloc_shared(c, qp->share, qp->sq_len + qp->cq_len, &mem);
    if (rc)
        return rc;
    qp->sq = mem.addr;
    qp->cq = (struct nvme_cqe *)((char *)mem.addr + qp->sq_len);
    qp->sq_iova = mem.iova;
    qp->cq_iova = mem.iova + qp->sq_len;
    qp->fd = mem.fd;
    qp->fd_offset = mem.fd_offset;
    qp->sq_doorbell = nvme_ctrlr_doorbell(c, 2u * qp->qid);
    qp->cq_doorbell = nvme_ctrlr_doorbell(c, 2u * qp->qid + 1);
    return 0;
}

/* Takes a free ID from 1 to io_queues; bit qid: the pair exists. */
static int take_qid(struct nvme_ctrlr *c, uint16_t *out)
{
    int rc = -ENOSPC;

    pthread_mutex_lock(&c->lock);
    for (unsigned qid = 1; qid <= c->info.io_queues; qid++) {
        if (c->qids[qid / 64] & 1ull << qid % 64)
            continue;
        c->qids[qid / 64] |= 1ull << qid % 64;
        *out = (uint16_t)qid;
        rc = 0;
        break;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void put_qid(struct nvme_ctrlr *c, uint16_t qid)
{
    pthread_mutex_lock(&c->lock);
    c->qids[qid / 64] &= ~(1ull << qid % 64);
    pthread_mutex_unlock(&c->lock);
}

static bool is_live(const struct nvme_ctrlr *c, unsigned qid)
{
    return c->live_qids[qid / 64] & 1ull << qid % 64;
}

static void set_live(struct nvme_ctrlr *c, unsigned qid, bool live)
{
    if (live)
        c->live_qids[qid / 64] |= 1ull << qid % 64;
    else
        c->live_qids[qid / 64] &= ~(1ull << qid % 64);
}

static int qpair_create_queue(struct nvme_ctrlr *c, const struct nvme_qpair *qp,
                              enum nvme_admin_command opcode)
{
    bool sq = opcode == NVME_ADMIN_CREATE_SQ;
    struct nvme_sqe sqe = {.opcode = (uint8_t)opcode,
                           .prp1 = sq ? qp->sq_iova : qp->cq_iova,
                           .cdw10 = (qp->depth - 1) << 16 | qp->qid,
                           .cdw11 = (sq ? (uint32_t)qp->qid << 16 : 0) | QUEUE_CONTIGUOUS};

    return nvme_admin_locked(c, &sqe, NULL, 0, false, NULL);
}

static int qpair_delete_queue(struct nvme_ctrlr *c, enum nvme_admin_command opcode, uint16_t qid)
{
    struct nvme_sqe sqe = {.opcode = (uint8_t)opcode, .cdw10 = qid};

    return nvme_admin_locked(c, &sqe, NULL, 0, false, NULL);
}

/*
 * Creates a CQ. Some controllers keep I/O queues over CC.EN = 0 and refuse to
 * create a queue that exists. Such a queue, of an earlier epoch or driver, is
 * deleted first. Returns -EEXIST if it cannot be deleted.
 */
static int create_cq_anew(struct nvme_ctrlr *c, const struct nvme_qpair *qp)
{
    int rc = qpair_create_queue(c, qp, NVME_ADMIN_CREATE_CQ);
    bool deleted;

    if (!rc || c->admin_status != NVME_ERR_QID_INVALID)
        return rc;
    qpair_delete_queue(c, NVME_ADMIN_DELETE_SQ, qp->qid);
    if (!nvme_ctrlr_healthy(c))
        return rc;
    deleted = !qpair_delete_queue(c, NVME_ADMIN_DELETE_CQ, qp->qid);
    if (!deleted && c->admin_status != NVME_ERR_QUEUE_DELETION)
        return rc;
    c->keeps_queues = true;
    return deleted ? qpair_create_queue(c, qp, NVME_ADMIN_CREATE_CQ) : -EEXIST;
}

/* admin_lock is held: a reset comes before or after both. */
static int create_queues(struct nvme_ctrlr *c, const struct nvme_qpair *qp)
{
    int rc = create_cq_anew(c, qp);

    if (rc)
        return rc;
    rc = qpair_create_queue(c, qp, NVME_ADMIN_CREATE_SQ);
    set_live(c, qp->qid, !rc);
    /* If the completion queue cannot be deleted either, a reset must remove it. */
    if (rc && qpair_delete_queue(c, NVME_ADMIN_DELETE_CQ, qp->qid))
        nvme_ctrlr_mark_failed(c);
    return rc;
}

static int qpair_delete_queues(struct nvme_ctrlr *c, unsigned qid)
{
    int rc = qpair_delete_queue(c, NVME_ADMIN_DELETE_SQ, (uint16_t)qid);

    if (rc)
        return rc;
    rc = qpair_delete_queue(c, NVME_ADMIN_DELETE_CQ, (uint16_t)qid);
    if (!rc)
        set_live(c, qid, false);
    return rc;
}

/*
 * Gives new rings and another ID to a pair whose queues can be neither used nor
 * deleted. The old ID stays taken, and the old rings stay mapped until the
 * controller is closed, because it knows them and keeps queues over a reset.
 */
static int move_pair(struct nvme_ctrlr *c, struct nvme_qpair *qp)
{
    struct nvme_qpair fresh = {.depth = qp->depth, .epoch = qp->epoch, .share = qp->share};
    struct nvme_dma old = rings(qp);
    int rc = take_qid(c, &fresh.qid);

    if (rc)
        return rc;
    rc = alloc_rings(c, &fresh);
    if (rc) {
        put_qid(c, fresh.qid);
        return rc;
    }
    nvme_dma_orphan(c, &old);
    *qp = fresh;
    return 0;
}

static int create_or_move(struct nvme_ctrlr *c, struct nvme_qpair *qp)
{
    int rc = create_queues(c, qp);

    if (rc != -EEXIST)
        return rc;
    rc = move_pair(c, qp);
    return rc ? rc : create_queues(c, qp);
}

void nvme_qpair_delete_all(struct nvme_ctrlr *c)
{
    for (unsigned qid = 1; qid <= c->info.io_queues && nvme_ctrlr_healthy(c); qid++) {
        if (is_live(c, qid))
            qpair_delete_queues(c, qid);
    }
}

/*
 * Returns true if a reset has ended the pair's queues, as it does for every
 * earlier epoch. The caller holds admin_lock.
 */
static bool qpair_ended(const struct nvme_ctrlr *c, const struct nvme_qpair *qp)
{
    return qp->epoch != nvme_ctrlr_epoch(c);
}

/* The controller may know the queues: keeps all until a reset. */
static void abandon(struct nvme_ctrlr *c, struct nvme_qpair *qp)
{
    struct nvme_dma mem = rings(qp);

    nvme_dma_orphan(c, &mem);
    pthread_mutex_lock(&c->lock);
    c->lost_qids[qp->qid / 64] |= 1ull << qp->qid % 64;
    pthread_mutex_unlock(&c->lock);
    memset(qp, 0, sizeof(*qp));
    qp->fd = -1;
}

void nvme_qpair_all_ended(struct nvme_ctrlr *c)
{
    pthread_mutex_lock(&c->lock);
    for (unsigned i = 0; i < NVME_QID_WORDS; i++) {
        c->qids[i] &= ~c->lost_qids[i];
        c->lost_qids[i] = 0;
        c->live_qids[i] = 0;
    }
    pthread_mutex_unlock(&c->lock);
}

/* Creates a pair's queues; if they may exist in vain, it is gone. */
static int create_pair(struct nvme_ctrlr *c, struct nvme_qpair *qp)
{
    int rc;

    nvme_admin_begin(c);
    qp->epoch = nvme_ctrlr_epoch(c);
    rc = create_or_move(c, qp);
    if (rc && !nvme_ctrlr_healthy(c))
        abandon(c, qp);
    nvme_admin_end(c);
    return rc;
}

/* Returns true if the pair has been deleted. No live pair has the ID 0. */
static bool is_gone(const struct nvme_qpair *qp)
{
    return qp->qid == 0;
}

int nvme_qpair_create_shared(struct nvme_ctrlr *c, uint32_t depth, struct nvme_share share,
                             struct nvme_qpair *out)
{
    struct nvme_qpair qp = {.depth = depth, .share = share};
    struct nvme_dma mem;
    int rc;

    if (depth < 2 || depth > c->info.max_queue_depth)
        return -EINVAL;
    rc = take_qid(c, &qp.qid);
    if (rc)
        return rc;
    rc = alloc_rings(c, &qp);
    if (rc)
        goto put_qid;
    rc = create_pair(c, &qp);
    if (rc)
        goto free_rings;
    *out = qp;
    return 0;

free_rings:
    if (is_gone(&qp))
        return rc;
    mem = rings(&qp);
    nvme_dma_free(c, &mem);
put_qid:
    put_qid(c, qp.qid);
    return rc;
}

int nvme_qpair_create(struct nvme_ctrlr *c, uint32_t depth, struct nvme_qpair *out)
{
    return nvme_qpair_create_shared(c, depth, (struct nvme_share){0}, out);
}

int nvme_qpair_twin(struct nvme_ctrlr *c, const struct nvme_qpair *of, uint32_t depth,
                    struct nvme_qpair *out)
{
    struct nvme_qpair qp = {.qid = of->qid, .depth = depth, .epoch = of->epoch};

    if (depth < 2 || depth > c->info.max_queue_depth)
        return -EINVAL;
    int rc = alloc_rings(c, &qp);
    if (!rc)
        *out = qp;
    return rc;
}

void nvme_qpair_twin_free(struct nvme_ctrlr *c, struct nvme_qpair *twin, bool ended)
{
    struct nvme_dma mem = rings(twin);

    if (ended)
        nvme_dma_free(c, &mem);
    else
        nvme_dma_orphan(c, &mem);
    memset(twin, 0, sizeof(*twin));
    twin->fd = -1;
}

/* Deletes the queues unless a reset has. admin_lock is held. */
static int end_queues(struct nvme_ctrlr *c, const struct nvme_qpair *qp)
{
    return qpair_ended(c, qp) ? 0 : qpair_delete_queues(c, qp->qid);
}

int nvme_qpair_delete(struct nvme_ctrlr *c, struct nvme_qpair *qp)
{
    struct nvme_dma mem = rings(qp);
    int rc;

    if (is_gone(qp))
        return -ENODEV;
    nvme_admin_begin(c);
    rc = end_queues(c, qp);
    if (rc)
        abandon(c, qp);
    nvme_admin_end(c);
    if (rc)
        return rc;
    nvme_dma_free(c, &mem);
    put_qid(c, qp->qid);
    memset(qp, 0, sizeof(*qp));
    qp->fd = -1;
    return 0;
}

int nvme_qpair_recreate(struct nvme_ctrlr *c, struct nvme_qpair *qp)
{
    int rc;

    if (is_gone(qp))
        return -ENODEV;
    nvme_admin_begin(c);
    rc = end_queues(c, qp);
    if (!rc) {
        /* The queues have ended, so only this thread writes here now. */
        memset(qp->sq, 0, qp->sq_len + qp->cq_len);
        qp->epoch = nvme_ctrlr_epoch(c);
        rc = create_or_move(c, qp);
    }
    /* The state of the pair is unknown, so admin commands stop until a reset. */
    if (rc)
        nvme_ctrlr_mark_failed(c);
    nvme_admin_end(c);
    return rc;
}
