/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The engine of the bounce path. It moves data between the drive and registered
 * host memory by a CPU executor, with many commands in flight, where no GPU
 * moves it: beside the engine of the GPU path, or in its place.
 */
#ifndef FUSEFS_DAEMON_START_BOUNCE_ENGINE_H
#define FUSEFS_DAEMON_START_BOUNCE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "blockdev/nvme/nvme.h"
#include "cuda/gq.h"
#include "fusefs/daemon/start/mount_options.h"

/* Queue pairs beside an executor. */
#define BOUNCE_ENGINE_QUEUES 16u

struct bounce_engine {
    struct nvme_ctrlr *ctrlr; /* NULL if there can be no engine */
    uint32_t nsid;
    const char *device; /* device name for messages */
    struct gq_options options;
    bool sums_parts;
    pthread_mutex_t lock;     /* held while the engine is opened */
    pthread_mutex_t recovery; /* held while a thread recovers the queues */
    struct gq_engine *_Atomic engine;
};

/*
 * Prepares the engine. `alone` states that the mount has no other engine; the
 * options queues= and depth= then apply to this one. There is no engine without
 * a controller, or if the controller reaches only memory of the daemon
 * (noiommu). `data_csum` as in struct stack.
 */
void bounce_engine_init(struct bounce_engine *b, struct nvme_ctrlr *ctrlr,
                        const struct options *opts, bool alone, bool data_csum);
/*
 * Returns the engine, which the first call opens, or NULL if the controller has
 * no queue pair or memory left for it. A later call tries again. Any thread may
 * call it.
 */
struct gq_engine *bounce_engine_get(struct bounce_engine *b);
/* Returns the engine if it is open, otherwise NULL. */
struct gq_engine *bounce_engine_opened(const struct bounce_engine *b);
/*
 * The following functions do nothing while the engine is not open. They tell it
 * that the namespace has `bytes`; free what is late, about once a second; return
 * its queues to service (gq_engine_recover()), unless another thread does that.
 */
void bounce_engine_grown(struct bounce_engine *b, uint64_t bytes);
void bounce_engine_tend(const struct bounce_engine *b);
int bounce_engine_recover(struct bounce_engine *b);
/* Precondition: the engine is unused. Does nothing if b is zeroed. */
void bounce_engine_close(struct bounce_engine *b);

#endif
