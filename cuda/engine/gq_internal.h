/* SPDX-License-Identifier: BSD-2-Clause */
/* Structures of the engine, shared by its files. */
#ifndef CUDA_ENGINE_GQ_INTERNAL_H
#define CUDA_ENGINE_GQ_INTERNAL_H

#include <pthread.h>

#include "cuda/engine/gq_doorbell_proxy.h"
#include "cuda/engine/gq_plan.h"
#include "cuda/engine/gq_region.h"
#include "cuda/engine/gq_tuner.h"
#include "cuda/gq_exec.h"
#include "support/clock.h"

#define GQ_WORKSPACES 8u
#define GQ_JOB_RUNS   2u /* chunks of a transfer under way at once */
#define GQ_JOB_CHUNKS 3u /* and one that is planned meanwhile */

enum gq_queue_use {
    GQ_QUEUE_FREE,
    GQ_QUEUE_RESERVED,
    GQ_QUEUE_QUARANTINED, /* its commands may still move data, or it could not be created */
    GQ_QUEUE_RECOVERING,  /* pair and state belong to the thread that recovers it */
    GQ_QUEUE_GONE,        /* deleted for good: the executor has failed with it */
};

struct gq_queue {
    struct nvme_qpair qp;
    uint16_t port_qid;     /* of the pair that the executor has; 0: it has none */
    struct gq_state state; /* between runs */
    enum gq_queue_use use; /* under engine.lock */
    /* Posted by runs that have ended. Atomic, relaxed: a run adds, statistics read. */
    uint64_t commands;
    /* Memory that late data may reach until the queue's commands have ended. */
    bool holds;
    struct gq_buffer *held_buffer; /* NULL: the buffer was unregistered */
    unsigned held_workspace;
};

/* Resources of one transfer at a time, beside queues. */
struct gq_workspace {
    struct gq_chunk chunks[GQ_JOB_CHUNKS];
    struct gq_file_extent *map; /* content of the workspace's part of engine.maps */
    size_t map_extents;
    bool reserved;
    unsigned holds; /* quarantined queues that may still write to this workspace's staging */
};

/* The executor's index of run i of a workspace. */
static inline unsigned gq_run_index(unsigned workspace, unsigned i)
{
    return i * GQ_WORKSPACES + workspace;
}

/*
 * Staged transfers whose number of queues is measured. Lists by the average
 * length of their pieces: below 1 KiB, below 2 KiB and so on; the last kind has
 * all longer ones, which are cut into commands of a lane's staging.
 */
enum gq_tuned {
    GQ_TUNED_READS,
    GQ_TUNED_WRITES,
    GQ_TUNED_SHORT_READS, /* of GQ_TUNER_SHORT_BYTES to GQ_TUNER_BYTES */
    GQ_TUNED_SHORT_WRITES,
    GQ_TUNED_LISTS,
    GQ_TUNED_KINDS = GQ_TUNED_LISTS + 6
};

/*
 * Of lists whose data has checksums (gq_part_sums.c), once gq_engine_sum_parts() was called. A lost
 * command may still write to staging: it stays mapped until the queues were deleted.
 */
#define GQ_PART_PIECES (1u << 17) /* of a slice at most */
struct gq_part_sums {
    struct gq_import staging_mem, table;
    struct gq_region staging; /* a block for each lane of each queue */
    uint32_t *words;          /* two for each piece of a slice of each workspace; NULL: none */
};

struct gq_engine {
    struct nvme_ctrlr *ctrlr;
    struct nvme_ns_info ns;
    struct gq_exec *exec;
    struct gq_options opts; /* with defaults filled in */
    struct gq_info info;

    struct nvme_user user;           /* registration with the controller: gq_recover.c */
    struct gq_doorbell_proxy *proxy; /* NULL: the executor stores to the doorbells itself */
    struct gq_proxied_doorbell *proxied_doorbells;

    struct gq_import staging_mem;
    struct gq_region staging;
    uint64_t chunk_staging; /* bytes of staging for each chunk of each workspace */
    uint64_t queue_staging; /* offset in staging of the areas for reads, one for each queue */
    uint32_t queue_area;    /* bytes of such an area */
    uint32_t lane_staging;  /* of which each lane has so many */
    uint32_t long_staging;  /* or, in a long transfer, as many for fewer lanes */
    bool stages;            /* the controller does not reach device memory */
    struct gq_part_sums part_sums;
    struct gq_import maps; /* memory of the executor: GQ_READV_EXTENTS extents for each workspace */

