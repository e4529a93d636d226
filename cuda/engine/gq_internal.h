/* SPDX-License-Identifier: BSD-2-Clause */
/* Declares structures that the files of the engine share. */
#ifndef CUDA_ENGINE_GQ_INTERNAL_H
#define CUDA_ENGINE_GQ_INTERNAL_H

#include <pthread.h>

#include "blockdev/nvme/nvme.h"
#include "cuda/engine/gq_doorbell_proxy.h"
#include "cuda/gq_exec.h"
#include "cuda/queue/gq_prp.h"
#include "support/clock.h"

#define GQ_WORKSPACES 16u
#define GQ_JOB_LISTS  2u /* of a transfer: one that runs, and one that is planned meanwhile */

/* Describes memory mapped for the controller, with PRP entries for every transfer (gq_prp.h). */
struct gq_region {
    uint64_t iova; /* IOVA of the first page; the region is contiguous */
    uint64_t base; /* the executor's address of the first page */
    uint64_t pages;
    struct nvme_dma prps;
    bool revoked;
};

enum gq_queue_use {
    GQ_QUEUE_FREE,
    GQ_QUEUE_RESERVED,
    GQ_QUEUE_QUARANTINED, /* commands may still transfer data, or the queue could not be created */
    GQ_QUEUE_RECOVERING,  /* pair and state belong to the recovering thread */
    GQ_QUEUE_GONE,        /* deleted for good, because the executor has failed */
};

struct gq_queue {
    struct nvme_qpair qp;
    uint16_t port_qid;     /* ID of the executor's pair; 0: none */
    struct gq_state state; /* between runs */
    enum gq_queue_use use; /* protected by engine.lock */
    /*
     * Commands posted by runs that have ended. Relaxed atomic: runs add, statistics
     * read.
     */
    uint64_t commands;
    /*
     * Late data may reach the following memory until the queue's commands have
     * ended.
     */
    bool holds;
    struct gq_buffer *held_buffer; /* NULL if the buffer was unregistered */
};

/* Resources of one transfer at a time, in addition to queues. */
struct gq_workspace {
    struct gq_list *lists;      /* GQ_JOB_LISTS */
    struct gq_file_extent *map; /* contents of the workspace's part of engine.maps */
    size_t map_extents;
    bool reserved;
};

/*
 * Maximum queues of a staged transfer. Software controllers serve few queues
 * faster than many: SPDK's target prefers four to eight.
 */
#define GQ_QUEUES_OF_STAGED 8u

/* Staging that is mapped for the controller. */
struct gq_staging {
    struct gq_import mem;
    struct gq_region region;
};

/*
 * Memory for lists whose data has checksums (gq_part_sums.c), allocated by
 * gq_engine_sum_parts(). A lost command may still write to staging, so it stays
 * mapped until the queues are deleted.
 */
#define GQ_PART_PIECES (1u << 17) /* maximum pieces of a slice */
struct gq_part_sums {
    struct gq_import table;
    struct gq_staging staging; /* one block per lane of each queue */
    uint32_t *words;           /* two per piece of a slice of each workspace; NULL: none */
};

struct gq_engine {
    struct nvme_ctrlr *ctrlr;
    struct nvme_ns_info ns;
    struct gq_exec *exec;
    struct gq_options opts; /* options with the defaults filled in */
    struct gq_info info;

    struct nvme_user user;           /* registration with the controller: gq_recover.c */
    struct gq_doorbell_proxy *proxy; /* NULL if the executor stores to the doorbells itself */
    struct gq_proxied_doorbell *proxied_doorbells;

    struct gq_staging staging;
    uint32_t queue_area;   /* bytes of staging per queue */
    uint32_t lane_staging; /* bytes of an area per lane */
    uint32_t long_staging; /* bytes per lane of a long transfer, which uses fewer lanes */
    bool stages;           /* the controller does not reach device memory */
    struct reason reach;   /* the provider that maps device memory, or why none does */
    struct gq_part_sums part_sums;
    struct gq_import maps; /* memory of the executor: GQ_READV_EXTENTS extents per workspace */

    pthread_mutex_t lock;   /* protects the rest, and counters of queues, workspaces, buffers */
    pthread_cond_t changed; /* a reservation, a use of a buffer or a transfer has ended */
    struct gq_queue queues[GQ_MAX_QUEUES];
    unsigned n_queues;
    struct gq_workspace workspaces[GQ_WORKSPACES];
    unsigned n_workspaces;
    void *buffers; /* tree of tsearch(3): the registered buffers by address */
    unsigned n_buffers;
    struct gq_buffer *late; /* ended, but their unmap was late: not freed yet */
    unsigned transfers;     /* running or waiting for queues */
    unsigned driving;       /* reservations, plus host threads that poll a ring */
    bool stopped;           /* a reset is in progress: no queue is driven until it has ended */
    unsigned settled;       /* number of resets that ended the commands of all queues */
    bool failed;            /* the executor has failed: results of runs are not trusted */
    bool dead;              /* the controller has failed for good */
    struct gq_stats stats;

    pthread_mutex_t recover_lock; /* serialises recoveries; taken before lock */
};

