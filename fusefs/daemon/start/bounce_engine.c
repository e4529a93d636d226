/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opens the engine of the bounce path when the first buffer needs it, because
 * leases cannot have its queue pairs then.
 */
#include "fusefs/daemon/start/bounce_engine.h"

#include <string.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "support/minmax.h"

/* The engine has at most this many queue pairs on a mount with an executor, and on one without. */
#define QUEUES_BESIDE 16u
#define QUEUES_ALONE  32u
/* On a mount with an executor the engine has at most 1/PART_BESIDE of the queue pairs. */
#define PART_BESIDE 6u
/*
 * Maximum bytes of a command. A transfer of a few MiB then has commands in
 * flight on several queues, which a controller serves at once.
 */
#define COMMAND_BYTES (128u << 10)

unsigned bounce_engine_queues(const struct options *opts, bool alone, unsigned rest)
{
    unsigned for_leases = opts->direct == DIRECT_NONE ? 0 : rest / 2;

    if (!alone)
        return (unsigned)min_u64(rest / PART_BESIDE, QUEUES_BESIDE);
    return opts->queues ? opts->queues : (unsigned)min_u64(rest - for_leases, QUEUES_ALONE);
}

void bounce_engine_init(struct bounce_engine *b, struct nvme_ctrlr *ctrlr,
                        const struct options *opts, bool alone, unsigned queues, bool data_csum)
{
    bool usable = ctrlr && !nvme_ctrlr_transport(ctrlr)->physical;

    *b = (struct bounce_engine){.ctrlr = usable ? ctrlr : NULL,
                                .nsid = opts->name.nsid,
                                .device = opts->device,
                                .options = {.executor = GQ_EXECUTOR_CPU,
                                            .queues = queues ? queues : 1,
                                            .max_command = COMMAND_BYTES,
                                            .deadline_ms = opts->deadline_ms,
                                            .max_buffers = opts->max_buffers},
                                .sums_parts = data_csum};
    if (alone)
        b->options.depth = opts->depth;
    pthread_mutex_init(&b->lock, NULL);
    pthread_mutex_init(&b->recovery, NULL);
}

/* Called under the lock. */
static struct gq_engine *bounce_engine_open(struct bounce_engine *b)
{
    struct gq_engine *e;
    int err = gq_engine_open(b->ctrlr, b->nsid, &b->options, &e);

    if (err) {
        if (!b->refused)
            log_line(LOG_WARNING, "%s: the bounce path gets no queue pairs and is slower: %s",
                     b->device, strerror(-err));
        b->refused = true;
        return NULL;
    }
    if (b->sums_parts)
        (void)gq_engine_sum_parts(e); /* without them READV is slower */
    atomic_store_explicit(&b->engine, e, memory_order_release);
    return e;
}

struct gq_engine *bounce_engine_get(struct bounce_engine *b)
{
    if (!b->ctrlr)
        return NULL;
    pthread_mutex_lock(&b->lock);
    struct gq_engine *e = bounce_engine_opened(b);
    if (!e)
        e = bounce_engine_open(b);
    pthread_mutex_unlock(&b->lock);
    return e;
}

/* The acquire load orders the engine's construction before its use. */
struct gq_engine *bounce_engine_opened(const struct bounce_engine *b)
{
    return atomic_load_explicit(&b->engine, memory_order_acquire);
}

/* The lock is for an engine that is being opened and has read the old size. */
void bounce_engine_grown(struct bounce_engine *b, uint64_t bytes)
{
    pthread_mutex_lock(&b->lock);
    struct gq_engine *e = bounce_engine_opened(b);
    if (e)
        gq_engine_grown(e, bytes);
    pthread_mutex_unlock(&b->lock);
}

void bounce_engine_tend(const struct bounce_engine *b)
{
    struct gq_engine *e = bounce_engine_opened(b);

    if (e)
        gq_engine_free_late(e);
}

int bounce_engine_recover(struct bounce_engine *b)
{
    struct gq_engine *e = bounce_engine_opened(b);
    int err = 0;

    if (!e || pthread_mutex_trylock(&b->recovery) != 0)
        return 0;
    err = gq_engine_recover(e);
    pthread_mutex_unlock(&b->recovery);
    return err;
}

void bounce_engine_close(struct bounce_engine *b)
{
    struct gq_engine *e = bounce_engine_opened(b);

    if (e)
        gq_engine_close(e);
    if (b->options.queues) {
        pthread_mutex_destroy(&b->recovery);
        pthread_mutex_destroy(&b->lock);
    }
    *b = (struct bounce_engine){0};
}
