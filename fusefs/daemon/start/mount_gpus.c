/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens and closes the executors of a mount's GPUs, and counts their users. */
#include "fusefs/daemon/start/mount_gpus.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <uuid/uuid.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "support/clock.h"
#include "support/numa.h"

/* Maximum queue pairs of an executor. More of them do not make it faster. */
#define GPUS_QUEUES 43u

struct gpu {
    struct gpus *table;
    uint8_t uuid[16];
    char name[64]; /* known before there is an executor */
    struct placement place;
    int device;               /* ordinal of CUDA, or number of the CPU executor */
    pthread_mutex_t recovery; /* held while a thread recovers the queues */
    pthread_mutex_t lock;     /* protects the fields below */
    pthread_cond_t changed;   /* signalled when busy becomes false */
    bool busy;                /* a thread opens or closes the executor, without the lock */
    struct gq_engine *engine; /* NULL: closed; constant while the GPU is in use */
    unsigned users;
    uint64_t idle_ns;     /* time at which the last use ended, of now_ns() */
    bool lost;            /* the loss of the executor has been logged */
    bool refused;         /* the executor has not started, which has been logged */
    struct gq_info info;  /* of the last executor */
    struct gq_stats past; /* of earlier executors */
};

struct gpus {
    struct gpus_config config;
    unsigned n;
    struct gpu gpus[GPUS_MAX];
    struct gpu *main; /* the executor is opened with the mount, and stays open without buffers */
    struct gq_info first;  /* of its first executor */
    bool sums;             /* set before there are users */
    _Atomic uint64_t size; /* of the namespace, if it has grown */
};

static void gpus_name(const struct gpu *g, char out[UUID_STR_LEN])
{
    uuid_unparse_lower(g->uuid, out);
}

static void gpus_add(struct gq_stats *sum, const struct gq_stats *s)
{
    sum->transfers += s->transfers;
    sum->commands += s->commands;
    sum->bytes_read += s->bytes_read;
    sum->bytes_written += s->bytes_written;
    sum->staged_read += s->staged_read;
    sum->staged_written += s->staged_written;
    sum->timeouts += s->timeouts;
    sum->errors += s->errors;
    sum->cancelled += s->cancelled;
    sum->aborts += s->aborts;
    sum->recreates += s->recreates;
    sum->resets += s->resets;
    sum->restarts += s->restarts;
    sum->quarantined += s->quarantined;
    sum->buffers += s->buffers;
    sum->lost |= s->lost;
}

/* --- Executors ------------------------------------------------------------------------------- */

/* Rings, staging and the executor's threads are made on the GPU's NUMA node. */
static int gpus_open_engine(struct gpu *g)
{
    struct gpus *t = g->table;
    struct gq_options options = t->config.options;
    struct gq_engine *e;
    struct numa_stay stay;

    options.device = g->device;
    numa_enter("", g->place.numa_node, 1, &stay);
    int err = gq_engine_open(t->config.ctrlr, t->config.nsid, &options, &e);
    numa_leave(&stay);
    if (err)
        return err;
    gq_engine_info(e, &g->info);
    if (t->config.must_reach && !g->info.reaches && t->main && g != t->main) {
        gq_engine_close(e);
        return -ENOTSUP;
    }
    if (t->sums)
        (void)gq_engine_sum_parts(e);
    uint64_t size = atomic_load_explicit(&t->size, memory_order_relaxed);
    if (size)
        gq_engine_grown(e, size);
    g->engine = e;
    g->lost = g->refused = false;
    return 0;
}

static int gpus_close_engine(struct gpu *g)
{
    gq_engine_close(g->engine);
    g->engine = NULL;
    return 0;
}

/*
 * The caller holds the lock, which is released during the change, and nobody
 * uses the GPU. Others wait, or pass over a busy GPU.
 */
static int gpus_change(struct gpu *g, int (*change)(struct gpu *g))
{
    assert(!g->busy && !g->users);
    g->busy = true;
    pthread_mutex_unlock(&g->lock);
    int err = change(g);
    pthread_mutex_lock(&g->lock);
    g->busy = false;
    pthread_cond_broadcast(&g->changed);
    return err;
}

