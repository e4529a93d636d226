/*
 * One transfer, chunk by chunk. A large one has two under way at once, each on half of its queues,
 * so that one half works while the other is between chunks; the next one is planned meanwhile.
 * Whatever order they end in, they are taken in stream order.
 */
#include <errno.h>

#include "cuda/gq_run.h"

#define COMMANDS_A_QUEUE 8u
#define QUEUES_ENOUGH    8u
/* A transfer of more commands than this has two chunks under way at a time. */
#define COMMANDS_TO_SPLIT 1024u

/*
 * Chunks are numbered in stream order: chunk i is in the slot's chunks[i % GQ_SLOT_CHUNKS] and is
 * run by runs[i % n_runs].
 */
struct transfer {
    struct gq_job job;
    const struct gq_request *req;
    struct gq_plan plan; /* of the next chunk */
    struct gq_plan done; /* at the first byte that is not known to have been moved */
    struct gq_plan after[GQ_SLOT_CHUNKS]; /* the plan behind each chunk */
    struct gq_job_run runs[GQ_SLOT_RUNS];
    unsigned n_runs;
    unsigned planned, started, ended; /* chunks of this lease */
};

static struct gq_chunk *chunk_of(struct transfer *t, unsigned i)
{
    return &t->job.e->slots[t->job.lease.slot].chunks[i % GQ_SLOT_CHUNKS];
}

static struct gq_job_run *run_of(struct transfer *t, unsigned i)
{
    return &t->runs[i % t->n_runs];
}

/*
 * Results in stream order: bytes up to the first command not known to have succeeded. Commands that
 * completed are a sign of life for the driver.
 */
static void take_results(struct transfer *t, const struct gq_chunk *chunk)
{
    struct gq_result *result = t->job.result;
    bool whole = true;
    uint32_t ended = 0;

    for (uint32_t i = 0; i < chunk->n_cmds; i++) {
        uint32_t r = chunk->results[i];

        ended += r != GQ_PENDING;
        if (r == GQ_ENDED)
            continue;
        if (whole)
            result->bytes = chunk->stream[i];
        whole = false;
        if (r != GQ_PENDING && !result->nvme_status)
            result->nvme_status = (uint16_t)(r & 0xffffu);
    }
    if (whole)
        result->bytes = chunk->end;
    if (ended)
        nvme_ctrlr_progress(t->job.e->ctrlr);
}

/* False: there is nothing left to plan, or no room for it. */
static bool plan_chunk(struct transfer *t)
{
    uint64_t part = t->job.e->chunk_staging;
    unsigned i = t->planned % GQ_SLOT_CHUNKS;

    if (t->planned - t->ended == GQ_SLOT_CHUNKS ||
        !gq_plan_next(&t->plan, chunk_of(t, i), (GQ_SLOT_CHUNKS * t->job.lease.slot + i) * part,
                      part))
        return false;
    t->after[i] = t->plan;
    t->planned++;
    return true;
}

static int start_chunk(struct transfer *t)
{
    const struct gq_chunk *chunk = chunk_of(t, t->started);
    struct gq_job_run *run = run_of(t, t->started);
    int err;

    run->launch.run =
        (struct gq_run){.cmds = chunk->cmds,
                        .results = chunk->results,
                        .n_cmds = chunk->n_cmds,
                        .opcode = t->req->op == GQ_WRITE ? NVME_IO_WRITE : NVME_IO_READ};
    err = gq_job_start(&t->job, run, chunk, t->started > t->ended);
    t->started += !err;
    return err;
}

/* Plans ahead, and starts as much as may be under way. 0, or why nothing more is to be started. */
static int start_chunks(struct transfer *t)
{
    bool planned = true;
    int err = 0;

    while (!err && planned) {
        while (!err && t->started < t->planned && t->started - t->ended < t->n_runs)
            err = start_chunk(t);
        planned = !err && plan_chunk(t);
    }
    return err == -EAGAIN ? 0 : err;
}