    pthread_mutex_t lock;   /* protects the rest, and counters of queues, workspaces, buffers */
    pthread_cond_t changed; /* a reservation, a use of a buffer or a transfer has ended */
    struct gq_queue queues[GQ_MAX_QUEUES];
    unsigned n_queues;
    struct gq_workspace workspaces[GQ_WORKSPACES];
    unsigned n_workspaces;
    struct gq_buffer **buffers; /* opts.max_buffers entries; NULL: free */
    unsigned transfers;         /* running or waiting for queues */
    unsigned driving;           /* reservations, and host threads that poll a ring */
    bool stopped;               /* a reset is under way: no queue is driven until it has ended */
    unsigned settled;           /* number of resets that ended the commands of all queues */
    bool failed;                /* the executor has failed: results of runs are not trusted */
    bool dead;                  /* the controller has failed for good */
    struct gq_stats stats;
    struct gq_tuner tuners[GQ_TUNED_KINDS]; /* without levels where nothing is staged */

    pthread_mutex_t recover_lock; /* one recovery at a time; taken before lock */
};

struct gq_buffer {
    struct gq_engine *engine;
    struct gq_import import;
    struct gq_region region;
    uint64_t len;
    bool staged;    /* not mapped: the controller cannot reach the memory */
    bool is_list;   /* not mapped: not for transfers */
    bool is_host;   /* does not stand in for device memory */
    bool for_lease; /* staging of a lease */
    unsigned users; /* transfers and copies under way */
    unsigned holds; /* quarantined queues with commands into it */
};

/* Queues and a workspace, reserved for one transfer. */
struct gq_reservation {
    unsigned workspace;
    unsigned n;
    uint16_t queues[GQ_MAX_QUEUES];
};

/* LBAs of the namespace, beside gq_engine_grown(). */
static inline uint64_t gq_ns_lbas(const struct gq_engine *e)
{
    return __atomic_load_n(&e->ns.lbas, __ATOMIC_RELAXED);
}

/* Looks the buffer up and keeps it registered; -ESTALE when it is not registered. */
int gq_buffer_enter(struct gq_engine *e, struct gq_buffer *b);
void gq_buffer_leave(struct gq_buffer *b);
/* Unregisters a buffer after the queues were deleted. */
void gq_buffer_close(struct gq_buffer *b);

/*
 * Reserves a workspace and up to `want` queues, at least one; a large transfer
 * leaves a quarter of the queues to small ones. Waits for the first queue until
 * `deadline_ns` (now_ns), or, when that is 0, for the deadline of a command,
 * not counting the time of a reset. -ENODEV when every queue or workspace is
 * quarantined, -EIO when the controller has failed for good, -ETIMEDOUT,
 * -ECANCELED.
 */
int gq_reservation_take(struct gq_engine *e, uint64_t want, uint64_t deadline_ns,
                        const volatile uint32_t *cancel, struct gq_reservation *out);
/*
 * Releases the reservation. Queues whose state says that commands may be in
 * flight are quarantined, and hold b and the workspace until they are
 * recovered. Returns whether there were such queues.
 */
bool gq_reservation_release(struct gq_engine *e, const struct gq_reservation *r,
                            struct gq_buffer *b);

/* Makes pair i known to the executor, with its doorbells or proxied doorbells. */
int gq_engine_add_port(struct gq_engine *e, unsigned i);
/* No effect where the executor has none, because adding it has failed. */
void gq_engine_remove_port(struct gq_engine *e, unsigned i);
/*
 * Under e->lock: the queue's commands have ended, and it no longer holds its
 * buffer and workspace.
 */
void gq_queue_settle(struct gq_engine *e, struct gq_queue *q);
/* Under e->lock, for a pair that was created again. */
void gq_queue_renew(struct gq_engine *e, struct gq_queue *q);

void gq_part_sums_close(struct gq_engine *e);
/* Sets up a run of n reads, with words that are 0. */
void gq_part_sums_use(const struct gq_engine *e, unsigned workspace, uint64_t n,
                      struct gq_reads *reads);

/* Makes the engine a user of its controller: from then on resets stop it. */
void gq_recover_open(struct gq_engine *e);
void gq_recover_close(struct gq_engine *e);

#endif
