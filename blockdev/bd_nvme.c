/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens and closes a namespace as a block device, and submits transfers. */
#include "blockdev/bd_nvme.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/clock.h"
#include "support/wait.h"

#define SLEEPS_PER_CHECK 64u /* in the end 64 ms: a vfio-user register read takes milliseconds */
#define POLLS_PER_CHECK  64u

static void nvme_run_fill(struct bd_queue *q, struct bd_batch *b)
{
    while (q->nfree > 0 && bd_cut(q, b, q->free[q->nfree - 1])) {
        q->nfree--;
        bd_post(q, &q->trackers[q->free[q->nfree]]);
    }
}

static void ring(struct bd_queue *q)
{
    if (q->rung)
        return;
    nvme_ring_doorbell(&q->ring);
    nvme_kick(nvme_ctrlr_transport(q->d->c), q->qp.qid);
    q->rung = true;
}

/* Slows down the retries of commands completed with "not yet". */
static void pause_if_early(struct bd_queue *q)
{
    if (q->early)
        wait_ms(NVME_PATIENCE_MS);
    q->early = false;
}

/*
 * Waits a little. Returns false if a command has expired or the controller is
 * not alive. The caller then polls once more, since completions may have
 * arrived if other work had the processor meanwhile.
 */
static bool wait_some(struct bd_queue *q, struct poll_wait *wait, unsigned *sleeps)
{
    if (!poll_wait_once(wait))
        return true;
    if (++*sleeps % SLEEPS_PER_CHECK == 0 && !nvme_ctrlr_alive(q->d->c))
        return false;
    return !bd_any_expired(q, now_ns());
}

/*
 * Checks for a lost command rarely while others complete. Completions may have
 * arrived while other work had the processor, so it polls before the second look.
 */
static bool has_expired(struct bd_queue *q, unsigned *polls)
{
    if (++*polls % POLLS_PER_CHECK != 0 || !bd_any_expired(q, now_ns()))
        return false;
    bd_poll(q);
    return bd_any_expired(q, now_ns());
}

/* Runs transfers until all have ended, for the owner of the queue. */
static void nvme_run(struct bd_queue *q, struct bd_io *ios, size_t n)
{
    struct bd_batch batch = {.ios = ios, .n = n}, *b = &batch;
    struct poll_wait wait = {0};
    unsigned sleeps = 0, polls = 0;

    while (!q->dead) {
        if (bd_must_park(q->d) || q->broken) {
            bd_recover(q);
            continue;
        }
        nvme_run_fill(q, b);
        if (q->nfree == q->ntrackers)
            return;
        ring(q);
        if (bd_poll(q)) {
            poll_wait_reset(&wait);
            pause_if_early(q);
            if (has_expired(q, &polls))
                bd_recover(q);
        } else if (!wait_some(q, &wait, &sleeps) && !bd_poll(q)) {
            bd_recover(q);
        }
    }
    /* A dead queue has failed the commands that were sent. */
    for (; b->at < b->n; b->at++)
        bd_io_lose(q->d, &b->ios[b->at], -EIO);
}

static struct nvme_bdev *nvme_bdev_of(struct bd_dev *dev)
{
    return (struct nvme_bdev *)dev;
}

/* Writes zeroes where WRITE ZEROES was refused: it is optional. */
static void redo_refused_zeroes(struct bd_queue *q, struct bd_io *ios, size_t n)
{
    for (size_t i = 0; i < n && !q->dead; i++) {
        unsigned code = ios[i].nvme_status & 0x7ffu;

        if (ios[i].op != BD_WRITE_ZEROES ||
            (code != NVME_ERR_INVALID_OPCODE && code != NVME_ERR_INVALID_FIELD))
            continue;
        __atomic_store_n(&q->d->no_write_zeroes, true, __ATOMIC_RELAXED);
        ios[i].error = 0;
        ios[i].nvme_status = 0;
        nvme_run(q, &ios[i], 1);
    }
}

/* Without FUA, a FLUSH decides whether data of FUA writes is durable. */
static void flush_ignored_fua(struct bd_queue *q, struct bd_io *ios, size_t n)
{
    struct bd_io flush = {.op = BD_FLUSH};
    bool written = false;

    for (size_t i = 0; i < n; i++)
        written = written || (ios[i].flags & BD_FUA && !ios[i].error);
    if (!written || !(q->d->c->info.quirks & NVME_QUIRK_IGNORES_FUA))
        return;
    nvme_run(q, &flush, 1);
    for (size_t i = 0; i < n; i++) {
        if (ios[i].flags & BD_FUA)
            bd_io_fail(&ios[i], flush.error, flush.nvme_status);
    }
}