/* The caller holds the lock, and g is not busy. */
static void gpus_retire(struct gpu *g)
{
    struct gq_stats last;

    gq_engine_stats(g->engine, &last);
    last.quarantined = last.buffers = 0;
    last.lost = false;
    gpus_add(&g->past, &last);
    gpus_change(g, gpus_close_engine);
}

/* The caller holds the lock, and g is not busy. */
static bool gpus_is_lost(const struct gpu *g)
{
    struct gq_stats stats = {0};

    if (g->engine)
        gq_engine_stats(g->engine, &stats);
    return stats.lost;
}

/* The caller holds the lock. */
static void gpus_report_refusal(struct gpu *g, int err)
{
    char name[UUID_STR_LEN];

    gpus_name(g, name);
    if (!g->refused)
        log_line(LOG_WARNING,
                 "%s: GPU %s: its executor does not start: %s, its buffers take the bounce path",
                 g->table->config.device, name,
                 err == -ENOTSUP && g->table->config.must_reach
                     ? "the drive does not reach its memory (p2p=require)"
                     : strerror(-err));
    g->refused = true;
}

/*
 * Begins a use of an open executor. Returns false if the GPU is busy or
 * closed.
 */
static bool gpus_begin(struct gpu *g)
{
    pthread_mutex_lock(&g->lock);
    bool open = !g->busy && g->engine;
    g->users += open;
    pthread_mutex_unlock(&g->lock);
    return open;
}

/*
 * Waits until no thread opens or closes the executor. CUDA may not return from
 * either. The caller holds the lock. Returns 0 or -ETIMEDOUT.
 */
static int gpus_await(struct gpu *g, uint64_t until)
{
    while (g->busy) {
        if (cond_wait_until(&g->changed, &g->lock, until) == ETIMEDOUT && g->busy)
            return -ETIMEDOUT;
    }
    return 0;
}

/* The caller holds the lock, and g is not busy. Returns 0 or -ENODEV. */
static int gpus_ensure_open(struct gpu *g)
{
    if (g->engine)
        return 0;
    int err = gpus_change(g, gpus_open_engine);
    if (err)
        gpus_report_refusal(g, err);
    return err ? -ENODEV : 0;
}

static int gpus_begin_open(struct gpu *g)
{
    uint64_t until = deadline_after_ms(g->table->config.wait_ms);

    pthread_mutex_lock(&g->lock);
    int err = gpus_await(g, until);
    bool lost = !err && gpus_is_lost(g);
    if (lost && g->users)
        err = -ENODEV;
    else if (lost)
        gpus_retire(g);
    if (!err)
        err = gpus_await(g, until);
    if (!err)
        err = gpus_ensure_open(g);
    g->users += !err;
    pthread_mutex_unlock(&g->lock);
    return err;
}

static void gpus_end(struct gpu *g, bool was_use)
{
    pthread_mutex_lock(&g->lock);
    assert(g->users);
    g->users--;
    if (was_use)
        g->idle_ns = now_ns();
    pthread_mutex_unlock(&g->lock);
}

void gpus_give(struct gpu *g)
{
    gpus_end(g, true);
}

void gpus_hold(struct gpu *g)
{
    pthread_mutex_lock(&g->lock);
    assert(g->users);
    g->users++;
    pthread_mutex_unlock(&g->lock);
}

struct gq_engine *gpus_engine(const struct gpu *g)
{
    return g->engine;
}

unsigned gpus_index(const struct gpu *g)
{
    return (unsigned)(g - g->table->gpus);
}

/* --- The table ------------------------------------------------------------------------------- */

static void gpus_init(struct gpus *t, const struct gq_device *d, int device)
{
    struct gpu *g = &t->gpus[t->n++];

    *g = (struct gpu){.table = t, .device = device};
    memcpy(g->uuid, d->uuid, sizeof(g->uuid));
    memcpy(g->name, d->name, sizeof(g->name));
    g->place = placement_of("", d->bus_id, t->config.drive);
    pthread_mutex_init(&g->recovery, NULL);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
}

static void gpus_remove_last(struct gpus *t)
{
    struct gpu *g = &t->gpus[--t->n];

    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->recovery);
}

