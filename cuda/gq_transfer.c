/* One transfer: chunk after chunk, the next one planned while the last one runs. */
#include <errno.h>
#include <string.h>

#include "cuda/gq_internal.h"

#define NS_PER_MS 1000000u

struct transfer {
    struct gq_engine *e;
    const struct gq_request *req;
    struct gq_result *result;
    struct gq_plan plan;
    struct gq_lease lease;
    uint64_t deadline_ns; /* of the whole transfer; 0: none */
    struct gq_launch launch;
};

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

static void set_up_run(struct transfer *t, const struct gq_chunk *chunk)
{
    struct gq_engine *e = t->e;
    struct gq_launch *l = &t->launch;

    *l = (struct gq_launch){
        .run = {.cmds = chunk->cmds,
                .results = chunk->results,
                .command_ns = (uint64_t)e->opts.deadline_ms * NS_PER_MS,
                .n_cmds = chunk->n_cmds,
                .n_queues = t->lease.n,
                .group_shift = group_shift(chunk->n_cmds, t->lease.n),
                .nsid = e->ns.nsid,
                .opcode = t->req->op == GQ_WRITE ? NVME_IO_WRITE : NVME_IO_READ},
        .slot = t->lease.slot,
        .states = e->exec->ops->slot_states(e->exec, t->lease.slot),
        .cancel = t->req->cancel,
        .is_write = t->req->op == GQ_WRITE,
    };
    memcpy(l->queues, t->lease.queues, t->lease.n * sizeof(l->queues[0]));
    for (unsigned i = 0; i < t->lease.n; i++) {
        l->states[i] = e->queues[l->queues[i]].state;
        l->states[i].sent = 0;
        l->states[i].outcome = GQ_OUT_RUNNING;
    }
}

/* 0, or why no chunk may be started any more. */
static int check_time(struct transfer *t)
{
    uint64_t now;

    if (is_cancelled(t->req)) {
        t->result->cancelled = true;
        return -ECANCELED;
    }
    if (!t->deadline_ns)
        return 0;
    now = gq_now_ns();
    if (now >= t->deadline_ns) {
        t->result->timed_out = true;
        return -ETIMEDOUT;
    }
    t->launch.run.budget_ns = t->deadline_ns - now;
    return 0;
}

static void take_states(struct transfer *t)
{
    for (unsigned i = 0; i < t->lease.n; i++) {
        struct gq_queue *q = &t->e->queues[t->lease.queues[i]];

        q->state = t->launch.states[i];
        t->result->commands += q->state.sent;
        if (q->state.outcome == GQ_OUT_TIMED_OUT || q->state.outcome == GQ_OUT_BROKEN)
            t->result->timed_out = true;
        if (q->state.outcome == GQ_OUT_CANCELLED)
            t->result->cancelled = true;
    }
}

/* Results in stream order: bytes up to the first command not known to have succeeded. */
static void take_results(struct transfer *t, const struct gq_chunk *chunk)
{
    bool whole = true;

    for (uint32_t i = 0; i < chunk->n_cmds; i++) {
        uint32_t r = chunk->results[i];

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
}

static int verdict(const struct gq_result *r)
{
    if (r->nvme_status)
        return -EIO;
    if (r->timed_out)
        return -ETIMEDOUT;
    return r->cancelled ? -ECANCELED : 0;
}

/* The executor failed, so the queues' state is unknown: treat all as having commands in flight. */
static void distrust(struct transfer *t)
{
    for (unsigned i = 0; i < t->lease.n; i++) {
        struct gq_state *state = &t->e->queues[t->lease.queues[i]].state;

        state->in_flight = t->e->opts.depth - 1;
        state->outcome = GQ_OUT_BROKEN;
    }
    pthread_mutex_lock(&t->e->lock);
    t->e->failed = true;
    pthread_mutex_unlock(&t->e->lock);
}

static bool plan_chunk(struct transfer *t, unsigned i)
{
    uint64_t part = t->e->chunk_staging;

    return gq_plan_next(&t->plan, &t->e->slots[t->lease.slot].chunks[i],
                        (2 * t->lease.slot + i) * part, part);
}

static int run_chunks(struct transfer *t)
{
    const struct gq_exec_ops *ops = t->e->exec->ops;
    struct gq_slot_res *slot = &t->e->slots[t->lease.slot];
    unsigned cur = 0;
    bool more = plan_chunk(t, cur);

    while (more) {
        struct gq_chunk *chunk = &slot->chunks[cur];
        int err;

        set_up_run(t, chunk);
        err = check_time(t);
        if (err)
            return err;
        err = ops->start(t->e->exec, &t->launch, chunk);
        if (!err) {
            more = plan_chunk(t, cur ^ 1);
            err = ops->wait(t->e->exec, &t->launch, chunk);
        }
        if (err) {
            distrust(t);
            return err;
        }
        take_states(t);
        take_results(t, chunk);
        err = verdict(t->result);
        if (err)
            return err;
        cur ^= 1;
    }
    return 0;
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
    return gq_plan_start(plan, &env, req);
}

static int transfer(struct gq_engine *e, const struct gq_request *req, struct gq_result *result)
{
    struct transfer t = {.e = e, .req = req, .result = result};
    uint64_t now = gq_now_ns();
    int err = check_request(e, req, &t.plan);

    if (err || req->len == 0)
        return err;
    if (req->deadline_ms)
        t.deadline_ns = now + (uint64_t)req->deadline_ms * NS_PER_MS;
    /* Eight commands a queue are enough to hide a round trip. */
    err = gq_lease_take(e, (gq_plan_estimate(&t.plan) + 7) / 8,
                        t.deadline_ns ? t.deadline_ns
                                      : now + (uint64_t)e->opts.deadline_ms * NS_PER_MS,
                        req->cancel, &t.lease);
    if (err) {
        result->timed_out = err == -ETIMEDOUT;
        result->cancelled = err == -ECANCELED;
        return err;
    }
    err = run_chunks(&t);
    result->unsettled = gq_lease_give(e, &t.lease, req->buffer);
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