static int nvme_bdev_submit(struct bd_dev *dev, struct bd_io *ios, size_t n)
{
    struct nvme_bdev *d = nvme_bdev_of(dev);
    struct bd_queue *q;
    int rc = nvme_ctrlr_watch(d->c);

    if (!rc)
        rc = bd_queue_take(d, NULL, &q);

    if (rc) {
        for (size_t i = 0; i < n; i++)
            bd_io_lose(d, &ios[i], rc);
        return rc;
    }
    if (q->lent)
        bd_queue_renew(q); /* nvme_run() recovers from an error */
    nvme_run(q, ios, n);
    redo_refused_zeroes(q, ios, n);
    flush_ignored_fua(q, ios, n);
    bd_queue_give(d, q);
    for (size_t i = 0; i < n && !rc; i++)
        rc = ios[i].error;
    return rc;
}

static void free_trackers(struct bd_queue *q)
{
    free(q->trackers);
    free(q->free);
}

static int alloc_trackers(struct bd_queue *q, unsigned depth)
{
    q->ntrackers = q->nfree = depth - 1;
    q->trackers = calloc(q->ntrackers, sizeof(*q->trackers));
    q->free = calloc(q->ntrackers, sizeof(*q->free));
    if (!q->trackers || !q->free) {
        free_trackers(q);
        return -ENOMEM;
    }
    for (unsigned i = 0; i < q->ntrackers; i++)
        q->trackers[i].sqe.cid = q->free[i] = (uint16_t)i;
    /* No index has all bits set, so no CID is FFFFh. */
    while (1u << q->index_bits <= q->ntrackers)
        q->index_bits++;
    return 0;
}

/* Returns the bounce bytes of a tracker: whole pages within limits. */
static size_t bounce_per_tracker(const struct nvme_bdev *d, unsigned trackers)
{
    size_t budget = d->c->t->physical ? NVME_LARGE_PAGE : BD_BOUNCE_BUDGET;
    size_t len = budget / trackers & ~(size_t)(NVME_PAGE_SIZE - 1);

    if (len > BD_BOUNCE_MAX)
        len = BD_BOUNCE_MAX;
    if (len > d->c->info.max_transfer)
        len = d->c->info.max_transfer;
    return len < NVME_PAGE_SIZE ? NVME_PAGE_SIZE : len;
}

static int queue_open(struct nvme_bdev *d, struct bd_queue *q, unsigned depth)
{
    int rc = alloc_trackers(q, depth);

    if (rc)
        return rc;
    q->d = d;
    q->bounce_len = bounce_per_tracker(d, q->ntrackers);
    rc = nvme_dma_alloc(d->c, q->ntrackers * NVME_PAGE_SIZE, &q->lists);
    if (rc)
        goto free_trackers;
    rc = nvme_dma_alloc(d->c, q->ntrackers * q->bounce_len, &q->bounce);
    if (rc)
        goto free_lists;
    rc = nvme_qpair_create(d->c, depth, &q->qp);
    if (rc)
        goto free_bounce;
    bd_ring_init(q);
    return 0;

free_bounce:
    nvme_dma_free(d->c, &q->bounce);
free_lists:
    nvme_dma_free(d->c, &q->lists);
free_trackers:
    free_trackers(q);
    return rc;
}

static void queue_close(struct nvme_bdev *d, struct bd_queue *q)
{
    free_trackers(q);
    if (nvme_qpair_delete(d->c, &q->qp)) {
        nvme_dma_orphan(d->c, &q->lists);
        nvme_dma_orphan(d->c, &q->bounce);
        return;
    }
    nvme_dma_free(d->c, &q->bounce);
    nvme_dma_free(d->c, &q->lists);
}