static void gpus_free(struct gpus *t)
{
    while (t->n)
        gpus_remove_last(t);
    free(t);
}

/* Returns the index of the named device, or n. */
static unsigned gpus_resolve(const struct gpu_name *name, const struct gq_device *devices,
                             unsigned n)
{
    unsigned i = 0;

    if (!name->by_uuid)
        return name->ordinal < n ? name->ordinal : n;
    while (i < n && memcmp(devices[i].uuid, name->uuid, sizeof(name->uuid)) != 0)
        i++;
    return i;
}

/* A mount goes on with the other GPUs if one has failed or was removed. */
static void gpus_report_missing(const struct gpus *t, const struct gpu_name *name, unsigned n)
{
    char text[UUID_STR_LEN];

    if (name->by_uuid)
        uuid_unparse_lower(name->uuid, text);
    else
        snprintf(text, sizeof(text), "%u", name->ordinal);
    log_line(LOG_WARNING, "%s: gpus=%s: no such GPU among the %u that are visible, it is left out",
             t->config.device, text, n);
}

static void gpus_select(struct gpus *t, const struct gq_device *devices, unsigned n)
{
    for (unsigned i = 0; i < n && !t->config.n_names; i++)
        gpus_init(t, &devices[i], (int)i);
    for (unsigned i = 0; i < t->config.n_names; i++) {
        unsigned at = gpus_resolve(&t->config.names[i], devices, n);
        if (at < n)
            gpus_init(t, &devices[at], (int)at);
        else
            gpus_report_missing(t, &t->config.names[i], n);
    }
}

/*
 * A CPU executor stands in for each GPU that is named. Its number is the last
 * byte of the UUID.
 */
static void gpus_select_cpu(struct gpus *t)
{
    for (unsigned i = 0; i < t->config.n_names; i++) {
        struct gq_device d = {.uuid[15] = (uint8_t)t->config.names[i].ordinal,
                              .name = "CPU executor"};

        gpus_init(t, &d, d.uuid[15]);
    }
}

/*
 * Without a device the table has one GPU, for which gq_engine_open() opens the
 * CPU executor or returns the error. Its ordinal is not that of a GPU which the
 * option gpus= leaves out.
 */
static void gpus_fill(struct gpus *t)
{
    struct gq_device devices[GPUS_MAX];
    unsigned n = 0;

    if (t->config.options.executor == GQ_EXECUTOR_CPU) {
        gpus_select_cpu(t);
    } else {
        n = gq_devices(devices, GPUS_MAX);
        gpus_select(t, devices, n);
    }
    if (!t->n)
        gpus_init(t, &(struct gq_device){.name = ""}, (int)n);
}

static void gpus_divide(struct gpus *t)
{
    unsigned each = t->config.room / t->n;

    if (each > GPUS_QUEUES)
        each = GPUS_QUEUES;
    if (!t->config.options.queues)
        t->config.options.queues = each ? each : 1;
}

/*
 * All executors are of the kind of the first one. If the CPU executor has taken
 * the place of CUDA, there is only one.
 */
static void gpus_follow_first(struct gpus *t, enum gq_executor_kind asked)
{
    t->first = t->main->info;
    t->config.options.executor = t->first.executor;
    while (t->n > 1 && t->first.executor == GQ_EXECUTOR_CPU && asked != GQ_EXECUTOR_CPU)
        gpus_remove_last(t);
    memcpy(t->main->uuid, t->first.gpu_uuid, sizeof(t->main->uuid));
    snprintf(t->main->name, sizeof(t->main->name), "%.63s", t->first.device);
}

/*
 * Opens the executor of the first GPU that has a working one. A mount continues
 * without the others. AUTO is replaced by CUDA while there are other GPUs to
 * try, since otherwise the CPU executor would be used in the place of a GPU.
 */
