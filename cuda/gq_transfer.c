/*
 * One transfer, chunk by chunk. A large one has two under way at once, each on half of its queues,
 * so that one half works while the other is between chunks; the next one is planned meanwhile.
 * Whatever order they end in, they are taken in stream order.
 */
#include <errno.h>
#include <string.h>

#include "cuda/gq_internal.h"

#define NS_PER_MS        1000000u
#define COMMANDS_A_QUEUE 8u
#define QUEUES_ENOUGH    8u
/* A transfer that takes longer than this many commands runs two chunks at a time. */
#define COMMANDS_TO_SPLIT 1024u

/* A chunk under way, on queues of its own. */
struct chunk_run {
    struct gq_launch launch;
    const uint16_t *queues; /* of the transfer's lease: launch.run.n_queues */
    unsigned n_queues;
};

/*
 * Chunks are numbered in stream order: chunk i is in the slot's chunks[i % GQ_SLOT_CHUNKS] and is
 * run by runs[i % n_runs].
 */
struct transfer {
    struct gq_engine *e;
    const struct gq_request *req;
    struct gq_result *result;
    struct gq_plan plan; /* of the next chunk */
    struct gq_plan done; /* at the first byte that is not known to have been moved */
    struct gq_plan after[GQ_SLOT_CHUNKS]; /* the plan behind each chunk */
    struct gq_lease lease;
    uint64_t deadline_ns; /* of the whole transfer; 0: none */
    struct chunk_run runs[GQ_SLOT_RUNS];
    unsigned n_runs;
    unsigned planned, started, ended; /* chunks of this lease */
};

static struct gq_chunk *chunk_of(struct transfer *t, unsigned i)
{
    return &t->e->slots[t->lease.slot].chunks[i % GQ_SLOT_CHUNKS];
}

static struct chunk_run *run_of(struct transfer *t, unsigned i)
{
    return &t->runs[i % t->n_runs];
}

static bool is_cancelled(const struct gq_request *req)
{
    return req->cancel && __atomic_load_n(req->cancel, __ATOMIC_RELAXED);
}

/* Larger groups keep neighbours on one queue; small lists are spread over all of them. */
static uint32_t group_shift(uint32_t cmds, uint32_t queues)
{
    uint32_t shift = 0;

    while (shift < 5 && (queues << (shift + 1)) <= cmds)
        shift++;
    return shift;
}

static void set_up_run(struct transfer *t, struct chunk_run *run, const struct gq_chunk *chunk)
{
    struct gq_engine *e = t->e;
    struct gq_launch *l = &run->launch;
    unsigned slot = gq_run_slot(t->lease.slot, (unsigned)(run - t->runs));

    *l = (struct gq_launch){
        .run = {.cmds = chunk->cmds,
                .results = chunk->results,
                .command_ns = (uint64_t)e->opts.deadline_ms * NS_PER_MS,
                .n_cmds = chunk->n_cmds,
                .n_queues = run->n_queues,
                .group_shift = group_shift(chunk->n_cmds, run->n_queues),
                .nsid = e->ns.nsid,
                .opcode = t->req->op == GQ_WRITE ? NVME_IO_WRITE : NVME_IO_READ},
        .slot = slot,
        .states = e->exec->ops->slot_states(e->exec, slot),
        .cancel = t->req->cancel,
        .is_write = t->req->op == GQ_WRITE,
        .beside = t->started > t->ended,
    };
    memcpy(l->queues, run->queues, run->n_queues * sizeof(l->queues[0]));
    for (unsigned i = 0; i < run->n_queues; i++) {
        l->states[i] = e->queues[l->queues[i]].state;
        l->states[i].sent = 0;
        l->states[i].outcome = GQ_OUT_RUNNING;
    }
}

/* 0 and what time is left, or why no chunk may be started any more. */
static int check_time(struct transfer *t, uint64_t *budget_ns)
{
    uint64_t now;

    *budget_ns = 0;
    if (is_cancelled(t->req))
        return -ECANCELED;
    if (!t->deadline_ns)
        return 0;
    now = gq_now_ns();
    if (now >= t->deadline_ns)
        return -ETIMEDOUT;
    *budget_ns = t->deadline_ns - now;
    return 0;
}

