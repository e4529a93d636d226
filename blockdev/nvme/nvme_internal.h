/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the controller as seen inside the driver, for blockdev's own sources
 * and their tests.
 */
#ifndef BLOCKDEV_NVME_NVME_INTERNAL_H
#define BLOCKDEV_NVME_NVME_INTERNAL_H

#include <pthread.h>
#include <sys/cdefs.h>
#include <sys/queue.h>

#include "blockdev/nvme/nvme.h"
#include "blockdev/nvme/nvme_iova.h"
#include "blockdev/nvme/nvme_queue.h"

__BEGIN_DECLS

#define NVME_CQE_DWORDS      (sizeof(struct nvme_cqe) / sizeof(uint32_t))
#define NVME_ADMIN_DEPTH     32u
#define NVME_MAX_QPAIRS      1024u
#define NVME_DEFAULT_MS      10000u
#define NVME_PHYSICAL_MAX    (1u << 20) /* bytes of one command if addresses are physical */
#define NVME_QID_WORDS       (NVME_MAX_QPAIRS / 64 + 1)
#define NVME_PATIENCE_MS     10u   /* between two tries of a command that came too early */
#define NVME_SHUTDOWN_MS     1000u /* minimum; a controller may report more (RTD3E) */
#define NVME_SHUTDOWN_MAX_MS 60000u
#define NVME_ARENA_MIN       (256u << 10) /* bytes */

/* Describes abandoned DMA memory that the controller may still reach. */
struct nvme_orphan {
    struct nvme_dma dma;
    LIST_ENTRY(nvme_orphan) entry;
};

/* A namespace in use, which a reset must find unchanged. */
struct nvme_known_ns {
    struct nvme_ns_info info;
    struct nvme_known_ns *next;
};

/*
 * The outstanding Asynchronous Event Request, by which a controller reports
 * that a namespace has changed. Written under admin_lock.
 */
struct nvme_watch {
    bool offered;        /* the controller reports such changes; set at open */
    bool posted;         /* the request is outstanding */
    uint16_t cid;        /* of the request */
    uint32_t next;       /* atomic; CQ head << 1 | phase of the next admin completion */
    uint64_t seen, done; /* atomic; events, and those whose namespaces were compared */
};

enum nvme_health {
    NVME_HEALTHY,
    NVME_UNHEALTHY, /* fatal status, gone, or a lost admin command: needs a reset */
    NVME_FAILED,    /* final */
};

/*
 * Locks are taken in this order: reset_lock, admin_lock, lock; reset_lock,
 * admin_lock, dma_lock.
 */
struct nvme_ctrlr {
    struct nvme_transport *t;
    struct nvme_ctrlr_info info;
    uint64_t cap;
    uint32_t version; /* VS */
    unsigned quirks;  /* derived from its PCI IDs */
    unsigned admin_timeout_ms, io_timeout_ms;
    unsigned shutdown_ms;
    unsigned queues_requested;

    enum nvme_health health;       /* atomic */
    bool settled;                  /* atomic; after a failure: it touches no memory any more */
    bool replaced;                 /* atomic; failed as another controller or namespace */
    bool taken;                    /* atomic; another host has reserved a namespace in use */
    uint32_t reserved_nsid;        /* the namespace of nvme_reserve(), or 0; under admin_lock */
    unsigned epoch;                /* atomic; written under admin_lock */
    unsigned retries;              /* atomic; resets since an I/O command last completed */
    struct nvme_counters counters; /* atomic; see nvme_count() */
    bool unanswered;               /* atomic; a read got no answer since nvme_answered() */

    pthread_mutex_t reset_lock; /* protects users; held during a reset */
    LIST_HEAD(, nvme_user) users;

    pthread_mutex_t admin_lock; /* protects the admin queue and its data page */
    struct nvme_dma admin_mem;  /* SQ page, CQ page, data page */
    struct nvme_ring admin_ring;
    uint16_t admin_cid;
    uint16_t admin_status; /* status of the last command, 0 if there was none */
    uint64_t admin_until;  /* ns; deadline of all commands, 0 if none */
    struct nvme_watch watch;
    struct nvme_known_ns *known;
    uint64_t live_qids[NVME_QID_WORDS]; /* pairs that exist in the controller */
    bool keeps_queues;                  /* has kept queues over CC.EN = 0, with their commands */

    pthread_mutex_t lock; /* protects qids, lost_qids and orphans */
    uint64_t qids[NVME_QID_WORDS];
    uint64_t lost_qids[NVME_QID_WORDS]; /* pairs that only a reset can end */
    LIST_HEAD(, nvme_orphan) orphans;

