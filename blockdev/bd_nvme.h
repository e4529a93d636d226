/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the parts of the NVMe block device. A file calls only the files above
 * it in this list:
 *   bd_nvme_queue.c    runs and parks the threads that own a queue, cuts transfers
 *                      into commands, posts them, and handles completions
 *   bd_nvme_recover.c  handles commands that miss their deadline
 *   bd_nvme.c          opens and closes the device, runs transfers, and lends an
 *                      only queue
 */
#ifndef BLOCKDEV_BD_NVME_H
#define BLOCKDEV_BD_NVME_H

#include <pthread.h>
#include <sys/queue.h>

#include "blockdev/bd_lend.h"
#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme_internal.h"
#include "blockdev/nvme/nvme_queue.h"
#include "support/clock.h"

#define BD_BOUNCE_MAX    (128u << 10) /* bytes of one bounced command */
#define BD_BOUNCE_BUDGET (16u << 20)  /* bytes of bounce memory per queue */
#define BD_RETRIES       3u           /* retries of a command after failures with DNR clear */
#define BD_LATE_MS       500u         /* wait for completions after their Aborts were sent */

/* Holds one command and its state. */
struct bd_tracker {
    struct nvme_sqe sqe; /* holds its CID even while idle */
    struct bd_io *io;
    uint64_t deadline; /* ns, now_ns() */
    char *copy_to;     /* bounced read: destination of the data at completion */
    size_t len;        /* bytes of data to transfer */
    unsigned tries;
    /* ns: end of the wait for a change of access; 0: it has not begun. */
    uint64_t transition_end;
    bool busy;
    bool late; /* missed its deadline since it was last sent */
};

/* Its owner is the thread that took it, so it has no locks. */
struct bd_queue {
    struct nvme_bdev *d;
    struct nvme_qpair qp;
    struct nvme_ring ring;
    struct nvme_dma lists;  /* one page per tracker: PRP list or DSM range */
    struct nvme_dma bounce; /* bounce_len bytes per tracker */
    size_t bounce_len;
    struct bd_tracker *trackers; /* depth - 1 elements */
    uint16_t *free;              /* stack of their indices */
    unsigned nfree, ntrackers;
    /*
     * The low bits of a CID are the tracker's index. The other bits change each
     * time the tracker is posted, so that a second completion of a command is not
     * taken for the completion of the next one.
     */
    unsigned index_bits;
    bool rung;       /* the last SQ doorbell covers all posted entries */
    bool early;      /* a command was completed with "not yet" */
    bool dead;       /* the controller has failed for good */
    bool proven;     /* a command has completed since the queue was created */
    unsigned broken; /* failed attempts to create it again; a reset must do it if not 0 */
    bool again;      /* a reset has created it again: resend the commands in flight */
    /* The borrower's pair while the controller has its queues instead of qp's, else NULL. */
    const struct nvme_qpair *lent;
    struct bd_queue *next;
};

/* Describes an allocation made by bd_dma_alloc(). */
struct bd_region {
    struct nvme_dma dma;
    LIST_ENTRY(bd_region) entry;
};

struct nvme_bdev {
    struct bd_dev dev;
    struct nvme_ctrlr *c;
    uint32_t nsid, lba_size;
    bool no_write_zeroes; /* atomic: not supported, or refused when tried */
    uint64_t progress;    /* atomic: counts completions and recovery steps */

    pthread_mutex_t lock; /* protects free, waiters, failed, owners and parked */
    struct bd_queue *free;
    TAILQ_HEAD(, bd_waiter) waiters; /* served in order of arrival */
    bool failed;                     /* the controller has failed for good */

    struct nvme_user user;
    bool stop;               /* atomic, written under the lock: owners of queues must park */
    unsigned owners, parked; /* threads that own a queue; those that have stopped using its rings */
    pthread_cond_t all_parked, go_on;

    pthread_rwlock_t regions_lock; /* protects regions */
    LIST_HEAD(, bd_region) regions;

    unsigned nqueues;
    struct bd_queue queues[];
};