/* What the run has come to, as far as its queues tell: 0, -ERESTART, -ETIMEDOUT or -ECANCELED. */
static int take_states(struct transfer *t, const struct chunk_run *run)
{
    bool late = false, cancelled = false, left = false;

    for (unsigned i = 0; i < run->n_queues; i++) {
        struct gq_queue *q = &t->e->queues[run->queues[i]];

        q->state = run->launch.states[i];
        t->result->commands += q->state.sent;
        late |= q->state.outcome == GQ_OUT_TIMED_OUT || q->state.outcome == GQ_OUT_BROKEN;
        cancelled |= q->state.outcome == GQ_OUT_CANCELLED;
        left |= q->state.outcome == GQ_OUT_LEFT;
    }
    /* Before a reset nothing is late: it ends what has not completed, and all begins again. */
    if (left)
        return -ERESTART;
    if (late)
        return -ETIMEDOUT;
    return cancelled ? -ECANCELED : 0;
}

/*
 * Results in stream order: bytes up to the first command not known to have succeeded. Commands that
 * completed are a sign of life for the driver.
 */
static void take_results(struct transfer *t, const struct gq_chunk *chunk)
{
    bool whole = true;
    uint32_t ended = 0;

    for (uint32_t i = 0; i < chunk->n_cmds; i++) {
        uint32_t r = chunk->results[i];

        ended += r != GQ_PENDING;
        if (r == GQ_ENDED)
            continue;
        if (whole)
            t->result->bytes = chunk->stream[i];
        whole = false;
        if (r != GQ_PENDING && !t->result->nvme_status)
            t->result->nvme_status = (uint16_t)(r & 0xffffu);
    }
    if (whole)
        t->result->bytes = chunk->end;
    if (ended)
        nvme_ctrlr_progress(t->e->ctrlr);
}

/* The executor failed, so the queues' state is unknown: treat all as having commands in flight. */
static void distrust(struct transfer *t, const struct chunk_run *run)
{
    for (unsigned i = 0; i < run->n_queues; i++) {
        struct gq_state *state = &t->e->queues[run->queues[i]].state;

        state->in_flight = t->e->opts.depth - 1;
        state->outcome = GQ_OUT_BROKEN;
    }
    if (t->e->ringer)
        gq_ringer_silence(t->e->ringer);
    pthread_mutex_lock(&t->e->lock);
    t->e->failed = true;
    pthread_mutex_unlock(&t->e->lock);
}

/* False: there is nothing left to plan, or no room for it. */
static bool plan_chunk(struct transfer *t)
{
    uint64_t part = t->e->chunk_staging;
    unsigned i = t->planned % GQ_SLOT_CHUNKS;

    if (t->planned - t->ended == GQ_SLOT_CHUNKS ||
        !gq_plan_next(&t->plan, chunk_of(t, i), (GQ_SLOT_CHUNKS * t->lease.slot + i) * part, part))
        return false;
    t->after[i] = t->plan;
    t->planned++;
    return true;
}

/* -EAGAIN: only when the chunk that is under way has ended. */
static int start_chunk(struct transfer *t)
{
    const struct gq_chunk *chunk = chunk_of(t, t->started);
    struct chunk_run *run = run_of(t, t->started);
    int err;

    set_up_run(t, run, chunk);
    err = check_time(t, &run->launch.run.budget_ns);
    if (err)
        return err;
    err = t->e->exec->ops->start(t->e->exec, &run->launch, chunk);
    if (!err)
        t->started++;
    else if (err != -EAGAIN)
        distrust(t, run);
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
    struct chunk_run *run = run_of(t, t->ended);
    int err = t->e->exec->ops->wait(t->e->exec, &run->launch, chunk);

    if (err) {
        distrust(t, run);
    } else {
        err = take_states(t, run);
        t->result->timed_out |= err == -ETIMEDOUT;
        t->result->cancelled |= err == -ECANCELED;
        take_results(t, chunk);
        err = t->result->nvme_status ? -EIO : err;
    }
    if (!err)
        t->done = t->after[t->ended % GQ_SLOT_CHUNKS];
    t->ended++;
    return err;
}