struct gq_buffer {
    struct gq_engine *engine;
    struct gq_import import;
    struct gq_region region;
    uint64_t len;
    bool staged;    /* not mapped, because the controller cannot reach the memory */
    bool is_list;   /* not mapped, because it is not for transfers */
    bool is_host;   /* does not act as device memory */
    bool for_lease; /* staging of a lease */
    bool may_go;    /* of GQ_MEM_DEVICE: the device may leave the machine */
    unsigned users; /* transfers and copies in progress */
    unsigned holds; /* quarantined queues with commands into it */
    struct gq_buffer *next_late;
};

/* Queues and a workspace, reserved for one transfer. */
struct gq_reservation {
    unsigned workspace;
    unsigned n;
    uint16_t queues[GQ_MAX_QUEUES];
};

/* Returns the namespace's LBAs; another thread may be in gq_engine_grown(). */
static inline uint64_t gq_ns_lbas(const struct gq_engine *e)
{
    return __atomic_load_n(&e->ns.lbas, __ATOMIC_RELAXED);
}

/* Adds 1 to a counter of e->stats. */
static inline void gq_count(struct gq_engine *e, uint64_t *counter)
{
    pthread_mutex_lock(&e->lock);
    ++*counter;
    pthread_mutex_unlock(&e->lock);
}

/*
 * Looks the buffer up and keeps it registered until gq_buffer_leave(). Returns
 * -ESTALE if it is not registered, or its memory has left the machine.
 */
int gq_buffer_enter(struct gq_engine *e, struct gq_buffer *b);
/*
 * Ends the use of a transfer with the result err. Returns err, or -ESTALE if
 * the memory has left the machine: commands may have succeeded without it.
 */
int gq_buffer_leave(struct gq_buffer *b, int err);
/* Unregisters a buffer after the queues were deleted. */
void gq_buffer_close(struct gq_buffer *b);
/*
 * Frees the late buffers when the engine closes. Memory that is still mapped
 * then stays with the executor, which is not closed.
 */
void gq_buffer_close_late(struct gq_engine *e);

/*
 * Reserves a workspace and up to `want` queues, at least one; a large transfer
 * leaves a quarter of the queues to small ones. Waits for the first queue until
 * `deadline_ns` (now_ns()), or, if that is 0, for the deadline of a command,
 * not counting the time of a reset. Returns 0, -ENODEV if every queue is
 * quarantined, -EIO if the controller has failed for good,
 * -ETIMEDOUT or -ECANCELED.
 */
int gq_reservation_take(struct gq_engine *e, uint64_t want, uint64_t deadline_ns,
                        const volatile uint32_t *cancel, struct gq_reservation *out);
/*
 * Releases the reservation. Queues whose state says that commands may be in
 * flight are quarantined; they hold b until they are recovered. Returns true if there were such
 * queues.
 */
bool gq_reservation_release(struct gq_engine *e, const struct gq_reservation *r,
                            struct gq_buffer *b);

/* Maps whole pages and builds the table. Returns 0, -ENOMEM or an error of map(). */
int gq_region_map(struct nvme_ctrlr *c, const struct gq_import *imp, enum nvme_map_for purpose,
                  struct gq_region *out);
/*
 * Unmaps the memory from a controller that has failed for good.
 * gq_region_unmap() must still be called.
 */
void gq_region_revoke(struct nvme_ctrlr *c, struct gq_region *r);
/*
 * Unmaps and frees the table. On an error the controller may still reach the
 * memory, which must not be freed.
 */
int gq_region_unmap(struct nvme_ctrlr *c, struct gq_region *r);

/* Maps memory of the executor as staging. Frees it and returns -errno if that fails. */
int gq_staging_map(struct gq_engine *e, struct gq_staging *s);
/*
 * Allocates staging and maps it. It is normally in device memory, from which
 * staged bytes are copied without crossing the bus. It is in host memory if the
 * controller cannot reach device memory, and also if the controller's CQE does
 * not cover data in device memory, because staged bytes are copied as soon as
 * the CQE is seen, before any flush. Returns 0 or -errno.
 */
int gq_staging_open(struct gq_engine *e, size_t len, struct gq_staging *s);
/* Unmaps and frees staging. Memory that is still mapped stays with the executor. */
void gq_staging_close(struct gq_engine *e, struct gq_staging *s);

static inline struct gq_target gq_staging_target(const struct gq_staging *s)
{
    return (struct gq_target){
        .base = s->region.base,
        .iova = s->region.iova,
        .prps_iova = s->region.prps.iova,
        .head = 0,
        .len = 0,
    };
}

/* Adds pair i to the executor, with its doorbells or proxied doorbells. */
int gq_engine_add_port(struct gq_engine *e, unsigned i);
/* Removes pair i from the executor; no effect if adding it has failed. */
void gq_engine_remove_port(struct gq_engine *e, unsigned i);
/*
 * Called under the engine's lock when the queue's commands have ended: it no
 * longer holds its buffer.
 */
void gq_queue_settle(struct gq_queue *q);
/* Called under the engine's lock for a pair that was created again: returns it to service. */
void gq_queue_renew(struct gq_queue *q);

/* Frees the memory of part sums. */
void gq_part_sums_close(struct gq_engine *e);
/* Sets up a run of n reads with zeroed words. */
void gq_part_sums_use(const struct gq_engine *e, unsigned workspace, uint64_t n,
                      struct gq_reads *reads);

/* Makes the engine a user of its controller: from then on resets stop it. */
void gq_recover_open(struct gq_engine *e);
/* Removes the engine from the controller's users. */
void gq_recover_close(struct gq_engine *e);

#endif