/*
 * Holds the transfers of one bd_submit() and how far they have been cut into
 * commands.
 */
struct bd_batch {
    struct bd_io *ios;
    size_t n;
    size_t at;     /* index of the io being cut */
    uint64_t done; /* bytes of that io already cut */
    uint64_t iova; /* address of buf, 0 if it must be bounced; valid if done > 0 */
};

/* The following two functions are methods of struct bd_ops. */
void *bd_region_alloc(struct bd_dev *dev, size_t len);
void bd_region_free(struct bd_dev *dev, void *buf, size_t len);

/* bd_nvme_queue.c */
/* Fills a tracker with the batch's next command. Returns false at the end. */
bool bd_cut(struct bd_queue *q, struct bd_batch *b, uint16_t index);
/* Stores error and status in the transfer unless it has failed already. */
void bd_io_fail(struct bd_io *io, int error, uint16_t status);
/*
 * Like bd_io_fail(), for a transfer that ends because the controller is gone or
 * no queue was free. Counts the error.
 */
void bd_io_lose(struct nvme_bdev *d, struct bd_io *io, int error);

/*
 * A thread owns a queue from take to give. A reset waits until each owner has
 * parked or left, and a thread that wants to become an owner waits until the
 * reset is over. Returns -EIO if the controller has failed, -ETIMEDOUT if no
 * owner made progress, and -ERESTART after leave->now() returned true. `leave`
 * may be NULL.
 */
int bd_queue_take(struct nvme_bdev *d, struct bd_leave *leave, struct bd_queue **out);
/* Ends the ownership and hands the queue to the longest waiter. */
void bd_queue_give(struct nvme_bdev *d, struct bd_queue *q);
/* Adds a queue to the free list. The caller holds d->lock. */
void bd_queue_put(struct nvme_bdev *d, struct bd_queue *q);
/* Add the thread to the owners, or remove it. The caller holds d->lock. */
void bd_owner_enter(struct nvme_bdev *d);
void bd_owner_leave(struct nvme_bdev *d);
/* Returns true if the calling owner must park for a reset. */
bool bd_must_park(const struct nvme_bdev *d);
/*
 * Parks the calling owner, which touches no ring until this returns after the
 * reset. If `reset` is true, it first requests a reset of the controller as of
 * `epoch`. Returns -EIO if the controller has failed for good.
 */
int bd_park(struct nvme_bdev *d, bool reset, unsigned epoch);
/* Counts one completion or step of recovery, so that waiters keep waiting. */
void bd_progress(struct nvme_bdev *d);
/* Marks the device as failed for good: no queue is handed out any more. */
void bd_fail(struct nvme_bdev *d);
/* Returns the most ms from a deadline to the command's end or resend. */
uint64_t bd_recover_ms(const struct nvme_bdev *d);

/* Posts a command with its deadline; the caller rings the doorbell. */
void bd_post(struct bd_queue *q, struct bd_tracker *tracker);
/* Handles completions; returns false if none belongs to a command in flight. */
bool bd_poll(struct bd_queue *q);
/* Returns the tracker to the queue's free list. */
void bd_tracker_put(struct bd_queue *q, struct bd_tracker *tracker);
/* Returns true if a command in flight had its deadline at `now` (ns) or earlier. */
bool bd_any_expired(const struct bd_queue *q, uint64_t now);

/* Adds the device to the users of its controller. bd_user_destroy() removes it. */
void bd_user_init(struct nvme_bdev *d);
void bd_user_destroy(struct nvme_bdev *d);
/* Resets the ring for a queue pair just created. */
void bd_ring_init(struct bd_queue *q);
/*
 * Deletes and creates the queue, also in the place of a borrower's; after a
 * reset only creates it. Returns false and counts in q->broken if that fails.
 */
bool bd_queue_renew(struct bd_queue *q);

/* bd_nvme_recover.c */
/*
 * Called when a command has missed its deadline, the controller is not alive,
 * or the thread must park for a reset. On return every such command has ended
 * or was sent again, or the queue is dead and all its commands have ended.
 */
void bd_recover(struct bd_queue *q);

#endif
