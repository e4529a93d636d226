/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The engine of the bounce path moves data between the drive and registered
 * host memory by a CPU executor, with many commands in flight, if no GPU moves
 * it. A mount has it in addition to the engines of its GPUs, or in their place.
 */
#ifndef FUSEFS_DAEMON_START_BOUNCE_ENGINE_H
#define FUSEFS_DAEMON_START_BOUNCE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "blockdev/nvme/nvme.h"
#include "cuda/gq.h"
#include "fusefs/daemon/start/mount_options.h"

struct bounce_engine {
    struct nvme_ctrlr *ctrlr; /* NULL if there can be no engine */
    uint32_t nsid;
    const char *device; /* device name for messages */
    struct gq_options options;
    bool sums_parts;
    bool refused;             /* a failure to open the engine has been logged; under `lock` */
    pthread_mutex_t lock;     /* held while the engine is opened */
    pthread_mutex_t recovery; /* held while a thread recovers the queues */
    struct gq_engine *_Atomic engine;
};

/*
 * Returns the engine's share of the `rest` queue pairs that the ordinary path
 * leaves, or 0 if there are few. `alone` means that the mount has no other
 * engine; the options queues= and depth= then apply to this one.
 */
unsigned bounce_engine_queues(const struct options *opts, bool alone, unsigned rest);
/*
 * Prepares the engine with so many queue pairs, at least 1. There is no engine
 * without a controller, or if the controller reaches only memory of the daemon
 * (noiommu). `data_csum` is that of struct stack.
 */
void bounce_engine_init(struct bounce_engine *b, struct nvme_ctrlr *ctrlr,
                        const struct options *opts, bool alone, unsigned queues, bool data_csum);
/*
 * Returns the engine, which the first call opens, or NULL if the controller has
 * no queue pair or memory left for it. A later call tries again. Any thread may
 * call it.
 */
struct gq_engine *bounce_engine_get(struct bounce_engine *b);
/* Returns the engine if it is open, otherwise NULL. */
struct gq_engine *bounce_engine_opened(const struct bounce_engine *b);
/*
 * The following functions do nothing while the engine is not open.
 * bounce_engine_grown() sets the size of the namespace in bytes.
 * bounce_engine_tend() calls gq_engine_free_late(), about once a second.
 * bounce_engine_recover() returns the queues to service (gq_engine_recover()),
 * unless another thread does that.
 */
void bounce_engine_grown(struct bounce_engine *b, uint64_t bytes);
void bounce_engine_tend(const struct bounce_engine *b);
int bounce_engine_recover(struct bounce_engine *b);
/* Precondition: the engine is unused. Does nothing if b is zeroed. */
void bounce_engine_close(struct bounce_engine *b);

#endif
