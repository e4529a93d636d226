/* SPDX-License-Identifier: BSD-2-Clause */
/* The controller from inside the driver: for blockdev's own sources and their tests. */
#ifndef BLOCKDEV_NVME_NVME_INTERNAL_H
#define BLOCKDEV_NVME_NVME_INTERNAL_H

#include <pthread.h>

#include "blockdev/nvme/nvme.h"
#include "blockdev/nvme/nvme_iova.h"
#include "blockdev/nvme/nvme_queue.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NVME_ADMIN_DEPTH     32u
#define NVME_MAX_QPAIRS      1024u
#define NVME_DEFAULT_MS      10000u
#define NVME_PHYSICAL_MAX    (1u << 20) /* bytes a command, with physical addresses */
#define NVME_QID_WORDS       (NVME_MAX_QPAIRS / 64 + 1)
#define NVME_PATIENCE_NS     10000000u /* between two tries of a command that came too early */
#define NVME_SHUTDOWN_MS     1000u     /* at least; a controller may announce more (RTD3E) */
#define NVME_SHUTDOWN_MAX_MS 60000u
#define NVME_ARENA_MIN       (256u << 10) /* bytes */

/* DMA memory that a controller may still reach although its user has let go of it. */
struct nvme_orphan {
    struct nvme_dma dma;
    struct nvme_orphan *next;
};

/* A namespace in use: a reset must find it unchanged. */
struct nvme_known_ns {
    struct nvme_ns_info info;
    struct nvme_known_ns *next;
};

enum nvme_health {
    NVME_HEALTHY,
    NVME_UNHEALTHY, /* fatal status, gone, or an admin command lost: a reset is needed */
    NVME_FAILED,    /* for good */
};

struct nvme_arena;    /* nvme_dma.c */
struct nvme_file_map; /* nvme_map.c */
struct nvme_leaving;  /* nvme_map.c */

/* Locks are taken in this order: reset_lock, admin_lock, lock; reset_lock, admin_lock, dma_lock. */
struct nvme_ctrlr {
    struct nvme_transport *t;
    struct nvme_ctrlr_info info;
    uint64_t cap;
    unsigned quirks; /* of its PCI ids */
    unsigned admin_timeout_ms, io_timeout_ms;
    unsigned shutdown_ms;
    unsigned queues_requested;

    enum nvme_health health;       /* atomic */
    bool settled;                  /* atomic; once it has failed: it touches no memory */
    unsigned epoch;                /* atomic; written with admin_lock held */
    unsigned retries;              /* atomic; resets since an I/O command has completed */
    struct nvme_counters counters; /* each atomic: nvme_count() */
    bool unanswered;               /* atomic; a read found no controller since nvme_answered() */

    pthread_mutex_t reset_lock; /* users; held during a reset */
    struct nvme_user *users;

    pthread_mutex_t admin_lock; /* admin queue and its data page: one command at a time */
    struct nvme_dma admin_mem;  /* SQ page, CQ page, data page */
    struct nvme_ring admin_ring;
    uint16_t admin_cid;
    uint16_t admin_status; /* of the last command: what the controller said, 0 when nothing */
    uint64_t admin_until;  /* ns; when not 0, no command waits longer */
    struct nvme_known_ns *known;
    uint64_t live_qids[NVME_QID_WORDS]; /* pairs that the controller has */

    pthread_mutex_t lock; /* qids, lost_qids, orphans */
    uint64_t qids[NVME_QID_WORDS];
    uint64_t lost_qids[NVME_QID_WORDS]; /* of pairs that only a reset ends */
    struct nvme_orphan *orphans;

    pthread_mutex_t
        dma_lock;        /* the members below, and calls of the transport's map() and unmap() */
    unsigned regions;    /* mapped now; written with the lock held, atomic */
    bool refused_region; /* since it was opened; as regions */
    unsigned refused_at; /* how many the controller kept then; as regions */
    struct nvme_arena *arenas;
    uint64_t shares; /* number of the last one; atomic */
    struct nvme_file_map *file_maps;
    struct nvme_leaving *leaving; /* regions whose unmap has missed its deadline */
};

