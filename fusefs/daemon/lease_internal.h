/*
 * The table of leases from inside: lease.c, and the files of its two kinds.
 */
#ifndef FUSEFS_DAEMON_LEASE_INTERNAL_H
#define FUSEFS_DAEMON_LEASE_INTERNAL_H

#include <pthread.h>

#include "cuda/gq_ringer.h"
#include "fusefs/daemon/lease.h"

#define LEASE_NO_SHADOW GQ_MAX_QUEUES

/* Queue pairs of a lease. */
struct lease_pair {
    struct nvme_qpair qp;
    unsigned shadow; /* its place in the table's shadows; LEASE_NO_SHADOW: none */
};

struct lease {
    uint64_t id, key;
    uid_t uid;
    struct open_file *owner;
    struct lease *next; /* in the table, or in a list of leases to end */

    struct gpunvme_lease_page *page; /* shared; what follows it too */
    size_t page_len;
    int page_fd;

    /* Queues: protected by the table's lock while the lease is in the table. */
    struct lease_pair *pairs;
    unsigned n_pairs;         /* 0: none, or deleted */
    bool revoked;             /* and to be deleted at delete_at, */
    uint64_t delete_at;       /* nvme_now_ns() */
    bool deleting;            /* which is under way: the table's thread has the pairs */
    unsigned resets_seen;     /* of the table's, before the pairs were made */
    struct gq_remote *copier; /* of its holder, once he has asked; NULL: none, */
    int no_copier;            /* -EDQUOT, -EBUSY: he has asked in vain */

    /* Extents. */
    struct ffs_inode *inode; /* a reference; NULL: a lease of queues */
    struct ffs_map map;
    struct ffs_watch watch;
    uint32_t segments;          /* that it counts for; 0: it is not in the table's list of these, */
    struct lease *next_counted; /* protected by the table's lock, as that */
};

struct leases {
    struct daemon *d;
    struct nvme_ctrlr *ctrlr; /* NULL: nothing can be leased */
    struct nvme_user user;    /* of the controller, while it has one */
    unsigned max_queues;
    /*
     * Where the doorbells cannot be handed on: shadows in memory that all holders share, and who
     * passes them on.
     */
    struct gq_ringer *ringer; /* NULL: the controller's own */
    struct gq_shadow *shadows;
    int shadows_fd;

    pthread_t thread;
    pthread_mutex_t lock; /* protects the rest; not held while the driver is called */
    pthread_cond_t changed;
    struct lease *first;
    struct lease *counted;    /* leases that have segments, also those that are being made */
    struct open_file *closed; /* files whose leases the thread is to end, by open_file.next */
    unsigned count;
    unsigned queues; /* leased, or promised to a lease that is being made */
    unsigned resets;
    bool shadow_taken[GQ_MAX_QUEUES];
    bool stopping;
};

/* --- lease_queues.c --- */

/* Without a controller, nothing. */
int lease_queues_open(struct leases *t);
void lease_queues_close(struct leases *t);
/* Makes the pairs of l, at most n; the table has promised them. On an error some may be there. */
int lease_queues_make(struct leases *t, struct lease *l, unsigned n, uint32_t depth);
/* Under the lock: the pairs' doorbells work from now on, or no more. */
void lease_queues_start(struct leases *t, struct lease *l);
void lease_queues_stop(struct leases *t, struct lease *l);
/* Deletes the pairs, by a reset where that fails. They were stopped, or never started. */
void lease_queues_delete(struct leases *t, struct lease *l);
/* Under the lock: nothing is left of the deleted pairs. */
void lease_queues_forget(struct leases *t, struct lease *l);
/* Under the lock. How many descriptors, or -errno. */
int lease_queues_tell(const struct leases *t, const struct lease *l, uint64_t index,
                      struct gpunvme_told *told, int fds[2]);

/* --- lease_extents.c --- */

/* On an error l may count for segments still: forget() comes in any case. */
int lease_extents_make(struct lease *l, struct ffs_inode *inode, struct leases *t, uint64_t *count);
void lease_extents_end(struct lease *l);
/* Under the lock: its memory is free. */
void lease_extents_forget(struct leases *t, struct lease *l);
/* A page of its own, with room for extents behind it: VALID, and seals on it. */
int lease_page_make(struct lease *l, uint64_t extents);
void lease_page_end(struct lease *l);

#endif