/* After an error the chunks behind it are of no use: they are told to end, and do not count. */
static void abandon_chunks(struct transfer *t)
{
    static const uint32_t cancel = 1;

    for (; t->ended < t->started; t->ended++) {
        struct chunk_run *run = run_of(t, t->ended);

        run->launch.cancel = &cancel;
        if (t->e->exec->ops->wait(t->e->exec, &run->launch, chunk_of(t, t->ended)))
            distrust(t, run);
        else
            take_states(t, run);
    }
}

/* Each run gets a share of the queues that were leased. */
static void share_queues(struct transfer *t)
{
    unsigned n = t->lease.n;

    t->n_runs = n > 1 && gq_plan_estimate(&t->done) > COMMANDS_TO_SPLIT ? GQ_SLOT_RUNS : 1;
    for (unsigned i = 0; i < t->n_runs; i++) {
        t->runs[i].queues = &t->lease.queues[i * n / t->n_runs];
        t->runs[i].n_queues = (i + 1) * n / t->n_runs - i * n / t->n_runs;
    }
}

static int run_chunks(struct transfer *t)
{
    int stop = 0, err = 0;

    share_queues(t);
    t->plan = t->done;
    t->planned = t->started = t->ended = 0;
    do {
        stop = stop ? stop : start_chunks(t);
        if (t->ended < t->started)
            err = end_chunk(t);
    } while (!err && (t->ended < t->started || (!stop && t->ended < t->planned)));
    abandon_chunks(t);
    return err ? err : stop;
}

static unsigned resets_settled(struct gq_engine *e)
{
    unsigned n;

    pthread_mutex_lock(&e->lock);
    n = e->settled;
    pthread_mutex_unlock(&e->lock);
    return n;
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

/*
 * With queues of its own, for as long as nobody resets the controller. *unsettled: commands may be
 * under way that only a later reset than number *settled has ended.
 */
static int run_leased(struct transfer *t, bool *unsettled, unsigned *settled)
{
    struct gq_engine *e = t->e;
    int err = gq_lease_take(e, queues_wanted(&t->done), t->deadline_ns, t->req->cancel, &t->lease);

    if (err)
        return err;
    if (e->ringer)
        gq_ringer_begin(e->ringer);
    err = run_chunks(t);
    if (e->ringer)
        gq_ringer_end(e->ringer);
    *settled = resets_settled(e); /* none can finish before the lease is given back */
    *unsettled = gq_lease_give(e, &t->lease, t->req->buffer);
    return err;
}

static void count_restart(struct gq_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->stats.restarts++;
    pthread_mutex_unlock(&e->lock);
}

/*
 * A reset interrupts it, and the chunk that ran then runs again: the same bytes to the same places.
 */
static int run(struct transfer *t)
{
    struct gq_engine *e = t->e;
    bool unsettled = false;
    unsigned settled = 0;
    int err;

    do {
        err = run_leased(t, &unsettled, &settled);
        if (err == -ERESTART)
            count_restart(e);
    } while (err == -ERESTART);
    t->result->unsettled = unsettled && settled == resets_settled(e);
    return err;
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
    struct transfer t = {.e = e, .req = req, .result = result};
    int err = check_request(e, req, &t.done);

    if (err || req->len == 0)
        return err;
    if (req->deadline_ms)
        t.deadline_ns = gq_now_ns() + (uint64_t)req->deadline_ms * NS_PER_MS;
    err = run(&t);
    result->timed_out |= err == -ETIMEDOUT;
    result->cancelled |= err == -ECANCELED;
    return err;
}

static void account(struct gq_engine *e, const struct gq_request *req, const struct gq_result *r)
{
    pthread_mutex_lock(&e->lock);
    e->stats.transfers++;
    e->stats.commands += r->commands;
    *(req->op == GQ_WRITE ? &e->stats.bytes_written : &e->stats.bytes_read) += r->bytes;
    e->stats.timeouts += r->timed_out;
    e->stats.errors += r->nvme_status != 0;
    e->stats.cancelled += r->cancelled;
    e->transfers--;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

int gq_transfer(struct gq_engine *e, const struct gq_request *req, struct gq_result *result)
{
    int err;

    *result = (struct gq_result){0};
    pthread_mutex_lock(&e->lock);
    e->transfers++;
    pthread_mutex_unlock(&e->lock);
    err = gq_buffer_enter(e, req->buffer);
    if (!err) {
        err = transfer(e, req, result);
        gq_buffer_leave(req->buffer);
    }
    account(e, req, result);
    return err;
}
