/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens and closes an engine: queues, staging, workspaces. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/engine/gq_lent.h"

#define DEFAULT_QUEUES 43u /* a batch takes 32, a reservation at most three quarters */
#define DEFAULT_DEPTH  1024u
/*
 * If all data is staged, a queue has one command per lane in flight and
 * releases CQEs by quarters of the ring.
 */
#define DEPTH_OF_STAGED     (2u * GQ_STAGING_LANES + 1u)
#define DEFAULT_DEADLINE_MS 10000u
#define DEFAULT_BUFFERS     1024u
/* A part is large compared to a launch, small compared to typical transfers. */
#define DEFAULT_PART ((uint64_t)64 << 20)
/*
 * Maximum length of a command, and therefore staging per lane, if all data of
 * device memory is staged.
 */
#define LANE_STAGING_OF_ALL (16u << 10)
/*
 * Maximum length of a staged command if only partial LBAs and bytes for odd
 * addresses are staged. One command reads the LBAs around a short piece.
 */
#define LANE_STAGING_OF_PARTS (16u << 10)
/*
 * Staging per lane of a queue for long transfers. At least LANES_OF_LONG lanes
 * take reads.
 */
#define LANE_STAGING_OF_LONG (64u << 10)
#define LANES_OF_LONG        16u

static void fill_defaults(struct gq_engine *e, const struct gq_options *opts)
{
    struct gq_options *o = &e->opts;

    *o = opts ? *opts : (struct gq_options){0};
    o->queues = o->queues ? o->queues : DEFAULT_QUEUES;
    if (o->lender) {
        o->queues = 1;
        o->doorbells = GQ_DOORBELLS_CPU;
    }
    if (o->queues > GQ_MAX_QUEUES)
        o->queues = GQ_MAX_QUEUES;
    o->deadline_ms = o->deadline_ms ? o->deadline_ms : DEFAULT_DEADLINE_MS;
    o->max_buffers = o->max_buffers ? o->max_buffers : DEFAULT_BUFFERS;
    o->part = o->part ? o->part : DEFAULT_PART;
}

/* Returns true if the options ask for doorbells that a lent pair may not have. */
static bool rings_for_lender(const struct gq_options *opts)
{
    return opts && opts->lender && opts->doorbells == GQ_DOORBELLS_DIRECT;
}

/*
 * Sets the maximum bytes of a command: whole LBAs within MDTS, the option and
 * the NLB field.
 */
static int set_max_command(struct gq_engine *e)
{
    uint64_t max = nvme_ctrlr_info(e->ctrlr)->max_transfer;
    uint64_t by_count = (uint64_t)NVME_RW_MAX_LBAS * e->ns.lba_size;

    if (e->opts.max_command && e->opts.max_command < max)
        max = e->opts.max_command;
    if (max > by_count)
        max = by_count;
    max -= max % e->ns.lba_size;
    e->info.max_command = (uint32_t)max;
    return max ? 0 : -EINVAL;
}

static int open_executor(struct gq_engine *e)
{
    enum gq_executor_kind kind = e->opts.executor;
    int err;

    if (kind != GQ_EXECUTOR_CPU) {
        err = gq_cuda_open(e->ctrlr, &e->opts, GQ_WORKSPACES, &e->exec, &e->info.fallback);
        if (!err || kind == GQ_EXECUTOR_CUDA || err == -ENOTSUP)
            return err;
    }
    return gq_cpu_open(e->ctrlr, &e->opts, GQ_WORKSPACES, &e->exec);
}

static int open_pair(struct gq_engine *e, struct nvme_qpair *qp)
{
    return e->opts.lender ? bd_lend_open(e->opts.lender, e->opts.depth, qp)
                          : nvme_qpair_create(e->ctrlr, e->opts.depth, qp);
}

static void close_pair(struct gq_engine *e, struct nvme_qpair *qp)
{
    if (e->opts.lender)
        bd_lend_close(e->opts.lender, qp);
    else
        nvme_qpair_delete(e->ctrlr, qp);
}

static void close_queue(struct gq_engine *e, unsigned i)
{
    gq_engine_remove_port(e, i);
    /* On an error the driver keeps the rings mapped until a controller reset. */
    if (e->queues[i].qp.sq) /* NULL if it was deleted before */
        close_pair(e, &e->queues[i].qp);
}