/* Waits for the oldest chunk under way, and takes what it has come to. */
static int end_chunk(struct transfer *t)
{
    const struct gq_chunk *chunk = chunk_of(t, t->ended);
    struct gq_job_run *run = run_of(t, t->ended);
    int err = gq_job_wait(&t->job, run, chunk);

    if (!run->failed)
        take_results(t, chunk);
    if (t->job.result->nvme_status)
        err = -EIO;
    if (!err)
        t->done = t->after[t->ended % GQ_SLOT_CHUNKS];
    t->ended++;
    return err;
}

/*
 * Eight commands a queue hide a round trip. More queues do not always help: who waits for
 * completions reads host memory over the link that carries the data, and holds up what copies need
 * to start. Sixteen warps took up to 18 % from reads of 1 MiB commands, eight take 1 %.
 */
static uint64_t queues_wanted(const struct gq_plan *plan)
{
    uint64_t n = (gq_plan_estimate(plan) + COMMANDS_A_QUEUE - 1) / COMMANDS_A_QUEUE;

    return n < QUEUES_ENOUGH ? n : QUEUES_ENOUGH;
}

/* After an error the chunks behind it do not count. After a reset the first that did not end. */
static int run_chunks(struct gq_job *job)
{
    struct transfer *t = (struct transfer *)job;
    int stop = 0, err = 0;

    t->n_runs =
        job->lease.n > 1 && gq_plan_estimate(&t->done) > COMMANDS_TO_SPLIT ? GQ_SLOT_RUNS : 1;
    gq_job_share(job, t->runs, t->n_runs);
    t->plan = t->done;
    t->planned = t->started = t->ended = 0;
    do {
        stop = stop ? stop : start_chunks(t);
        if (t->ended < t->started)
            err = end_chunk(t);
    } while (!err && (t->ended < t->started || (!stop && t->ended < t->planned)));
    for (; t->ended < t->started; t->ended++)
        gq_job_abandon(job, run_of(t, t->ended), chunk_of(t, t->ended));
    job->want = queues_wanted(&t->done);
    return err ? err : stop;
}

static int check_request(const struct gq_engine *e, const struct gq_request *req,
                         struct gq_plan *plan)
{
    const struct gq_buffer *b = req->buffer;
    struct gq_plan_env env = {
        .op = req->op,
        .lba_size = e->ns.lba_size,
        .max_command = e->info.max_command,
        .ns_bytes = e->ns.lbas * e->ns.lba_size,
        .buffer = &b->region,
        .buffer_head = b->import.head + req->buffer_offset,
        .staging = &e->staging,
    };

    if (req->op != GQ_READ && req->op != GQ_WRITE)
        return -EINVAL;
    if (req->buffer_offset > b->len || req->len > b->len - req->buffer_offset)
        return -EINVAL;
    if (b->unreachable)
        return -ENOTSUP;
    return gq_plan_start(plan, &env, req);
}

static int transfer(struct gq_engine *e, const struct gq_request *req, struct gq_result *result)
{
    struct transfer t = {.job = {.e = e,
                                 .buffer = req->buffer,
                                 .cancel = req->cancel,
                                 .result = result,
                                 .work = run_chunks},
                         .req = req};
    int err = check_request(e, req, &t.done);

    if (err || req->len == 0)
        return err;
    t.job.deadline_ns = gq_job_deadline(req->deadline_ms);
    t.job.want = queues_wanted(&t.done);
    return gq_job_do(&t.job);
}

int gq_transfer(struct gq_engine *e, const struct gq_request *req, struct gq_result *result)
{
    int err = gq_job_enter(e, req->buffer, result);

    if (!err) {
        err = transfer(e, req, result);
        gq_buffer_leave(req->buffer);
    }
    gq_job_leave(e, req->op == GQ_WRITE, result);
    return err;
}