static int gpus_open_first(struct gpus *t)
{
    enum gq_executor_kind asked = t->config.options.executor;
    bool several = t->n > 1;
    int err = -ENODEV;

    if (several && asked == GQ_EXECUTOR_AUTO)
        t->config.options.executor = GQ_EXECUTOR_CUDA;
    for (unsigned i = 0; i < t->n && err; i++) {
        err = gpus_open_engine(&t->gpus[i]);
        if (!err)
            t->main = &t->gpus[i];
        else if (several)
            gpus_report_refusal(&t->gpus[i], err);
    }
    if (err && several && asked == GQ_EXECUTOR_AUTO) {
        t->config.options.executor = asked;
        err = gpus_open_engine(&t->gpus[0]);
        t->main = &t->gpus[0];
    }
    if (!err)
        gpus_follow_first(t, asked);
    return err;
}

int gpus_open(const struct gpus_config *config, struct gpus **out, struct gq_info *info)
{
    struct gpus *t = calloc(1, sizeof(*t));

    if (!t)
        return -ENOMEM;
    t->config = *config;
    gpus_fill(t);
    gpus_divide(t);
    int err = gpus_open_first(t);
    if (err) {
        gpus_free(t);
        return err;
    }
    *info = t->first;
    *out = t;
    return 0;
}

void gpus_close(struct gpus *t)
{
    for (unsigned i = 0; i < t->n; i++) {
        assert(!t->gpus[i].users);
        if (t->gpus[i].engine)
            gq_engine_close(t->gpus[i].engine);
    }
    gpus_free(t);
}

unsigned gpus_count(const struct gpus *t)
{
    return t->n;
}

unsigned gpus_queue_pairs(const struct gpus *t)
{
    return t->n * t->first.queues;
}

static bool gpus_is_any(const uint8_t uuid[16])
{
    static const uint8_t any[16];

    return memcmp(uuid, any, sizeof(any)) == 0;
}

/* Returns the users of a GPU, or UINT_MAX if it is lost or has no working executor. */
static unsigned gpus_load(struct gpu *g)
{
    pthread_mutex_lock(&g->lock);
    unsigned users = !g->busy && (g->refused || gpus_is_lost(g)) ? UINT_MAX : g->users;
    pthread_mutex_unlock(&g->lock);
    return users;
}

/*
 * Returns the GPU with the UUID, or the one with the fewest users if several
 * have it. Without a UUID returns the first GPU that works.
 */
static struct gpu *gpus_find(struct gpus *t, const uint8_t uuid[16])
{
    bool any = gpus_is_any(uuid);
    struct gpu *found = NULL;
    unsigned least = 0;

    for (unsigned i = 0; i < t->n; i++) {
        struct gpu *g = &t->gpus[i];
        if (!any && memcmp(uuid, g->uuid, sizeof(g->uuid)) != 0)
            continue;
        unsigned users = gpus_load(g);
        if (!found || (any ? least == UINT_MAX && users != UINT_MAX : users < least)) {
            found = g;
            least = users;
        }
    }
    return found;
}

int gpus_take(struct gpus *t, const uint8_t uuid[16], struct gpu **out)
{
    *out = gpus_find(t, uuid);
    return *out ? gpus_begin_open(*out) : -EXDEV;
}

/* --- All executors --------------------------------------------------------------------------- */

void gpus_sum_parts(struct gpus *t)
{
    int err = gq_engine_sum_parts(t->main->engine);

    t->sums = true;
    if (err)
        log_line(LOG_WARNING,
                 "%s: the executor computes no checksums of parts of blocks: %s, they are read "
                 "through the kernel's path",
                 t->config.device, strerror(-err));
}

/*
 * The size is stored before the executors are visited. An executor that is
 * opened at the same time therefore loads it.
 */
void gpus_grown(struct gpus *t, uint64_t bytes)
{
    atomic_store(&t->size, bytes);
    for (unsigned i = 0; i < t->n; i++) {
        struct gpu *g = &t->gpus[i];

        pthread_mutex_lock(&g->lock);
        while (g->busy)
            pthread_cond_wait(&g->changed, &g->lock);
        if (g->engine)
            gq_engine_grown(g->engine, bytes);
        pthread_mutex_unlock(&g->lock);
    }
}

