/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Recovers a queue in steps: abort, recreate, reset. Implements the engine's callbacks for a reset
 * of the controller (nvme.h, nvme_user).
 *
 * Locks are taken in this order: recover_lock, the driver's reset_lock, the
 * executor's (quiesce), lock, the driver's dma_lock. The resetting thread calls
 * recover_stop() and recover_resume() with reset_lock held. A queue in state RECOVERING belongs
 * to the thread that set the state: recover_resume() does not change it, and that
 * thread returns it to service unless a reset has ended the pair meanwhile.
 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>

#include "blockdev/nvme/nvme_queue.h"
#include "cuda/engine/gq_lent.h"
#include "support/clock.h"
#include "support/wait.h"

#define USER_OFFSET offsetof(struct gq_engine, user)

/*
 * A queue that cannot be created again at the third attempt stays out of
 * service. Before each other attempt the controller is reset, unless it was the
 * executor that failed.
 */
#define TRIES_FOR_A_QUEUE 3u
/* State of a queue that has no commands and accepts none. */
#define NO_QUEUE ((struct gq_state){.outcome = GQ_OUT_BROKEN})

static bool reset_since(const struct gq_engine *e, const struct gq_queue *q)
{
    /* A lent pair is created again when it is taken. */
    return !e->opts.lender && q->qp.epoch != nvme_ctrlr_epoch(e->ctrlr);
}

/*
 * Sets the proxy's copy of the doorbells of queue i after the host has stored
 * to them or the queue was created.
 */
static void set_proxy(struct gq_engine *e, unsigned i, uint32_t sq_tail, uint32_t cq_head)
{
    if (e->proxy)
        gq_doorbell_proxy_set(e->proxy, i, sq_tail, cq_head);
}

/*
 * Replaces the executor's port after a pair was moved to another ID, with other
 * rings and doorbells. A reset does not free the old rings before that, because
 * only a controller that keeps queues makes pairs move. After an error (err) of
 * the pair the executor gets no port.
 */
static int move_port(struct gq_engine *e, unsigned i, int err)
{
    e->exec->ops->quiesce(e->exec);
    gq_engine_remove_port(e, i);
    if (!err)
        err = gq_engine_add_port(e, i);
    e->exec->ops->resume(e->exec);
    return err;
}

/* *refused says that the pair exists and that the executor has not taken it. */
static int create_again(struct gq_engine *e, unsigned i, bool *refused)
{
    struct gq_queue *q = &e->queues[i];
    int err = nvme_qpair_recreate(e->ctrlr, &q->qp);

    *refused = !err;
    if (q->qp.qid != q->port_qid)
        return move_port(e, i, err);
    if (!err)
        set_proxy(e, i, 0, 0);
    return err;
}

/*
 * Waits for runs to leave: each sees the flag in its next round, or ends within
 * its deadline.
 */
