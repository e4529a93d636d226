/* SPDX-License-Identifier: BSD-2-Clause */
/* Lends the only queue of the device (bd_lend.h). */
#include <assert.h>
#include <errno.h>

#include "blockdev/bd_nvme.h"

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

/* Creates the borrower's queues in the place of those that exist. */
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
