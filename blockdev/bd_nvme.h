/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The parts of the NVMe block device. A file calls only those above it in this list:
 *   bd_nvme_region.c   memory that the controller reaches
 *   bd_nvme_cmd.c      transfers are cut into commands
 *   bd_nvme_owner.c    threads that have a queue, and that park
 *   bd_nvme_poll.c     commands are posted and completed
 *   bd_nvme_user.c     queues are created again, also after resets of the controller
 *   bd_nvme_recover.c  commands that miss their deadline
 *   bd_nvme_run.c      a batch of transfers
 *   bd_nvme.c          device and queues
 */
#ifndef BLOCKDEV_BD_NVME_H
#define BLOCKDEV_BD_NVME_H

#include <pthread.h>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme_internal.h"
#include "blockdev/nvme/nvme_queue.h"
#include "support/clock.h"

#define BD_BOUNCE_MAX    (128u << 10) /* bytes of one bounced command */
#define BD_BOUNCE_BUDGET (16u << 20)  /* bytes of bounce memory of one queue */
#define BD_RETRIES       3u           /* of a command, after failures that may be passing */
#define BD_LATE_MS       500u         /* for completions to come in once their Aborts are sent */

/* A command and what belongs to it. */
struct bd_tracker {
    struct nvme_sqe sqe; /* with its CID also while none is under way */
    struct bd_io *io;
    uint64_t deadline; /* ns, now_ns() */
    char *copy_to;     /* bounced read: where the data goes at completion */
    size_t len;        /* bytes of data moved */
    unsigned tries;
    bool busy;
    bool late; /* has missed its deadline since it was sent */
};

/* Owned by the thread that took it with bd_queue_take(); no locks inside. */
struct bd_queue {
    struct nvme_bdev *d;
    struct nvme_qpair qp;
    struct nvme_ring ring;
    struct nvme_dma lists;  /* a page a tracker: PRP list, or DSM range */
    struct nvme_dma bounce; /* bounce_len bytes a tracker */
    size_t bounce_len;
    struct bd_tracker *trackers; /* depth - 1 */
    uint16_t *free;              /* stack of their indices */
    unsigned nfree, ntrackers;
    /*
     * Low bits of a CID: the tracker's index. The rest changes whenever the
     * tracker is posted: a second completion of a command is not taken for
     * that of the next one.
     */
    unsigned index_bits;
    bool rung;       /* the last SQ doorbell covers all posted entries */
    bool early;      /* a command was answered with "not yet" */
    bool dead;       /* the controller has failed for good */
    bool proven;     /* something has completed since it was created */
    unsigned broken; /* not 0: a reset must create it again; the number that did not */
    bool again;      /* created again by a reset: commands under way must be sent again */
    struct bd_queue *next;
};

/* Memory from bd_dma_alloc(). */
struct bd_region {
    struct nvme_dma dma;
    struct bd_region *next;
};

struct bd_waiter;

struct nvme_bdev {
    struct bd_dev dev;
    struct nvme_ctrlr *c;
    uint32_t nsid, lba_size;
    bool no_write_zeroes; /* atomic: not offered, or refused when tried */
    uint64_t progress;    /* atomic: counts completions, so that waiters can tell slow from stuck */

    pthread_mutex_t lock; /* free queues, waiters, parked owners */
    struct bd_queue *free;
    struct bd_waiter *first, **last; /* served in order of arrival */
    bool failed;                     /* the controller has failed for good */

    struct nvme_user user;
    bool stop;               /* atomic; written with the lock held: owners of queues, park */
    unsigned owners, parked; /* threads that have a queue, and that have let go of its rings */
    pthread_cond_t all_parked, go_on;

    pthread_rwlock_t regions_lock; /* regions */
    struct bd_region *regions;

    unsigned nqueues;
    struct bd_queue queues[];
};

/* The transfers of one bd_submit() and how far they have been cut into commands. */
struct bd_batch {
    struct bd_io *ios;
    size_t n;
    size_t at;     /* io being cut */
    uint64_t done; /* bytes of it already cut */
    uint64_t iova; /* of its buf, 0 when it must be bounced; valid when done > 0 */
};

/* bd_nvme_region.c */
/* IOVA of [buf, buf + len); 0 when the controller cannot reach it. */
uint64_t bd_region_iova(struct nvme_bdev *d, const void *buf, size_t len);
/* Methods of struct bd_ops. */
void *bd_region_alloc(struct bd_dev *dev, size_t len);
void bd_region_free(struct bd_dev *dev, void *buf, size_t len);

/* bd_nvme_cmd.c */
/* Fills a tracker with the next command of the batch; false when there is none. */
bool bd_cut(struct bd_queue *q, struct bd_batch *b, uint16_t index);
void bd_io_fail(struct bd_io *io, int error, uint16_t status);
/* The same of a transfer that ends because the controller is gone, or without a queue. Counted. */
void bd_io_lose(struct nvme_bdev *d, struct bd_io *io, int error);

/* bd_nvme_owner.c */
/*
 * The thread owns a queue from take to give. A reset waits until each owner has parked or left, and
 * a thread that wants to become an owner waits until the reset is over.
 */
int bd_queue_take(struct nvme_bdev *d, struct bd_queue **out);
void bd_queue_give(struct nvme_bdev *d, struct bd_queue *q);
/* Adds a queue to those that are free. With d->lock held. */
void bd_queue_put(struct nvme_bdev *d, struct bd_queue *q);
/* The thread becomes, or is no longer, an owner; with d->lock held. */
void bd_owner_enter(struct nvme_bdev *d);
void bd_owner_leave(struct nvme_bdev *d);
bool bd_must_park(const struct nvme_bdev *d);
/*
 * Parks the calling thread, which touches no ring until this returns, when no reset is under way.
 * reset: asks for a reset of the controller in its state of `epoch`. -EIO: failed for good.
 */
int bd_park(struct nvme_bdev *d, bool reset, unsigned epoch);
void bd_progress(struct nvme_bdev *d);
/* Final: no queue is handed out any more. */
void bd_fail(struct nvme_bdev *d);
/* Longest time from a command's deadline until it has ended or is sent again, ms. */
uint64_t bd_recover_ms(const struct nvme_bdev *d);

/* bd_nvme_poll.c */
void bd_post(struct bd_queue *q, struct bd_tracker *tracker);
/* Takes in completions; false when none was of a command under way. */
bool bd_poll(struct bd_queue *q);
void bd_tracker_put(struct bd_queue *q, struct bd_tracker *tracker);
/* Is a command under way whose deadline was at `now` (ns) or before? */
bool bd_any_expired(const struct bd_queue *q, uint64_t now);

/* bd_nvme_user.c: the controller's user */
void bd_user_init(struct nvme_bdev *d);
void bd_user_destroy(struct nvme_bdev *d);
/* For a queue pair just created. */
void bd_ring_init(struct bd_queue *q);
/* Deletes and creates the queue, or after a reset only creates it. False: broken. */
bool bd_queue_renew(struct bd_queue *q);

/* bd_nvme_recover.c */
/*
 * For a command that missed its deadline, a controller that is not alive, or a reset for which the
 * thread must park. On return every such command has ended or was sent again; or the queue is dead,
 * and all its commands have ended.
 */
void bd_recover(struct bd_queue *q);

/* bd_nvme_run.c */
void bd_run(struct bd_queue *q, struct bd_batch *b);

#endif