static void recover_stop(struct nvme_user *u)
{
    struct gq_engine *e = (struct gq_engine *)(void *)((char *)u - USER_OFFSET);

    pthread_mutex_lock(&e->lock);
    e->stopped = true;
    __atomic_store_n(&e->exec->flags, GQ_FLAG_LEAVE, __ATOMIC_RELAXED);
    while (e->driving)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

/*
 * Returns true if the reset may create the queue again. Without reservations a
 * queue is free, or it waits for a recovery that the reset makes unnecessary.
 */
static bool resumable(struct gq_engine *e, const struct gq_queue *q)
{
    bool yes;

    pthread_mutex_lock(&e->lock);
    yes = !e->failed && (q->use == GQ_QUEUE_FREE || q->use == GQ_QUEUE_QUARANTINED);
    pthread_mutex_unlock(&e->lock);
    return yes;
}

/* Creates a queue again after a reset, which has ended its commands in any case. */
static void resume_queue(struct gq_engine *e, unsigned i)
{
    struct gq_queue *q = &e->queues[i];
    bool refused;
    int err;

    if (!resumable(e, q))
        return;
    err = e->opts.lender ? 0 : create_again(e, i, &refused);
    pthread_mutex_lock(&e->lock);
    if (err) {
        gq_queue_settle(q);
        q->use = GQ_QUEUE_QUARANTINED;
        q->state = NO_QUEUE;
    } else {
        gq_queue_renew(q);
    }
    pthread_mutex_unlock(&e->lock);
}

static void settle_all(struct gq_engine *e)
{
    for (unsigned i = 0; i < e->n_queues; i++) {
        if (e->queues[i].use == GQ_QUEUE_QUARANTINED)
            gq_queue_settle(&e->queues[i]);
    }
    e->settled++;
}

/*
 * Called for each node of the tree, under e->lock, if the controller has failed
 * and could not be stopped. Its commands are reported as ended, so they must not
 * reach applications' memory any more. Staging is no longer used.
 */
static void revoke_buffer(const void *node, VISIT visit, void *engine)
{
    struct gq_buffer *b = *(struct gq_buffer *const *)node;
    struct gq_engine *e = engine;

    if ((visit == postorder || visit == leaf) && !b->staged && !b->is_list)
        gq_region_revoke(e->ctrlr, &b->region);
}

static void recover_resume(struct nvme_user *u, int err)
{
    struct gq_engine *e = (struct gq_engine *)(void *)((char *)u - USER_OFFSET);

    for (unsigned i = 0; i < e->n_queues && !err; i++)
        resume_queue(e, i);
    pthread_mutex_lock(&e->lock);
    e->dead = err != 0;
    if (nvme_ctrlr_settled(e->ctrlr))
        settle_all(e);
    else
        twalk_r(e->buffers, revoke_buffer, e);
    e->stats.resets++;
    __atomic_store_n(&e->exec->flags, 0, __ATOMIC_RELAXED);
    e->stopped = false;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/*
 * Registers the engine, and recovers queues that were created before a reset
 * which could not call recover_stop() and recover_resume() of this engine yet.
 */
void gq_recover_open(struct gq_engine *e)
{
    bool missed = false;

    e->user = (struct nvme_user){.stop = recover_stop, .resume = recover_resume};
    nvme_ctrlr_add_user(e->ctrlr, &e->user);
    pthread_mutex_lock(&e->lock);
    for (unsigned i = 0; i < e->n_queues; i++) {
        if (!reset_since(e, &e->queues[i]) || e->queues[i].use != GQ_QUEUE_FREE)
            continue;
        e->queues[i].use = GQ_QUEUE_QUARANTINED;
        missed = true;
    }
    pthread_mutex_unlock(&e->lock);
    if (missed)
        gq_engine_recover(e);
}

void gq_recover_close(struct gq_engine *e)
{
    nvme_ctrlr_remove_user(e->ctrlr, &e->user);
}

/*
 * Allows a host thread to poll the ring of q until leave_ring(). Returns false
 * if a reset has ended the pair.
 */
static bool enter_ring(struct gq_engine *e, const struct gq_queue *q)
{
    bool valid;

    pthread_mutex_lock(&e->lock);
    while (e->stopped)
        pthread_cond_wait(&e->changed, &e->lock);
    valid = !e->dead && !reset_since(e, q);
    e->driving += valid;
    pthread_mutex_unlock(&e->lock);
    return valid;
}

static void leave_ring(struct gq_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->driving--;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/*
 * Returns the tracker of the command in flight with this CID, or NULL. It may
 * be the tracker of an SQ entry.
 */
static struct gq_tracker *recover_find(const struct gq_queue *q, struct gq_tracker *trackers,
                                       uint16_t cid)
{
    for (uint32_t i = 0; i < q->qp.depth - 1; i++) {
        if (GQ_TRACKER_CID(&trackers[i]) == cid && trackers[i].cmd < GQ_TRACKER_FREE)
            return &trackers[i];
    }
    return NULL;
}

/*
 * Handles the completions that have arrived. Returns false if a CID is not in
 * flight: the queue is then not trusted.
 */
static bool take_completions(struct gq_queue *q, struct nvme_ring *ring,
                             struct gq_tracker *trackers)
{
    struct nvme_cqe cqe;

    while (q->state.in_flight && nvme_ring_poll(ring, &cqe)) {
        struct gq_tracker *tracker = recover_find(q, trackers, cqe.cid);

        if (!tracker)
            return false;
        tracker->cmd = GQ_TRACKER_FREE;
        q->state.in_flight--;
    }
    return true;
}

/*
 * Polls from where the run ended, and leaves the queue in a state for the next
 * run. Returns false if further polling is useless.
 */
static bool recover_poll_queue(struct gq_engine *e, unsigned i, struct gq_tracker *trackers)
{
    struct nvme_transport *t = nvme_ctrlr_transport(e->ctrlr);
    struct gq_queue *q = &e->queues[i];
    struct nvme_ring ring;
    bool good;

    if (!enter_ring(e, q))
        return false;
    nvme_ring_init(&ring, &q->qp);
    ring.cq_head = q->state.cq_head;
    ring.phase = q->state.phase;
    good = take_completions(q, &ring, trackers);
    if (ring.cq_head != q->state.cq_head) {
        q->state.cq_head = ring.cq_head;
        q->state.phase = ring.phase;
        nvme_ring_release(&ring);
        nvme_wake(t, 1);
        set_proxy(e, i, q->state.sq_tail, ring.cq_head);
        nvme_ctrlr_progress(e->ctrlr);
    }
    leave_ring(e);
    return good;
}

/*
 * Sends one Abort for each command in flight. If the controller does not abort
 * a command, the command may have completed meanwhile; if it has not, no
 * further Abort is sent.
 */
static bool abort_each(struct gq_engine *e, unsigned i, struct gq_tracker *trackers, uint64_t until)
{
    struct gq_queue *q = &e->queues[i];

    for (uint32_t at = 0; at < q->qp.depth - 1; at++) {
        int err;

        if (trackers[at].cmd >= GQ_TRACKER_FREE)
            continue;
        if (now_ns() >= until)
            return false;
        err = nvme_abort(e->ctrlr, q->qp.qid, (uint16_t)GQ_TRACKER_CID(&trackers[at]));
        if (err && err != -EAGAIN)
            return false;
        if (!err)
            gq_count(e, &e->stats.aborts);
        if (!recover_poll_queue(e, i, trackers) || (err && trackers[at].cmd < GQ_TRACKER_FREE))
            return false;
    }
    return true;
}

/*
 * Returns true if no command is in flight and the next run can continue from
 * the queue's state.
 */
static bool abort_commands(struct gq_engine *e, unsigned i)
{
    struct gq_queue *q = &e->queues[i];
    uint64_t until = deadline_after_ms(GQ_ABORT_MS);
    struct gq_tracker *trackers = calloc(q->qp.depth, sizeof(*trackers));
    struct poll_wait wait = {0};
    bool good = trackers && !e->exec->ops->port_trackers(e->exec, i, trackers) &&
                recover_poll_queue(e, i, trackers) && abort_each(e, i, trackers, until);

    while (good && q->state.in_flight && now_ns() < until) {
        poll_wait_once(&wait);
        good = recover_poll_queue(e, i, trackers);
    }
    free(trackers);
    return good && q->state.in_flight == 0;
}

/*
 * Aborts the commands of the queue. Skips a queue that broke the protocol or
 * has no commands in flight.
 */
static bool try_abort(struct gq_engine *e, unsigned i)
{
    struct gq_state *state = &e->queues[i].state;

    if (state->outcome == GQ_OUT_BROKEN || state->in_flight == 0 || !abort_commands(e, i))
        return false;
    state->outcome = GQ_OUT_DONE;
    return true;
}

/*
 * Creates the pair again. *refused says that the executor does not accept the
 * new pair, so that a reset would not help.
 */
static bool try_recreate(struct gq_engine *e, unsigned i, bool *refused)
{
    bool ended = reset_since(e, &e->queues[i]);

    if (create_again(e, i, refused))
        return false;
    e->queues[i].state = (struct gq_state){.phase = 1, .outcome = GQ_OUT_DONE};
    if (!ended)
        gq_count(e, &e->stats.recreates);
    return true;
}

/*
 * Takes the steps of recovery in turn. Returns 0 if the commands of the queue
 * have ended; *usable says whether it can be driven again. CSTS is read first,
 * so that no time is spent on admin commands to a failed controller.
 */
static int recover_by_steps(struct gq_engine *e, unsigned i, bool *usable)
{
    struct gq_queue *q = &e->queues[i];

    *usable = nvme_ctrlr_alive(e->ctrlr) && !reset_since(e, q) && try_abort(e, i);
    for (unsigned tries = 1; !*usable; tries++) {
        bool refused = false;

        *usable = nvme_ctrlr_alive(e->ctrlr) && try_recreate(e, i, &refused);
        if (*usable || tries == TRIES_FOR_A_QUEUE)
            return 0;
        if (!refused && nvme_ctrlr_reset(e->ctrlr, q->qp.epoch))
            return -EIO;
        q->state = NO_QUEUE;
    }
    return 0;
}

/* Deletes a queue, without creating it again, after the executor has failed. */
static int recover_delete_queue(struct gq_engine *e, struct gq_queue *q)
{
    unsigned epoch = q->qp.epoch;

    if (!nvme_qpair_delete(e->ctrlr, &q->qp))
        return 0;
    return nvme_ctrlr_reset(e->ctrlr, epoch);
}

/* Claims a queue for this thread while no reset is in progress. */
static bool recover_claim(struct gq_engine *e, struct gq_queue *q, bool *failed)
{
    bool mine;

    pthread_mutex_lock(&e->lock);
    while (e->stopped)
        pthread_cond_wait(&e->changed, &e->lock);
    mine = q->use == GQ_QUEUE_QUARANTINED && !e->dead;
    if (mine)
        q->use = GQ_QUEUE_RECOVERING;
    *failed = e->failed;
    pthread_mutex_unlock(&e->lock);
    return mine;
}

/*
 * Sets the final state of the queue. Returns false if a reset has ended the
 * pair meanwhile and it must be created again.
 */
static bool return_queue(struct gq_engine *e, struct gq_queue *q, int err, enum gq_queue_use use)
{
    bool done = true;

    pthread_mutex_lock(&e->lock);
    while (e->stopped)
        pthread_cond_wait(&e->changed, &e->lock);
    if (!err || nvme_ctrlr_settled(e->ctrlr))
        gq_queue_settle(q);
    if (!err && use == GQ_QUEUE_FREE && reset_since(e, q))
        done = false;
    else
        q->use = use;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return done;
}

static int gq_recover_recover_queue(struct gq_engine *e, unsigned i)
{
    struct gq_queue *q = &e->queues[i];
    enum gq_queue_use use;
    bool failed, usable;
    int err;

    if (!recover_claim(e, q, &failed))
        return 0;
    do {
        if (failed) {
            err = e->opts.lender ? gq_lent_recover(e) : recover_delete_queue(e, q);
            use = GQ_QUEUE_GONE;
        } else if (e->opts.lender) {
            err = gq_lent_recover(e);
            use = err ? GQ_QUEUE_QUARANTINED : GQ_QUEUE_FREE;
        } else {
            err = recover_by_steps(e, i, &usable);
            use = !err && usable ? GQ_QUEUE_FREE : GQ_QUEUE_QUARANTINED;
        }
    } while (!return_queue(e, q, err, use));
    return err;
}

static bool is_dead(struct gq_engine *e)
{
    bool dead;

    pthread_mutex_lock(&e->lock);
    dead = e->dead;
    pthread_mutex_unlock(&e->lock);
    return dead;
}

int gq_engine_recover(struct gq_engine *e)
{
    int err = 0;

    pthread_mutex_lock(&e->recover_lock);
    for (unsigned i = 0; i < e->n_queues && !err; i++)
        err = gq_recover_recover_queue(e, i);
    pthread_mutex_unlock(&e->recover_lock);
    return err || is_dead(e) ? -EIO : 0;
}