static void close_queues(struct gq_engine *e)
{
    while (e->n_queues)
        close_queue(e, --e->n_queues);
}

static void close_proxy(struct gq_engine *e)
{
    if (!e->proxy)
        return;
    gq_doorbell_proxy_close(e->proxy);
    e->exec->ops->shared_free(e->exec, e->proxied_doorbells);
}

/* Opens a proxy if the executor cannot store to the doorbells itself. */
static int open_proxy(struct gq_engine *e)
{
    void *proxied_doorbells;
    int err;

    if (e->exec->rings)
        return 0;
    err = e->exec->ops->shared_alloc(e->exec, GQ_MAX_QUEUES * sizeof(struct gq_proxied_doorbell),
                                     &proxied_doorbells);
    if (err)
        return err;
    e->proxied_doorbells = proxied_doorbells;
    err = gq_doorbell_proxy_open(nvme_ctrlr_transport(e->ctrlr), e->proxied_doorbells, &e->proxy);
    if (err)
        e->exec->ops->shared_free(e->exec, e->proxied_doorbells);
    return err;
}

/*
 * Opens the requested number of queues, or as many as the controller grants, at
 * least one.
 */
static int engine_open_queues(struct gq_engine *e)
{
    int err = 0;

    while (e->n_queues < e->opts.queues) {
        struct gq_queue *q = &e->queues[e->n_queues];

        err = open_pair(e, &q->qp);
        if (err == -ENOSPC && e->n_queues)
            return 0;
        if (err)
            break;
        q->state = (struct gq_state){.phase = 1, .outcome = GQ_OUT_DONE};
        err = gq_engine_add_port(e, e->n_queues);
        if (err) {
            close_pair(e, &q->qp);
            break;
        }
        e->n_queues++;
    }
    if (err)
        close_queues(e);
    return err;
}

static void close_workspaces(struct gq_engine *e)
{
    while (e->n_workspaces) {
        struct gq_workspace *workspace = &e->workspaces[--e->n_workspaces];

        e->exec->ops->shared_free(e->exec, workspace->lists);
        free(workspace->map);
    }
}

static int open_workspaces(struct gq_engine *e)
{
    unsigned n = e->n_queues < GQ_WORKSPACES ? e->n_queues : GQ_WORKSPACES;
    int err = 0;

    while (e->n_workspaces < n && !err) {
        void *lists;

        err = e->exec->ops->shared_alloc(e->exec, GQ_JOB_LISTS * sizeof(struct gq_list), &lists);
        if (!err)
            e->workspaces[e->n_workspaces++].lists = lists;
    }
    if (err)
        close_workspaces(e);
    return err;
}

/*
 * Returns the staging bytes of a lane: a power of two, whole LBAs, at most one
 * command.
 */
static uint32_t lane_staging(const struct gq_engine *e, uint32_t most)
{
    uint32_t bytes = e->ns.lba_size;

    most = e->stages ? most : LANE_STAGING_OF_PARTS;
    while (bytes < most && 2 * bytes <= e->info.max_command)
        bytes *= 2;
    return bytes;
}

/*
 * Every lane of every queue has its own part of staging, so that late data of
 * one cannot reach another. Returns the total size in bytes.
 */
static size_t lay_out_staging(struct gq_engine *e)
{
    uint32_t all, of_long;

    e->lane_staging = lane_staging(e, LANE_STAGING_OF_ALL);
    e->long_staging = lane_staging(e, LANE_STAGING_OF_LONG);
    all = GQ_STAGING_LANES * e->lane_staging;
    of_long = LANES_OF_LONG * e->long_staging;
    e->queue_area = all > of_long ? all : of_long;
    return (size_t)e->n_queues * e->queue_area;
}

/*
 * Maps a page of device memory for the controller and unmaps it, to find out
 * whether the controller reaches such memory.
 */
static int try_reach(struct gq_engine *e)
{
    struct nvme_transport *t = nvme_ctrlr_transport(e->ctrlr);
    int err = e->exec->ops->device_page(e->exec, &e->staging.mem);

    if (err)
        return err;
    t->device_memory[0] = '\0';
    err = gq_staging_map(e, &e->staging);
    reason_set(&e->reach, 0, "%s", t->device_memory);
    if (!err)
        gq_staging_close(e, &e->staging);
    return err;
}

