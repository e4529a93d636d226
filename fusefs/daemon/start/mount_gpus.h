/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Manages the GPUs of a mount. Each has an executor (gq_engine) with queues of
 * its own. The executor of the first GPU that works is opened with the mount.
 * The executor of another GPU is opened when a buffer on that GPU is registered, and closed
 * when the GPU has had no buffer for a while, so that others can use its
 * queues. A GPU is named by its UUID, because ordinals differ between
 * processes.
 *
 * The CPU executor stands for one GPU, or, in tests, for each ordinal of the
 * option gpus=. Functions may be called by any thread.
 */
#ifndef FUSEFS_DAEMON_START_MOUNT_GPUS_H
#define FUSEFS_DAEMON_START_MOUNT_GPUS_H

#include <stdbool.h>
#include <stdint.h>

#include "blockdev/nvme/nvme.h"
#include "cuda/gq.h"
#include "fusefs/daemon/start/mount_options.h"
#include "fusefs/daemon/start/placement.h"

struct gpus;
struct gpu;

/* The strings must outlive the table. */
struct gpus_config {
    struct nvme_ctrlr *ctrlr;
    uint32_t nsid;
    struct gq_options options; /* of each executor; `device` is ignored */
    unsigned room;             /* queue pairs for all executors, unless options has a number */
    unsigned idle_ms;          /* time without buffers after which an executor is closed */
    unsigned wait_ms;          /* of gpus_take(), for a thread that opens or closes the executor */
    bool must_reach;           /* the drive must reach the memory of each GPU */
    const char *device;        /* of the mount, for messages */
    char drive[NVME_BDF_LEN];  /* PCI address, or "" */
    const struct gpu_name *names;
    unsigned n_names; /* 0: all GPUs that this process sees */
};

#define GPUS_IDLE_MS 10000u
#define GPUS_WAIT_MS 60000u /* more than CUDA's start takes */

/*
 * Opens the table and the executor of the first GPU that works, which is
 * described in *info. Returns an error of gq_engine_open() if none does.
 */
int gpus_open(const struct gpus_config *config, struct gpus **out, struct gq_info *info);
/* Precondition: no GPU is in use. */
void gpus_close(struct gpus *t);

/* Returns the number of GPUs, at least 1. */
unsigned gpus_count(const struct gpus *t);
/* Returns the number of queue pairs that the executors may have together. */
unsigned gpus_queue_pairs(const struct gpus *t);

/*
 * Begins a use of the GPU with this UUID, and opens its executor if necessary.
 * A UUID of zeros selects the first GPU that works. A GPU that the option gpus=
 * names twice has two executors. The executor with fewer users is selected.
 * Returns -EXDEV if the mount does not use the GPU, and -ENODEV if its executor
 * does not start, or if the GPU is lost and still in use. Returns -ETIMEDOUT if
 * another thread has opened or closed its executor for wait_ms.
 */
int gpus_take(struct gpus *t, const uint8_t uuid[16], struct gpu **out);
/* Begins another use of a GPU that the caller uses. */
void gpus_hold(struct gpu *g);
void gpus_give(struct gpu *g);
/*
 * Returns the executor of a GPU, which is valid while the caller uses the
 * GPU.
 */
struct gq_engine *gpus_engine(const struct gpu *g);
/* Returns the GPU's place in the table, below gpus_count(). */
unsigned gpus_index(const struct gpu *g);

/* Makes all executors fill in checksums of parts (gq_engine_sum_parts()). */
void gpus_sum_parts(struct gpus *t);
/* Sets the size of the namespace in all executors to `bytes`. */
void gpus_grown(struct gpus *t, uint64_t bytes);
/* Excludes earlier transfers from gpus_stats(). */
void gpus_uncount(struct gpus *t);
/*
 * Calls gq_engine_free_late() and gq_engine_revoke_gone(), reports lost GPUs,
 * and closes idle executors. Closes the executors of lost GPUs when they are no
 * longer in use. One thread of the daemon calls this function about once a
 * second.
 */
void gpus_tend(struct gpus *t);
/*
 * Returns queues of all executors to service (gq_engine_recover()), except
 * executors that another thread recovers. Returns the first error.
 */
int gpus_recover(struct gpus *t);

/* Describes the state of one GPU of the mount. */
struct gpu_status {
    uint8_t uuid[16];
    char name[64];
    struct placement place;
    bool open;             /* the GPU has an executor at present */
    bool lost;             /* the executor has failed, or does not start */
    struct gq_info info;   /* of its executor, or of the first GPU before there was one */
    struct gq_stats stats; /* of all its executors since the mount */
};
void gpus_status(struct gpus *t, unsigned index, struct gpu_status *out);
/* Stores the sum of all GPUs. */
void gpus_stats(struct gpus *t, struct gq_stats *out);
/* Stores up to max queue pairs of all executors and returns how many. */
unsigned gpus_queues(struct gpus *t, struct gq_queue_stats *out, unsigned max);

#endif