    /* Protects the members below, and the transport's map() and unmap(). */
    pthread_mutex_t dma_lock;
    unsigned regions;                     /* mapped now; atomic, written under the lock */
    unsigned late_regions;                /* those among them whose unmap was late; like regions */
    bool refused_region;                  /* one was refused since open; like regions */
    unsigned refused_at;                  /* number that the controller kept then; like regions */
    LIST_HEAD(, nvme_arena) arenas;       /* nvme_dma.c */
    uint64_t shares;                      /* number of the last share; atomic */
    LIST_HEAD(, nvme_file_map) file_maps; /* nvme_map.c */
    LIST_HEAD(, nvme_leaving) leaving;    /* regions whose unmap has missed its deadline */
};

/* Relaxed: counters are only displayed and order nothing. */
static inline void nvme_count(uint64_t *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

/* Returns the admin CQ. */
static inline uint32_t *nvme_admin_cq(const struct nvme_ctrlr *c)
{
    return (uint32_t *)(void *)((char *)c->admin_mem.addr + NVME_PAGE_SIZE);
}

/*
 * Returns the dword with CID and status of an entry of the admin CQ. Any thread
 * may call this function.
 */
static inline const uint32_t *nvme_admin_cqe(const struct nvme_ctrlr *c, uint32_t index)
{
    return nvme_admin_cq(c) + (index + 1) * NVME_CQE_DWORDS - 1;
}

/*
 * A file calls only the files above it in this list: nvme_state.c, nvme_map.c,
 * nvme_dma.c, nvme_admin.c, nvme_namespace.c and nvme_qpair.c, nvme_reserve.c,
 * nvme_reset.c and nvme_ctrlr.c.
 */

/* nvme_state.c */
/* Returns true once the controller has failed for good. */
bool nvme_ctrlr_failed(const struct nvme_ctrlr *c);
/* Makes admin commands fail until a reset has succeeded. */
void nvme_ctrlr_mark_failed(struct nvme_ctrlr *c);
/* Returns true while admin commands may be sent. */
bool nvme_ctrlr_healthy(const struct nvme_ctrlr *c);
/*
 * Marks the controller as failed for good. settled means that the controller
 * certainly accesses no memory any more (nvme_quiesce()).
 */
void nvme_ctrlr_fail(struct nvme_ctrlr *c, bool settled);
/* Returns the bytes from one doorbell to the next. */
size_t nvme_doorbell_stride(const struct nvme_ctrlr *c);
/* Returns the doorbell `index`: 2 * qid for the SQ, 2 * qid + 1 for the CQ. */
volatile uint32_t *nvme_ctrlr_doorbell(const struct nvme_ctrlr *c, unsigned index);

/*
 * The following functions drive the controller's state machine (3.5.1, 3.6.1).
 * ASQ and ACQ are in admin_mem.
 */
/* Returns 0, or -errno with the reason in *what. */
int nvme_check_cap(const struct nvme_ctrlr *c, const char **what);
int nvme_disable_any(struct nvme_ctrlr *c); /* any state; at most 2 * nvme_ready_ms() */
int nvme_disable(struct nvme_ctrlr *c);     /* after an enable that succeeded or failed */
/*
 * Resets and disables the controller by the transport. Returns -ENOTSUP if the
 * transport has no reset.
 */
int nvme_device_reset(struct nvme_ctrlr *c);
/*
 * Stops the controller by its registers, or else by the transport. Returns true
 * if the controller certainly accesses no memory any more.
 */
bool nvme_quiesce(struct nvme_ctrlr *c);
/* Enables the controller and waits for CSTS.RDY. */
int nvme_enable(struct nvme_ctrlr *c);
/* Shuts the controller down in an orderly way if it is enabled. */
void nvme_shutdown(struct nvme_ctrlr *c);
uint32_t nvme_csts(struct nvme_ctrlr *c);
uint64_t nvme_cap(struct nvme_ctrlr *c);
bool nvme_silent(struct nvme_ctrlr *c);          /* true if CAP gives no answer now */
bool nvme_gone(struct nvme_ctrlr *c);            /* true if CAP gives no answer for NVME_GONE_MS */
bool nvme_is_paused(const struct nvme_ctrlr *c); /* the transport's silent() */
/*
 * Returns true if the controller was reset from outside since nvme_answered():
 * a read got no answer, or it is disabled.
 */
bool nvme_overtaken(struct nvme_ctrlr *c);
void nvme_answered(struct nvme_ctrlr *c);
/*
 * Returns the longest wait for CSTS.RDY to follow CC.EN, including the pause of
 * NVME_QUIRK_SLOW_DISABLE.
 */
unsigned nvme_ready_ms(const struct nvme_ctrlr *c);

/*
 * nvme_admin.c: the caller holds admin_lock, except for setup, teardown and
 * begin
 */
int nvme_admin_setup(struct nvme_ctrlr *c);
void nvme_admin_teardown(struct nvme_ctrlr *c);
/* Resets the queue of a disabled controller to its initial state. */
void nvme_admin_renew(struct nvme_ctrlr *c);
/*
 * Takes admin_lock. All commands until nvme_admin_end() share one
 * admin_timeout_ms.
 */
void nvme_admin_begin(struct nvme_ctrlr *c);
void nvme_admin_end(struct nvme_ctrlr *c);
/* See nvme_admin(). */
int nvme_admin_locked(struct nvme_ctrlr *c, struct nvme_sqe *sqe, void *data, size_t len,
                      bool to_device, struct nvme_cqe *cqe);
int nvme_admin_identify_page(struct nvme_ctrlr *c, enum nvme_cns cns, uint32_t nsid, void *page);
/*
 * Handles the completions that have arrived, without waiting. Only that of an
 * Asynchronous Event Request can be among them.
 */
void nvme_admin_drain(struct nvme_ctrlr *c);
/* Posts an Asynchronous Event Request, whose completion is counted in watch. */
void nvme_admin_request_event(struct nvme_ctrlr *c);
struct nvme_id_facts;
/*
 * Sends Identify Controller and parses the result. If the command failed, *what
 * is NULL. Otherwise nvme_parse_ctrlr() has set *what on an error, and *info is
 * unchanged.
 */
int nvme_admin_identify_ctrlr(struct nvme_ctrlr *c, struct nvme_ctrlr_info *info,
                              struct nvme_id_facts *facts, const char **what);
/*
 * Requests `wanted` I/O queue pairs. *granted is the number that may be used,
 * at least 1.
 */
int nvme_admin_set_queues(struct nvme_ctrlr *c, unsigned wanted, unsigned *granted);

/* nvme_namespace.c */
/*
 * Checks that the namespaces in use are unchanged. Returns 0, -ENXIO, or the
 * error of Identify.
 */
int nvme_ns_recheck(struct nvme_ctrlr *c);
/* Frees the records of the namespaces in use. */
void nvme_ns_forget(struct nvme_ctrlr *c);

/* nvme_reserve.c */
/*
 * Sets the host identifier, which a reset has cleared, if a namespace is
 * reserved. The caller holds admin_lock. Returns an error only if the admin
 * queue does not work.
 */
int nvme_reserve_resume(struct nvme_ctrlr *c);
/*
 * Reads the events of reservations, which removes them from the log. Sets
 * c->taken if another host has ended the registration of this host. The caller
 * holds admin_lock.
 */
int nvme_reserve_read_events(struct nvme_ctrlr *c);

/* nvme_reset.c */
/*
 * Enables the controller's reports of changed namespaces. Called after each
 * enable, with admin_lock held. Returns an error only if the admin queue does
 * not work.
 */
int nvme_watch_start(struct nvme_ctrlr *c);

/* nvme_qpair.c */
/*
 * Deletes all existing I/O queues, until admin_until. If a controller kept them
 * over CC.EN = 0, their commands in flight could reach memory later. The caller
 * holds admin_lock and has stopped the users.
 */
void nvme_qpair_delete_all(struct nvme_ctrlr *c);
/*
 * Called when a reset has ended all queues: frees the IDs of abandoned pairs.
 */
void nvme_qpair_all_ended(struct nvme_ctrlr *c);

/* nvme_dma.c */
/*
 * Keeps the memory mapped until a reset, or until nvme_ctrlr_close() if the
 * controller keeps queues over a reset.
 */
void nvme_dma_orphan(struct nvme_ctrlr *c, const struct nvme_dma *dma);
/* Frees all such memory. */
void nvme_dma_free_orphans(struct nvme_ctrlr *c);
/*
 * Frees arenas that a late unmap has kept. Called after the transport is
 * closed, which reaches no memory any more.
 */
void nvme_dma_free_arenas(struct nvme_ctrlr *c);
/* Unmaps the memory now; the caller frees it later. */
void nvme_dma_revoke(struct nvme_ctrlr *c, struct nvme_dma *dma);

/* nvme_map.c: the caller holds dma_lock */
/*
 * Maps a region and counts it. Also returns -ENOSPC if fewer than `left`
 * regions would be left.
 */
int nvme_region_map(struct nvme_ctrlr *c, const struct nvme_mem *mem, unsigned left,
                    uint64_t *iova);
/*
 * Unmaps a region. Returns errors of unmap(). After -ETIMEDOUT the memory must
 * not be used for anything else. Unless the controller has failed, a later
 * nvme_region_map() or nvme_dma_unmap_late() unmaps such a region, not the
 * caller.
 */
int nvme_region_unmap(struct nvme_ctrlr *c, uint64_t iova);
void nvme_region_forget(struct nvme_ctrlr *c); /* frees the records of such regions */

__END_DECLS

#endif