static void nvme_bdev_close(struct bd_dev *dev)
{
    struct nvme_bdev *d = nvme_bdev_of(dev);

    assert(LIST_EMPTY(&d->regions) && "memory from bd_dma_alloc outlives its device");
    bd_user_destroy(d);
    for (unsigned i = 0; i < d->nqueues; i++)
        queue_close(d, &d->queues[i]);
    pthread_rwlock_destroy(&d->regions_lock);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/* Reads the size, which a reset then takes for the least. */
static int nvme_bdev_capacity(struct bd_dev *dev, uint64_t *bytes)
{
    struct nvme_bdev *d = nvme_bdev_of(dev);
    struct nvme_ns_info ns;
    int rc = nvme_ns_refresh(d->c, d->nsid, &ns);

    *bytes = rc ? 0 : ns.lbas * ns.lba_size;
    return rc;
}

static const struct bd_ops nvme_bdev_ops = {
    .submit = nvme_bdev_submit,
    .dma_alloc = bd_region_alloc,
    .dma_free = bd_region_free,
    .close = nvme_bdev_close,
    .capacity = nvme_bdev_capacity,
};

static void nvme_describe(struct nvme_bdev *d, const struct nvme_ns_info *ns)
{
    struct bd_info *info = &d->dev.info;

    info->bytes = ns->lbas * ns->lba_size;
    info->lba_size = ns->lba_size;
    info->volatile_cache = d->c->info.volatile_cache;
    info->read_only = ns->read_only;
    info->discards = d->c->info.dsm;
    info->shared = d->c->t->remote || d->c->info.shared || ns->shared;
    info->lock = d->c->t->lock;
    snprintf(info->name, sizeof(info->name), "%s %s/%u", d->c->t->ops->name, d->c->info.serial,
             ns->nsid);
}

/*
 * Creates as many queue pairs as it can get; one is enough. Entering as an
 * owner makes a reset wait until it is done.
 */
static int nvme_open_queues(struct nvme_bdev *d, unsigned queues, unsigned depth)
{
    int rc = 0;

    pthread_mutex_lock(&d->lock);
    bd_owner_enter(d);
    pthread_mutex_unlock(&d->lock);
    while (!rc && d->nqueues < queues) {
        rc = queue_open(d, &d->queues[d->nqueues], depth);
        if (!rc)
            d->nqueues++;
    }
    pthread_mutex_lock(&d->lock);
    for (unsigned i = d->nqueues; i-- > 0;)
        bd_queue_put(d, &d->queues[i]);
    bd_owner_leave(d);
    pthread_mutex_unlock(&d->lock);
    return d->nqueues ? 0 : rc;
}

static int check_format(struct nvme_ctrlr *c, uint32_t nsid, struct nvme_ns_info *ns)
{
    int rc = nvme_ns_info(c, nsid, ns);

    if (rc)
        return rc;
    return nvme_ns_unusable(ns) ? -ENOTSUP : 0;
}

int bd_nvme_open(struct nvme_ctrlr *ctrlr, uint32_t nsid, unsigned queues, unsigned depth,
                 struct bd_dev **out)
{
    struct nvme_ns_info ns;
    struct nvme_bdev *d;
    int rc = check_format(ctrlr, nsid, &ns);

    assert(queues > 0 && depth >= 2);
    if (rc)
        return rc;
    d = calloc(1, sizeof(*d) + queues * sizeof(d->queues[0]));
    if (!d)
        return -ENOMEM;
    d->dev.ops = &nvme_bdev_ops;
    d->c = ctrlr;
    d->nsid = nsid;
    d->lba_size = ns.lba_size;
    d->no_write_zeroes = !ctrlr->info.write_zeroes;
    TAILQ_INIT(&d->waiters);
    pthread_mutex_init(&d->lock, NULL);
    pthread_rwlock_init(&d->regions_lock, NULL);
    nvme_describe(d, &ns);
    if (depth > ctrlr->info.max_queue_depth)
        depth = ctrlr->info.max_queue_depth;
    bd_user_init(d);
    rc = nvme_open_queues(d, queues, depth);
    if (rc) {
        nvme_bdev_close(&d->dev);
        return rc;
    }
    *out = &d->dev;
    return 0;
}

/* --- Lending the only queue (bd_lend.h) ------------------------------------------------------- */

int bd_lend_open(struct bd_dev *dev, uint32_t depth, struct nvme_qpair *pair)
{
    struct nvme_bdev *d = (struct nvme_bdev *)dev;

    assert(d->nqueues == 1 && "a device with more queues has one to spare");
    return nvme_qpair_twin(d->c, &d->queues[0].qp, depth, pair);
}

void bd_lend_close(struct bd_dev *dev, struct nvme_qpair *pair)
{
    struct nvme_bdev *d = (struct nvme_bdev *)dev;
    struct bd_queue *q;
    bool ended = false;

    if (!bd_queue_take(d, NULL, &q)) {
        ended = q->lent != pair || bd_queue_renew(q);
        bd_queue_give(d, q);
    }
    nvme_qpair_twin_free(d->c, pair, ended);
}

/* Replaces the existing queues by those of the borrower. */
static int lend_create(struct bd_queue *q, struct nvme_qpair *pair)
{
    if (q->broken)
        return -ENODEV;
    pair->epoch = q->qp.epoch;
    if (nvme_qpair_recreate(q->d->c, pair)) {
        q->broken++;
        return -ENODEV;
    }
    q->lent = pair;
    return 1;
}

int bd_lend_take(struct bd_dev *dev, struct nvme_qpair *pair, struct bd_leave *leave)
{
    struct nvme_bdev *d = (struct nvme_bdev *)dev;
    struct bd_queue *q;
    int rc = bd_queue_take(d, leave, &q);

    if (rc)
        return rc;
    if (q->lent != pair)
        rc = lend_create(q, pair);
    if (rc < 0)
        bd_queue_give(d, q);
    return rc;
}

int bd_lend_give(struct bd_dev *dev, struct nvme_qpair *pair, bool end)
{
    struct nvme_bdev *d = (struct nvme_bdev *)dev;
    struct bd_queue *q = &d->queues[0];

    assert(q->lent == pair && "given without a take");
    (void)pair;
    bool failed = end && !bd_queue_renew(q);
    bd_progress(d);
    bd_queue_give(d, q);
    return failed ? -EIO : 0;
}
