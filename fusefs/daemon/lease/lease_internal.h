/* SPDX-License-Identifier: BSD-2-Clause */
/* Declares the table of leases, which lease.c and lease_extents.c share. */
#ifndef FUSEFS_DAEMON_LEASE_LEASE_INTERNAL_H
#define FUSEFS_DAEMON_LEASE_LEASE_INTERNAL_H

#include <pthread.h>
#include <sys/queue.h>

#include "cuda/engine/gq_doorbell_proxy.h"
#include "fusefs/daemon/base/ledger.h"
#include "fusefs/daemon/lease/lease.h"
#include "support/clock.h"

#define LEASE_NOT_PROXIED GQ_MAX_QUEUES

/* Describes a leased queue pair. */
struct lease_pair {
    struct nvme_qpair qp;
    unsigned proxied; /* index of its proxied doorbells, or LEASE_NOT_PROXIED */
    bool stopped;     /* if set, `commands` has the final number */
    uint64_t commands;
};

struct lease {
    uint64_t id, key;
    uid_t uid;
    struct open_file *owner;
    LIST_ENTRY(lease) entry; /* in the table */

    /* Shared with the holder, as are the extents that follow it. */
    struct gpunvme_lease_page *page;
    size_t page_len;
    int page_fd;

    /* Queues. Protected by the table's lock while the lease is in the table. */
    struct lease_pair *pairs;
    unsigned n_pairs;     /* 0: none, or deleted */
    bool revoked;         /* the pairs are deleted at delete_at */
    uint64_t delete_at;   /* now_ns() */
    bool deleting;        /* the table's thread deletes the pairs now */
    unsigned resets_seen; /* leases.resets before the pairs were created */

    /* Extents. */
    struct ffs_inode *inode; /* reference; NULL in a lease of queues */
    struct ffs_map map;
    struct ffs_watch watch;
    uint32_t segments; /* charged to the user; protected by the table's lock */
};

struct leases {
    struct daemon *d;
    struct nvme_ctrlr *ctrlr; /* NULL if leases are not supported */
    struct nvme_user user;    /* registered with ctrlr, if there is one */
    /*
     * Proxied doorbells, where the controller's cannot be mapped by
     * applications: memory shared with all holders, and the thread that
     * forwards the values.
     */
    struct gq_doorbell_proxy *proxy; /* NULL: holders map the controller's doorbells */
    struct gq_proxied_doorbell *proxied_doorbells;
    int proxied_fd;

    pthread_t thread;
    pthread_mutex_t lock; /* protects the fields below; not held during calls of the driver */
    pthread_cond_t changed;
    LIST_HEAD(, lease) all;
    LIST_HEAD(, open_file) closed; /* files whose leases the thread ends */
    struct ledger count;           /* leases, including those in creation */
    struct ledger queues;          /* leased, or reserved for a lease in creation */
    struct ledger segments;        /* of leased files, including leases in creation */
    unsigned resets;
    uint64_t commands; /* of stopped pairs */
    bool proxied_taken[GQ_MAX_QUEUES];
    bool stopping;
};

/* --- lease.c --- */

/* Does nothing without a controller. */
int lease_queues_open(struct leases *t);
void lease_queues_close(struct leases *t);
/*
 * Creates up to n pairs, which the caller has reserved. On an error l->n_pairs
 * may be above 0.
 */
int lease_queues_make(struct leases *t, struct lease *l, unsigned n, uint32_t depth);
/*
 * Start and stop the forwarding of the pairs' proxied doorbells and the
 * counting of their commands. The caller holds the lock. Stopping again has no
 * effect.
 */
void lease_queues_start(struct leases *t, struct lease *l);
void lease_queues_stop(struct leases *t, struct lease *l);
/*
 * Deletes the pairs, and resets the controller if a deletion fails.
 * Precondition: they are stopped, or were never started.
 */
void lease_queues_delete(struct leases *t, struct lease *l);
/* The caller holds the lock. Returns the deleted pairs to the limits. */
void lease_queues_forget(struct leases *t, struct lease *l);
/*
 * The caller holds the lock. Fills in *reply and fds for pair index. Returns
 * the number of descriptors, or -errno.
 */
int lease_queues_reply(const struct leases *t, const struct lease *l, uint64_t index,
                       struct gpunvme_reply *reply, int fds[2]);

/* --- lease_extents.c --- */

/*
 * Leases the extents of a file, and with with_sums also the checksums of its
 * data. On an error l may remain charged: the caller calls
 * lease_extents_forget() in either case.
 */
int lease_extents_make(struct lease *l, struct ffs_inode *inode, struct leases *t, bool with_sums,
                       uint64_t *count);
void lease_extents_end(struct lease *l);
/* The caller holds the lock. Ends the charge; the memory is free. */
void lease_extents_forget(struct leases *t, struct lease *l);
/*
 * Allocates the shared page with room for extents and for checksums after them,
 * sealed, in state VALID.
 */
int lease_page_make(struct lease *l, uint64_t extents, uint64_t sums);
void lease_page_end(struct lease *l);

#endif
