#include "cuda/gq_run.h"

#include <errno.h>
#include <string.h>

#define NS_PER_MS 1000000u

int gq_job_enter(struct gq_engine *e, struct gq_buffer *b, struct gq_result *result)
{
    *result = (struct gq_result){0};
    pthread_mutex_lock(&e->lock);
    e->transfers++;
    pthread_mutex_unlock(&e->lock);
    return gq_buffer_enter(e, b);
}

void gq_job_leave(struct gq_engine *e, bool is_write, const struct gq_result *r)
{
    pthread_mutex_lock(&e->lock);
    e->stats.transfers++;
    e->stats.commands += r->commands;
    *(is_write ? &e->stats.bytes_written : &e->stats.bytes_read) += r->bytes;
    e->stats.timeouts += r->timed_out;
    e->stats.errors += r->nvme_status != 0;
    e->stats.cancelled += r->cancelled;
    e->transfers--;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

uint64_t gq_job_deadline(unsigned deadline_ms)
{
    return deadline_ms ? gq_now_ns() + (uint64_t)deadline_ms * NS_PER_MS : 0;
}

void gq_job_share(const struct gq_job *j, struct gq_job_run *runs, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        unsigned first = i * j->lease.n / n;

        runs[i].queues = &j->lease.queues[first];
        runs[i].n_queues = (i + 1) * j->lease.n / n - first;
        runs[i].slot = gq_run_slot(j->lease.slot, i);
        runs[i].failed = false;
    }
}

/* Larger groups keep neighbours on one queue; small lists are spread over all of them. */
static uint32_t group_shift(uint32_t cmds, uint32_t queues)
{
    uint32_t shift = 0;

    while (shift < 5 && (queues << (shift + 1)) <= cmds)
        shift++;
    return shift;
}

static void set_up(struct gq_job *j, struct gq_job_run *run, bool beside)
{
    struct gq_engine *e = j->e;
    struct gq_launch *l = &run->launch;

    l->run.command_ns = (uint64_t)e->opts.deadline_ms * NS_PER_MS;
    l->run.n_queues = run->n_queues;
    l->run.group_shift = group_shift(l->run.n_cmds, run->n_queues);
    l->run.nsid = e->ns.nsid;
    l->slot = run->slot;
    l->states = e->exec->ops->slot_states(e->exec, run->slot);
    l->cancel = j->cancel;
    l->is_write = l->run.opcode == NVME_IO_WRITE;
    l->beside = beside;
    memcpy(l->queues, run->queues, run->n_queues * sizeof(l->queues[0]));
    for (unsigned i = 0; i < run->n_queues; i++) {
        l->states[i] = e->queues[l->queues[i]].state;
        l->states[i].sent = 0;
        l->states[i].outcome = GQ_OUT_RUNNING;
    }
}

/* 0 and what time is left, or why no run may be started any more. */
static int check_time(const struct gq_job *j, uint64_t *budget_ns)
{
    uint64_t now;

    *budget_ns = 0;
    if (j->cancel && __atomic_load_n(j->cancel, __ATOMIC_RELAXED))
        return -ECANCELED;
    if (!j->deadline_ns)
        return 0;
    now = gq_now_ns();
    if (now >= j->deadline_ns)
        return -ETIMEDOUT;
    *budget_ns = j->deadline_ns - now;
    return 0;
}

/* The executor failed, so the queues' state is unknown: treat all as having commands in flight. */
static void distrust(struct gq_job *j, struct gq_job_run *run)
{
    for (unsigned i = 0; i < run->n_queues; i++) {
        struct gq_state *state = &j->e->queues[run->queues[i]].state;

        state->in_flight = j->e->opts.depth - 1;
        state->outcome = GQ_OUT_BROKEN;
    }
    run->failed = true;
    if (j->e->ringer)
        gq_ringer_silence(j->e->ringer);
    pthread_mutex_lock(&j->e->lock);
    j->e->failed = true;
    pthread_mutex_unlock(&j->e->lock);
}

int gq_job_start(struct gq_job *j, struct gq_job_run *run, const struct gq_chunk *chunk,
                 bool beside)
{
    int err = check_time(j, &run->launch.run.budget_ns);

    if (err)
        return err;
    set_up(j, run, beside);
    err = j->e->exec->ops->start(j->e->exec, &run->launch, chunk);
    if (err && err != -EAGAIN)
        distrust(j, run);
    return err;
}

/* What the run has come to, as far as its queues tell: 0, -ERESTART, -ETIMEDOUT or -ECANCELED. */
static int take_states(struct gq_job *j, const struct gq_job_run *run)
{
    bool late = false, cancelled = false, left = false;

    for (unsigned i = 0; i < run->n_queues; i++) {
        struct gq_queue *q = &j->e->queues[run->queues[i]];

        q->state = run->launch.states[i];
        j->result->commands += q->state.sent;
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

int gq_job_wait(struct gq_job *j, struct gq_job_run *run, const struct gq_chunk *chunk)
{
    int err = j->e->exec->ops->wait(j->e->exec, &run->launch, chunk);

    if (err) {
        distrust(j, run);
        return err;
    }
    err = take_states(j, run);
    j->result->timed_out |= err == -ETIMEDOUT;
    j->result->cancelled |= err == -ECANCELED;
    return err;
}

void gq_job_abandon(struct gq_job *j, struct gq_job_run *run, const struct gq_chunk *chunk)
{
    static const uint32_t cancel = 1;

    run->launch.cancel = &cancel;
    if (j->e->exec->ops->wait(j->e->exec, &run->launch, chunk))
        distrust(j, run);
    else
        take_states(j, run);
}

static unsigned resets_settled(struct gq_engine *e)
{
    unsigned n;

    pthread_mutex_lock(&e->lock);
    n = e->settled;
    pthread_mutex_unlock(&e->lock);
    return n;
}

static void count_restart(struct gq_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->stats.restarts++;
    pthread_mutex_unlock(&e->lock);
}

/*
 * With queues of its own, until a reset comes. *unsettled: commands may be under way that only a
 * later reset than number *settled has ended.
 */
static int work_leased(struct gq_job *j, bool *unsettled, unsigned *settled)
{
    struct gq_engine *e = j->e;
    int err = gq_lease_take(e, j->want, j->deadline_ns, j->cancel, &j->lease);

    if (err)
        return err;
    if (e->ringer)
        gq_ringer_begin(e->ringer);
    err = j->work(j);
    if (e->ringer)
        gq_ringer_end(e->ringer);
    *settled = resets_settled(e); /* none can finish before the lease is given back */
    *unsettled = gq_lease_give(e, &j->lease, j->buffer);
    return err;
}

int gq_job_do(struct gq_job *j)
{
    bool unsettled = false;
    unsigned settled = 0;
    int err;

    do {
        err = work_leased(j, &unsettled, &settled);
        if (err == -ERESTART)
            count_restart(j->e);
    } while (err == -ERESTART);
    j->result->unsettled = unsettled && settled == resets_settled(j->e);
    j->result->timed_out |= err == -ETIMEDOUT;
    j->result->cancelled |= err == -ECANCELED;
    return err;
}