/*
 * If the controller does not reach device memory, all data in it is staged,
 * which is tier 1.
 */
static int find_reach(struct gq_engine *e)
{
    int err = 0;

    e->stages = e->exec->kind == GQ_EXECUTOR_CPU && e->opts.cpu_device_memory;
    if (e->exec->tier < 2)
        return 0;
    if (e->opts.p2p == GQ_P2P_OFF)
        reason_set(&e->reach, 0, "p2p=off");
    else
        err = try_reach(e);
    if (err && err != -EFAULT)
        return err;
    if (!err && e->opts.p2p != GQ_P2P_OFF)
        return 0;
    e->exec->tier = 1;
    e->stages = true;
    return 0;
}

static void choose_depth(struct gq_engine *e)
{
    unsigned most = nvme_ctrlr_info(e->ctrlr)->max_queue_depth;

    if (!e->opts.depth)
        e->opts.depth = e->stages ? DEPTH_OF_STAGED : DEFAULT_DEPTH;
    if (e->opts.depth > most)
        e->opts.depth = most;
}

static void engine_open_locks(struct gq_engine *e)
{
    pthread_cond_init(&e->changed, NULL);
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->recover_lock, NULL);
}

static void engine_close_locks(struct gq_engine *e)
{
    pthread_mutex_destroy(&e->recover_lock);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->changed);
}

static void describe_data(const struct gq_engine *e, char *out, size_t len)
{
    const char *open = e->reach.text[0] ? " (" : "", *end = e->reach.text[0] ? ")" : "";

    out[0] = '\0';
    if (e->stages)
        snprintf(out, len, "the controller cannot reach GPU memory: data is staged%s%s%s", open,
                 e->reach.text, end);
    else if (e->exec->tier > 1 && e->reach.text[0])
        snprintf(out, len, "the drive reaches GPU memory by VFIO%s%s%s", open, e->reach.text, end);
    else if (e->exec->kind == GQ_EXECUTOR_CPU)
        snprintf(out, len, "buffers of the CPU executor are in host memory");
}

static void fill_tier_note(struct gq_engine *e)
{
    char *note = e->info.tier_note;
    const char *doorbells = e->opts.lender ? GQ_NOTE_LENT : e->exec->note;
    size_t n = strlen(doorbells);

    assert(sizeof(e->exec->note) + 2 < sizeof(e->info.tier_note));
    static_assert(sizeof(GQ_NOTE_LENT) <= sizeof(e->exec->note), "like a note of an executor");
    describe_data(e, note, sizeof(e->info.tier_note));
    if (!n)
        return;
    snprintf(note, sizeof(e->info.tier_note), "%s; ", doorbells);
    describe_data(e, note + n + 2, sizeof(e->info.tier_note) - n - 2);
    if (!note[n + 2])
        note[n] = '\0';
}

/*
 * Returns the tier of leased queues. The kernels of another process drive them
 * and see CQEs themselves, so no host flushes the data for them.
 */
static unsigned lease_tier(const struct gq_engine *e)
{
    const struct nvme_transport *t = nvme_ctrlr_transport(e->ctrlr);
    bool visible = gq_cqe_covers_device(t) || e->exec->orders_writes;

    return e->info.tier > 1 && (t->copies_device_memory || !visible) ? 1 : e->info.tier;
}

static void fill_info(struct gq_engine *e)
{
    struct gq_info *info = &e->info;

    info->executor = e->exec->kind;
    snprintf(info->device, sizeof(info->device), "%s", e->exec->device);
    memcpy(info->gpu_uuid, e->exec->gpu_uuid, sizeof(info->gpu_uuid));
    info->tier = e->proxy ? 0 : e->exec->tier;
    info->reaches = e->exec->tier > 1;
    info->lease_tier = lease_tier(e);
    fill_tier_note(e);
    info->queues = e->n_queues;
    info->depth = e->opts.depth;
    info->lba_size = e->ns.lba_size;
}