/* Relaxed: a number for people to read, which orders nothing. */
static inline void nvme_count(uint64_t *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

/*
 * A file calls those above it only: nvme_enable.c, nvme_state.c, nvme_map.c, nvme_dma.c,
 * nvme_admin.c, nvme_namespace.c and nvme_qpair.c, nvme_reset.c and nvme_ctrlr.c.
 */

/* nvme_state.c */
bool nvme_ctrlr_failed(const struct nvme_ctrlr *c);
/* Admin commands fail until a reset has succeeded. */
void nvme_ctrlr_mark_failed(struct nvme_ctrlr *c);
bool nvme_ctrlr_healthy(const struct nvme_ctrlr *c);
/* Fails for good. settled: it certainly touches no memory any more (nvme_quiesce()). */
void nvme_ctrlr_fail(struct nvme_ctrlr *c, bool settled);
/* Bytes from one doorbell to the next. */
size_t nvme_doorbell_stride(const struct nvme_ctrlr *c);
/* Doorbell number `index`: 2 * qid for the SQ, 2 * qid + 1 for the CQ. */
volatile uint32_t *nvme_ctrlr_doorbell(const struct nvme_ctrlr *c, unsigned index);
void nvme_ctrlr_kick(struct nvme_ctrlr *c);
void nvme_ctrlr_kick_queue(struct nvme_ctrlr *c, uint16_t qid);

/* nvme_enable.c: state machine of the controller (3.5.1, 3.6.1); ASQ and ACQ are in admin_mem. */
int nvme_check_cap(const struct nvme_ctrlr *c, const char **what);
int nvme_disable_any(struct nvme_ctrlr *c); /* from any state: at most 2 * nvme_ready_ms() */
int nvme_disable(struct nvme_ctrlr *c);     /* from enabled, or from an enable that failed */
/* Resets it by the transport, which leaves it disabled. -ENOTSUP where there is no such reset. */
int nvme_device_reset(struct nvme_ctrlr *c);
/* By its registers or else by the transport: true when it certainly touches no memory any more. */
bool nvme_quiesce(struct nvme_ctrlr *c);
int nvme_enable(struct nvme_ctrlr *c);
void nvme_shutdown(struct nvme_ctrlr *c);
uint32_t nvme_csts(struct nvme_ctrlr *c);
uint64_t nvme_cap(struct nvme_ctrlr *c);
bool nvme_silent(struct nvme_ctrlr *c);          /* no controller answers now: CAP */
bool nvme_gone(struct nvme_ctrlr *c);            /* and go on doing so: waits for NVME_GONE_MS */
bool nvme_is_paused(const struct nvme_ctrlr *c); /* transport's silent() */
/*
 * Was the controller reset from outside since nvme_answered()? A read found none, or it is
 * disabled.
 */
bool nvme_overtaken(struct nvme_ctrlr *c);
void nvme_answered(struct nvme_ctrlr *c);
/* Longest wait for CSTS.RDY to follow CC.EN, with the pause of NVME_QUIRK_SLOW_DISABLE. */
unsigned nvme_ready_ms(const struct nvme_ctrlr *c);

/* nvme_admin.c; with admin_lock held but for setup, teardown and begin */
int nvme_admin_setup(struct nvme_ctrlr *c);
void nvme_admin_teardown(struct nvme_ctrlr *c);
/* The queue of a disabled controller as it was at first. */
void nvme_admin_renew(struct nvme_ctrlr *c);
/* Takes admin_lock; all commands until nvme_admin_end() share one admin_timeout_ms. */
void nvme_admin_begin(struct nvme_ctrlr *c);
void nvme_admin_end(struct nvme_ctrlr *c);
int nvme_admin_locked(struct nvme_ctrlr *c, struct nvme_sqe *sqe, void *data, size_t len,
                      bool to_device, struct nvme_cqe *cqe);
int nvme_admin_identify(struct nvme_ctrlr *c, enum nvme_identify_cns cns, uint32_t nsid,
                        void *page);
struct nvme_id_facts;
/*
 * Identify Controller, parsed. -errno with *what NULL: the command failed. Otherwise
 * nvme_parse_ctrlr() has set *what, and an error leaves *info alone.
 */
int nvme_admin_identify_ctrlr(struct nvme_ctrlr *c, struct nvme_ctrlr_info *info,
                              struct nvme_id_facts *facts, const char **what);
/* Asks for `wanted` I/O queue pairs; *granted is what may be used, at least 1. */
int nvme_admin_set_queues(struct nvme_ctrlr *c, unsigned wanted, unsigned *granted);

/* nvme_namespace.c */
/* Are the controller's namespaces in use as they were? 0, -ENXIO, or what Identify said. */
int nvme_ns_verify(struct nvme_ctrlr *c);
void nvme_ns_forget(struct nvme_ctrlr *c);

/* nvme_qpair.c */
/*
 * Deletes all I/O queues that exist, up to admin_until: what a controller that keeps queues over
 * CC.EN = 0 has in flight would reach memory later. With admin_lock held and the users stopped.
 */
void nvme_qpair_delete_all(struct nvme_ctrlr *c);
/* A reset has ended all queues: ids of abandoned pairs can be taken again. */
void nvme_qpair_all_ended(struct nvme_ctrlr *c);

/* nvme_dma.c */
/* Keeps the memory mapped until a reset or nvme_ctrlr_close(). */
void nvme_dma_orphan(struct nvme_ctrlr *c, const struct nvme_dma *dma);
void nvme_dma_free_orphans(struct nvme_ctrlr *c);
/* After the transport is closed, which reaches no memory any more: what a late unmap has kept. */
void nvme_dma_free_arenas(struct nvme_ctrlr *c);
/* Takes the memory from the controller already; it is still to be freed. */
void nvme_dma_revoke(struct nvme_ctrlr *c, struct nvme_dma *dma);

/* nvme_map.c; with dma_lock held */
/* Maps a region and counts it. -ENOSPC also when fewer than `left` would be left. */
int nvme_region_map(struct nvme_ctrlr *c, const struct nvme_mem *mem, unsigned left,
                    uint64_t *iova);
/*
 * Errors of unmap(). -ETIMEDOUT: the memory must not be used for anything else. Before a controller
 * has failed, a region so left is unmapped by a later nvme_region_map(), not by the caller.
 */
int nvme_region_unmap(struct nvme_ctrlr *c, uint64_t iova);
void nvme_region_forget(struct nvme_ctrlr *c); /* the notes of such regions */

#ifdef __cplusplus
}
#endif

#endif
