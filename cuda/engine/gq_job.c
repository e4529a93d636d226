/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs jobs, the state machine of a transfer (enum step).
 *
 *   RESERVE -> SUBMIT <-> PLAN -> WAIT -> COMPLETE -> SUBMIT ... RELEASE -> END
 *
 * PLAN without a list goes to WAIT, or to RELEASE if none is in flight. An
 * error of a list goes to DRAIN and RELEASE; an error at its start lets the list
 * in flight end first. RELEASE goes to RESERVE after a reset.
 */
#include "cuda/engine/gq_job.h"

#include <errno.h>
#include <string.h>

#include "cuda/engine/gq_lent.h"
#include "support/clock.h"
#include "support/minmax.h"

int gq_job_enter(struct gq_engine *e, struct gq_buffer *b, struct gq_result *result)
{
    *result = (struct gq_result){0};
    pthread_mutex_lock(&e->lock);
    e->transfers++;
    pthread_mutex_unlock(&e->lock);
    int err = nvme_ctrlr_watch(e->ctrlr);
    return err ? err : gq_buffer_enter(e, b);
}

void gq_job_leave(struct gq_engine *e, bool is_write, int err, struct gq_result *r)
{
    /* Commands from or to memory that has left the machine may have succeeded. */
    if (err == -ESTALE) {
        r->bytes = 0;
        r->partial = false;
    }
    pthread_mutex_lock(&e->lock);
    e->stats.transfers++;
    e->stats.commands += r->commands;
    *(is_write ? &e->stats.bytes_written : &e->stats.bytes_read) += r->bytes;
    if (r->staged)
        *(is_write ? &e->stats.staged_written : &e->stats.staged_read) += r->bytes;
    e->stats.timeouts += r->timed_out;
    e->stats.errors += r->nvme_status != 0 || err == -EIO;
    e->stats.cancelled += r->cancelled;
    e->transfers--;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

uint64_t gq_job_deadline(unsigned deadline_ms)
{
    return deadline_ms ? now_ns() + (uint64_t)deadline_ms * NS_PER_MS : 0;
}

void gq_job_set_up_reads(const struct gq_engine *e, const struct gq_buffer *b,
                         struct gq_reads *reads)
{
    *reads = (struct gq_reads){
        .map = {.lba_size = e->ns.lba_size},
        .target = {.base = b->region.base,
                   .iova = b->region.iova,
                   .prps_iova = b->region.prps.iova,
                   .head = b->import.head,
                   .len = b->len},
        .staging = gq_staging_target(&e->staging),
        .lane_staging = e->lane_staging,
        .queue_area = e->queue_area,
        .staged = b->staged,
        .max_command = e->info.max_command,
    };
}

void gq_job_lengthen_commands(struct gq_job *j, struct gq_reads *reads)
{
    const struct gq_engine *e = j->e;

    if (e->long_staging <= e->lane_staging)
        return;
    reads->lane_staging = e->long_staging;
    reads->lanes = (uint32_t)min_u64(GQ_STAGING_LANES, e->queue_area / e->long_staging);
    j->least_portion = 1;
}

static struct gq_list *list_of(const struct gq_job *j, unsigned i)
{
    return &j->e->workspaces[j->reservation.workspace].lists[i % GQ_JOB_LISTS];
}

/*
 * Returns log2 of the size of the groups in which queues get reads. Larger
 * groups keep neighbours on one queue; small lists are spread over all queues.
 * A list of reads is in host memory, where each page that a queue touches costs
 * it an address translation, so long lists have groups that fill most of a
 * page.
 */
static uint16_t group_shift(const struct gq_list *list, uint32_t queues)
{
    uint16_t shift = (uint16_t)gq_group_shift(list->n, queues, 5);

    while (list->reads.desc && shift >= 5 && shift < 7 && (queues << (shift + 4)) <= list->n)
        shift++;
    return shift;
}

static void set_up(struct gq_job *j, const struct gq_list *list, uint64_t budget_ns)
{
    struct gq_engine *e = j->e;
    struct gq_launch *l = &j->launch;
    const struct gq_reservation *r = &j->reservation;

    l->run = (struct gq_run){.n_cmds = list->n,
                             .n_queues = r->n,
                             .group_shift = group_shift(list, r->n),
                             .least_portion = j->least_portion,
                             .command_ns = (uint64_t)e->opts.deadline_ms * NS_PER_MS,
                             .budget_ns = budget_ns,
                             .nsid = e->ns.nsid,
                             .opcode = j->opcode};
    l->list = list;
    l->index = r->workspace;
    l->states = e->exec->ops->run_states(e->exec, l->index);
    l->cancel = j->cancel;
    memcpy(l->queues, r->queues, r->n * sizeof(l->queues[0]));
    for (unsigned q = 0; q < r->n; q++) {
        l->states[q] = e->queues[r->queues[q]].state;
        l->states[q].sent = 0;
        l->states[q].bytes = 0;
        l->states[q].status = 0;
        l->states[q].bad = 0; /* without a report nothing of the list is certain */
        l->states[q].outcome = GQ_OUT_RUNNING;
    }
}

/* Returns 0 and the remaining time, or the reason why no run may be started. */
static int check_time(const struct gq_job *j, uint64_t *budget_ns)
{
    uint64_t now;

    *budget_ns = 0;
    if (j->cancel && __atomic_load_n(j->cancel, __ATOMIC_RELAXED))
        return -ECANCELED;
    if (!j->deadline_ns)
        return 0;
    now = now_ns();
    if (now >= j->deadline_ns)
        return -ETIMEDOUT;
    *budget_ns = j->deadline_ns - now;
    return 0;
}

/*
 * The executor has failed, so the state of the queues is unknown: all are
 * treated as if they had commands in flight.
 */
static void mark_failed(struct gq_job *j)
{
    for (unsigned i = 0; i < j->reservation.n; i++) {
        struct gq_state *state = &j->e->queues[j->reservation.queues[i]].state;

        state->in_flight = j->e->opts.depth - 1;
        state->outcome = GQ_OUT_BROKEN;
    }
    j->failed = true;
    if (j->e->proxy)
        gq_doorbell_proxy_silence(j->e->proxy);
    pthread_mutex_lock(&j->e->lock);
    j->e->failed = true;
    pthread_mutex_unlock(&j->e->lock);
}

static bool has_not_begun(int err)
{
    return err == -ECANCELED || err == -ETIMEDOUT || err == -ERESTART;
}

/*
 * Starts a run of the next list. Returns -ECANCELED or -ETIMEDOUT if it is too
 * late, -ERESTART if a reset comes first, or the error of the executor.
 */
static int job_start_list(struct gq_job *j)
{
    uint64_t budget_ns;
    int lent = gq_lent_take(j->e, j->deadline_ns, j->cancel);
    int err = check_time(j, &budget_ns);

    if (lent)
        return err ? err : lent;
    if (!err) {
        set_up(j, list_of(j, j->started), budget_ns);
        err = j->e->exec->ops->start(j->e->exec, &j->launch);
        if (err && !has_not_begun(err))
            mark_failed(j);
    }
    if (err)
        gq_lent_give(j->e);
    j->started += !err;
    return err;
}

/*
 * Derives the result of a run from the states of its queues: 0, -ERESTART,
 * -ETIMEDOUT or -ECANCELED. Completed commands count as progress of the
 * controller.
 */
static int take_states(struct gq_job *j)
{
    bool late = false, cancelled = false, left = false, completed = false;

    for (unsigned i = 0; i < j->reservation.n; i++) {
        struct gq_queue *q = &j->e->queues[j->reservation.queues[i]];

        q->state = j->launch.states[i];
        j->result->commands += q->state.sent;
        __atomic_fetch_add(&q->commands, q->state.sent, __ATOMIC_RELAXED);
        late |= q->state.outcome == GQ_OUT_TIMED_OUT || q->state.outcome == GQ_OUT_BROKEN;
        cancelled |= q->state.outcome == GQ_OUT_CANCELLED;
        left |= q->state.outcome == GQ_OUT_LEFT;
        completed |= q->state.sent > q->state.in_flight;
    }
    if (completed)
        nvme_ctrlr_progress(j->e->ctrlr);
    /*
     * A reset ends all commands that have not completed, and the transfer restarts;
     * so no command counts as late before a reset.
     */
    if (left)
        return -ERESTART;
    if (late)
        return -ETIMEDOUT;
    return cancelled ? -ECANCELED : 0;
}

static int wait_run(struct gq_job *j)
{
    int err = j->e->exec->ops->wait(j->e->exec, &j->launch);

    if (err)
        mark_failed(j);
    else
        err = take_states(j);
    gq_lent_give(j->e);
    return err;
}

enum step {
    RESERVE,  /* take queues and a workspace */
    SUBMIT,   /* start the next filled list if none is in flight */
    PLAN,     /* fill the next list */
    WAIT,     /* wait for the list in flight */
    COMPLETE, /* take its results */
    DRAIN,    /* cancel the list in flight after an error */
    RELEASE,  /* return the reservation */
    END,
};

static bool is_under_way(const struct gq_job *j)
{
    return j->ended < j->started;
}

static enum step job_reserve(struct gq_job *j)
{
    struct gq_engine *e = j->e;

    j->err = gq_reservation_take(e, j->kind->want(j), j->deadline_ns, j->cancel, &j->reservation);
    if (j->err)
        return END;
    if (e->proxy)
        gq_doorbell_proxy_begin(e->proxy);
    j->filled = j->started = j->ended = 0;
    j->stop = 0;
    j->failed = false;
    j->err = j->kind->prepare(j);
    return j->err ? RELEASE : SUBMIT;
}

static enum step job_submit(struct gq_job *j)
{
    if (j->started < j->filled && !is_under_way(j))
        j->stop = job_start_list(j);
    return j->stop ? RELEASE : PLAN;
}

/*
 * Each list is submitted as soon as it is filled, if none is in flight; up to
 * GQ_JOB_LISTS are filled ahead. With a lent queue no list is filled while one
 * is in flight, because a listener may read by the device that has lent it.
 */
static enum step job_plan(struct gq_job *j)
{
    bool has_room = j->filled - j->ended < (j->e->opts.lender ? 1 : GQ_JOB_LISTS);

    if (has_room && j->kind->plan(j, list_of(j, j->filled))) {
        j->filled++;
        return SUBMIT;
    }
    return is_under_way(j) ? WAIT : RELEASE;
}

/* Starts the next filled list while the results of the last one are taken. */
static void start_next(struct gq_job *j)
{
    j->stop = j->started < j->filled ? job_start_list(j) : 0;
}

static enum step wait_for_list(struct gq_job *j)
{
    j->err = wait_run(j);
    j->ended++;
    if (j->failed)
        return RELEASE;
    if (!j->err)
        start_next(j);
    return COMPLETE;
}

static enum step job_complete(struct gq_job *j)
{
    int err = j->err;

    j->result->timed_out |= err == -ETIMEDOUT;
    j->result->cancelled |= err == -ECANCELED;
    j->err = j->kind->complete(j, list_of(j, j->ended - 1), err);
    if (j->err)
        return DRAIN;
    return j->stop ? RELEASE : SUBMIT;
}

static enum step drain(struct gq_job *j)
{
    static const uint32_t cancel = 1;

    while (is_under_way(j)) {
        j->launch.cancel = &cancel;
        wait_run(j);
        j->ended++;
    }
    return RELEASE;
}

static unsigned resets_settled(struct gq_engine *e)
{
    unsigned n;

    pthread_mutex_lock(&e->lock);
    n = e->settled;
    pthread_mutex_unlock(&e->lock);
    return n;
}

static enum step job_release(struct gq_job *j)
{
    struct gq_engine *e = j->e;
    unsigned before = j->settled;

    if (e->proxy)
        gq_doorbell_proxy_end(e->proxy);
    j->settled = resets_settled(e); /* no reset can finish before the reservation is released */
    j->unsettled = j->unsettled && before == j->settled;
    j->unsettled |= gq_reservation_release(e, &j->reservation, j->buffer);
    j->err = j->err ? j->err : j->stop;
    if (j->err != -ERESTART)
        return END;
    gq_count(e, &e->stats.restarts);
    return RESERVE;
}

static enum step take_step(struct gq_job *j, enum step step)
{
    switch (step) {
    case RESERVE:
        return job_reserve(j);
    case SUBMIT:
        return job_submit(j);
    case PLAN:
        return job_plan(j);
    case WAIT:
        return wait_for_list(j);
    case COMPLETE:
        return job_complete(j);
    case DRAIN:
        return drain(j);
    case RELEASE:
        return job_release(j);
    case END:
        break;
    }
    return END;
}

int gq_job_execute(struct gq_job *j)
{
    enum step step = RESERVE;

    while (step != END)
        step = take_step(j, step);
    j->result->unsettled = j->unsettled && j->settled == resets_settled(j->e);
    j->result->timed_out |= j->err == -ETIMEDOUT;
    j->result->cancelled |= j->err == -ECANCELED;
    return j->err;
}