/* Opens the parts that depend on the executor. */
static int engine_open_parts(struct gq_engine *e)
{
    int err = open_proxy(e);

    if (err)
        return err;
    err = find_reach(e);
    if (err)
        goto close_proxy;
    choose_depth(e);
    err = engine_open_queues(e);
    if (err)
        goto close_proxy;
    err = open_workspaces(e);
    if (err)
        goto close_queues;
    err = gq_staging_open(e, lay_out_staging(e), &e->staging);
    if (err)
        goto close_workspaces;
    err = e->exec->ops->staging_alloc(
        e->exec, e->n_workspaces * GQ_READV_EXTENTS * sizeof(struct gq_file_extent), false,
        &e->maps);
    if (err)
        goto close_staging;
    return 0;

close_staging:
    gq_staging_close(e, &e->staging);
close_workspaces:
    close_workspaces(e);
close_queues:
    close_queues(e);
close_proxy:
    close_proxy(e);
    return err;
}

static int check_namespace(struct gq_engine *e, uint32_t nsid)
{
    int err = nvme_ns_info(e->ctrlr, nsid, &e->ns);

    if (err)
        return err;
    if (nvme_ns_unusable(&e->ns))
        return -ENOTSUP;
    return set_max_command(e);
}

void gq_engine_grown(struct gq_engine *e, uint64_t bytes)
{
    uint64_t lbas = bytes / e->ns.lba_size;

    if (lbas > gq_ns_lbas(e))
        __atomic_store_n(&e->ns.lbas, lbas, __ATOMIC_RELAXED);
}

int gq_engine_open(struct nvme_ctrlr *c, uint32_t nsid, const struct gq_options *opts,
                   struct gq_engine **out)
{
    struct gq_engine *e = calloc(1, sizeof(*e));
    int err;

    if (!e)
        return -ENOMEM;
    e->ctrlr = c;
    fill_defaults(e, opts);
    err = rings_for_lender(opts) ? -ENOTSUP : check_namespace(e, nsid);
    if (err)
        goto free_engine;
    engine_open_locks(e);
    err = open_executor(e);
    if (err)
        goto close_locks;
    e->exec->ops->quiesce(e->exec); /* another engine may have runs on the device */
    err = engine_open_parts(e);
    e->exec->ops->resume(e->exec);
    if (err)
        goto close_executor;
    fill_info(e);
    gq_recover_open(e);
    *out = e;
    return 0;

close_executor:
    e->exec->ops->close(e->exec);
close_locks:
    engine_close_locks(e);
free_engine:
    free(e);
    return err;
}

void gq_engine_close(struct gq_engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->transfers)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    gq_recover_close(e);
    e->exec->ops->quiesce(e->exec);
    close_queues(e);
    e->exec->ops->resume(e->exec);
    while (e->buffers)
        gq_buffer_close(*(struct gq_buffer **)e->buffers);
    gq_buffer_close_late(e);
    e->exec->ops->quiesce(e->exec);
    gq_part_sums_close(e);
    e->exec->ops->staging_free(e->exec, &e->maps);
    gq_staging_close(e, &e->staging);
    close_workspaces(e);
    close_proxy(e);
    e->exec->ops->resume(e->exec);
    e->exec->ops->close(e->exec);
    engine_close_locks(e);
    free(e);
}

void gq_engine_info(const struct gq_engine *e, struct gq_info *out)
{
    *out = e->info;
}

void gq_engine_stats(struct gq_engine *e, struct gq_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->quarantined = 0;
    for (unsigned i = 0; i < e->n_queues; i++)
        out->quarantined += e->queues[i].use >= GQ_QUEUE_QUARANTINED;
    out->lost = e->failed;
    out->buffers = e->n_buffers;
    pthread_mutex_unlock(&e->lock);
}

unsigned gq_engine_queues(struct gq_engine *e, struct gq_queue_stats *out, unsigned max)
{
    unsigned n = 0;

    pthread_mutex_lock(&e->lock);
    for (; n < e->n_queues && n < max; n++) {
        const struct gq_queue *q = &e->queues[n];
        out[n] =
            (struct gq_queue_stats){.qid = q->qp.qid,
                                    .in_service = q->use < GQ_QUEUE_QUARANTINED,
                                    .commands = __atomic_load_n(&q->commands, __ATOMIC_RELAXED)};
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}
