/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes commands in a thread of the driver, which would otherwise wait for a
 * sleeping controller thread: waking it and being woken takes longer than a
 * command. The driver's thread performs the part of a round that concerns its
 * queue, under the lock of the controller thread that owns the queue. Commands
 * with a due time and copies by a DMA engine are left to the controller thread.
 */
#include "sim/sim_lent.h"

#include "sim/sim_internal.h"

/*
 * Tries to get the lock, enough for a thread that executes a short command of
 * another queue to end.
 */
#define LOCK_TRIES 256u

/*
 * Returns whether the controller thread must continue, since commands complete
 * later.
 */
static bool leaves_work(const struct sim_thread *th, const struct sim_sq *sq)
{
    bool timed = th->n_heap && th->commands[th->heap[0]].due != SIM_NEVER;

    return timed || sq->head != sq->tail || th->done.head != SIM_NO_COMMAND || th->blocked ||
           atomic_load_explicit(&th->moving, memory_order_relaxed);
}

/* Called with the lock of the queue's owner held. */
static bool run_queue(struct sim_thread *th, struct sim_sq *sq)
{
    if (!th->s->running || sim_idle(th->s) || !sq->ring)
        return false;
    sim_sq_peek(th, sq);
    while (sim_sq_poll(th, sq)) {
    }
    sim_move_submit(th);
    return !leaves_work(th, sq);
}

/*
 * Returns whether the owner has seen the last doorbell and therefore executes
 * the commands.
 */
static bool is_seen(struct sim *s, uint16_t qid)
{
    size_t w = sim_doorbell_word(s, qid, false);

    return atomic_load_explicit(&s->doorbells[w], memory_order_relaxed) ==
           atomic_load_explicit(&s->seen[w], memory_order_relaxed);
}

static void lent_leave(struct sim_thread *th)
{
    atomic_fetch_add(&th->s->kicks, 1); /* see sim_expect(); th->left was stored before */
    sim_wake(th);
}

/*
 * Called before the first try, since a controller thread that is awake might
 * otherwise take each command first.
 */
static void note_lent(struct sim_sq *sq)
{
    if (!atomic_load_explicit(&sq->lent, memory_order_relaxed))
        atomic_store_explicit(&sq->lent, true, memory_order_relaxed);
}

void sim_kick_queue(struct nvme_transport *t, uint16_t qid)
{
    struct sim *s = ((struct sim_transport *)t)->s;
    struct sim_thread *th = &s->threads[sim_owner(s, qid, false)];

    note_lent(&s->sqs[qid]);
    for (unsigned i = 0; i < LOCK_TRIES && !atomic_load_explicit(&s->gate, memory_order_relaxed);
         i++) {
        if (pthread_mutex_trylock(&th->lock) == 0) {
            bool done = run_queue(th, &s->sqs[qid]);
            atomic_store(&th->left, !done);
            pthread_mutex_unlock(&th->lock);
            if (!done)
                lent_leave(th);
            return;
        }
        if (is_seen(s, qid))
            return;
    }
    sim_expect(t, 1);
}