/* The caller holds the lock. */
static void gpus_report_loss(struct gpu *g)
{
    char name[UUID_STR_LEN];

    if (g->lost)
        return;
    g->lost = true;
    gpus_name(g, name);
    log_line(LOG_ERR,
             "%s: GPU %s (%s) is lost: transfers of its buffers leave the GPU path, those of other "
             "GPUs go on; a new executor starts when its buffers are unregistered and a program "
             "registers memory, unless a kernel does not end",
             g->table->config.device, name, g->info.device);
}

/* The caller holds the lock, and g is not busy. */
static bool gpus_is_over(const struct gpu *g, bool lost)
{
    uint64_t idle_ns = (uint64_t)g->table->config.idle_ms * NS_PER_MS;

    if (g->users || !g->engine)
        return false;
    return lost || (g != g->table->main && now_ns() - g->idle_ns >= idle_ns);
}

static void gpus_report_gone(const struct gpu *g, unsigned buffers)
{
    if (buffers)
        log_line(LOG_ERR,
                 "%s: the device of %u registered buffers has left the machine: the drive no "
                 "longer reaches them, and their transfers fail: unregister them",
                 g->table->config.device, buffers);
}

static void gpus_tend_one(struct gpu *g)
{
    if (!gpus_begin(g))
        return;
    gq_engine_free_late(g->engine);
    gpus_report_gone(g, gq_engine_revoke_gone(g->engine));
    gpus_end(g, false);
    pthread_mutex_lock(&g->lock);
    if (!g->busy) {
        bool lost = gpus_is_lost(g);
        if (lost)
            gpus_report_loss(g);
        if (gpus_is_over(g, lost))
            gpus_retire(g);
    }
    pthread_mutex_unlock(&g->lock);
}

void gpus_tend(struct gpus *t)
{
    for (unsigned i = 0; i < t->n; i++)
        gpus_tend_one(&t->gpus[i]);
}

int gpus_recover(struct gpus *t)
{
    int first = 0;

    for (unsigned i = 0; i < t->n; i++) {
        struct gpu *g = &t->gpus[i];
        int err = 0;

        if (!gpus_begin(g))
            continue;
        if (pthread_mutex_trylock(&g->recovery) == 0) {
            err = gq_engine_recover(g->engine);
            pthread_mutex_unlock(&g->recovery);
        }
        gpus_end(g, false);
        first = first ? first : err;
    }
    return first;
}

/* Subtracts from the counters of earlier executors, which may become negative, modulo 2^64. */
void gpus_uncount(struct gpus *t)
{
    struct gpu *g = t->main;
    struct gq_stats s;

    gq_engine_stats(g->engine, &s);
    g->past.transfers -= s.transfers;
    g->past.commands -= s.commands;
    g->past.bytes_read -= s.bytes_read;
    g->past.staged_read -= s.staged_read;
}

void gpus_status(struct gpus *t, unsigned index, struct gpu_status *out)
{
    struct gpu *g = &t->gpus[index];
    struct gq_stats now = {0};

    pthread_mutex_lock(&g->lock);
    *out = (struct gpu_status){.open = !g->busy && g->engine, .stats = g->past};
    if (out->open)
        gq_engine_stats(g->engine, &now);
    memcpy(out->uuid, g->uuid, sizeof(out->uuid));
    memcpy(out->name, g->name, sizeof(out->name));
    out->place = g->place;
    out->info = !g->busy && g->info.queues ? g->info : t->first;
    out->lost = now.lost || (!g->busy && g->refused);
    pthread_mutex_unlock(&g->lock);
    gpus_add(&out->stats, &now);
}

void gpus_stats(struct gpus *t, struct gq_stats *out)
{
    *out = (struct gq_stats){0};
    for (unsigned i = 0; i < t->n; i++) {
        struct gpu_status status;

        gpus_status(t, i, &status);
        gpus_add(out, &status.stats);
    }
}

unsigned gpus_queues(struct gpus *t, struct gq_queue_stats *out, unsigned max)
{
    unsigned n = 0;

    for (unsigned i = 0; i < t->n; i++) {
        struct gpu *g = &t->gpus[i];

        pthread_mutex_lock(&g->lock);
        if (!g->busy && g->engine)
            n += gq_engine_queues(g->engine, out + n, max - n);
        pthread_mutex_unlock(&g->lock);
    }
    return n;
}
