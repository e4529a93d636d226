/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements nvme_user for the block device: its threads stop using the rings
 * for a reset.
 */
#include <stddef.h>

#include "blockdev/bd_nvme.h"

static struct nvme_bdev *nvme_user_bdev_of(struct nvme_user *u)
{
    return (struct nvme_bdev *)(void *)((char *)u - offsetof(struct nvme_bdev, user));
}

void bd_ring_init(struct bd_queue *q)
{
    nvme_ring_init(&q->ring, &q->qp);
    q->rung = true;
    q->proven = false;
    q->broken = 0;
}

bool bd_queue_renew(struct bd_queue *q)
{
    if (nvme_qpair_recreate(q->d->c, &q->qp)) {
        q->broken++;
        return false;
    }
    bd_ring_init(q);
    return true;
}

/*
 * Waits until all owners of queues have parked. No thread becomes an owner
 * before nvme_user_resume().
 */
static void nvme_user_stop(struct nvme_user *u)
{
    struct nvme_bdev *d = nvme_user_bdev_of(u);

    pthread_mutex_lock(&d->lock);
    __atomic_store_n(&d->stop, true, __ATOMIC_RELAXED);
    while (d->parked < d->owners)
        pthread_cond_wait(&d->all_parked, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

/*
 * Unmaps memory from a failed controller that could not be stopped and might
 * still write to it, so that transfers can be reported as ended.
 */
static void revoke_memory(struct nvme_bdev *d)
{
    for (unsigned i = 0; i < d->nqueues; i++) {
        nvme_dma_revoke(d->c, &d->queues[i].lists);
        nvme_dma_revoke(d->c, &d->queues[i].bounce);
    }
    pthread_rwlock_wrlock(&d->regions_lock);
    for (struct bd_region *r = d->regions; r; r = r->next)
        nvme_dma_revoke(d->c, &r->dma);
    pthread_rwlock_unlock(&d->regions_lock);
}

static void renew_queues(struct nvme_bdev *d)
{
    for (unsigned i = 0; i < d->nqueues; i++)
        d->queues[i].again = bd_queue_renew(&d->queues[i]);
}

/* All owners are parked, so this thread may use their queues. */
static void nvme_user_resume(struct nvme_user *u, int err)
{
    struct nvme_bdev *d = nvme_user_bdev_of(u);

    if (!err)
        renew_queues(d);
    else if (!nvme_ctrlr_settled(d->c))
        revoke_memory(d);
    bd_progress(d);
    if (err)
        bd_fail(d);
    pthread_mutex_lock(&d->lock);
    __atomic_store_n(&d->stop, false, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&d->go_on);
    pthread_mutex_unlock(&d->lock);
}

void bd_user_init(struct nvme_bdev *d)
{
    pthread_cond_init(&d->all_parked, NULL);
    pthread_cond_init(&d->go_on, NULL);
    d->user.stop = nvme_user_stop;
    d->user.resume = nvme_user_resume;
    nvme_ctrlr_add_user(d->c, &d->user);
}

void bd_user_destroy(struct nvme_bdev *d)
{
    nvme_ctrlr_remove_user(d->c, &d->user);
    pthread_cond_destroy(&d->all_parked);
    pthread_cond_destroy(&d->go_on);
}
