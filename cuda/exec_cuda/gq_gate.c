/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements a reader-writer lock with bounded waits for readers. */
#include "cuda/exec_cuda/gq_gate.h"

#include <errno.h>
#include <time.h>

#include "support/clock.h"

#define STEP_NS 2000000u /* interval at which a waiting run checks for its cancellation */

int gq_gate_init(struct gq_gate *g)
{
    pthread_rwlockattr_t attr;
    int err = pthread_rwlockattr_init(&attr);

    if (err)
        return -err;
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    err = pthread_rwlock_init(&g->lock, &attr);
    pthread_rwlockattr_destroy(&attr);
    if (!err)
        pthread_mutex_init(&g->alone, NULL);
    g->stuck = false;
    return -err;
}

void gq_gate_destroy(struct gq_gate *g)
{
    pthread_mutex_destroy(&g->alone);
    pthread_rwlock_destroy(&g->lock);
}

#define GATE_DEVICES 64

static struct gq_gate gates[GATE_DEVICES];
static int gates_error;

static void gate_init_all(void)
{
    for (int i = 0; i < GATE_DEVICES && !gates_error; i++)
        gates_error = gq_gate_init(&gates[i]);
}

int gq_gate_of_device(int device, struct gq_gate **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (device < 0 || device >= GATE_DEVICES)
        return -ENODEV;
    pthread_once(&once, gate_init_all);
    *out = &gates[device];
    return gates_error;
}

/*
 * Returns -EAGAIN, or the reason why a run must not wait any longer. No run is
 * late before a reset: it restarts after the reset, or fails then.
 */
static int gate_too_late(const struct gq_launch *l, const uint32_t *flags, uint64_t waited)
{
    if (__atomic_load_n(flags, __ATOMIC_RELAXED) & GQ_FLAG_LEAVE)
        return -ERESTART;
    if (l->cancel && __atomic_load_n(l->cancel, __ATOMIC_RELAXED))
        return -ECANCELED;
    return l->run.budget_ns && waited >= l->run.budget_ns ? -ETIMEDOUT : -EAGAIN;
}

static int wait_a_step(struct gq_gate *g, uint64_t now)
{
    const struct timespec ts = timespec_of_ns(now + STEP_NS);

    return -pthread_rwlock_clockrdlock(&g->lock, CLOCK_MONOTONIC, &ts);
}

/*
 * Subtracts the waiting time from the budget. 0 means no budget, so a spent
 * budget is stored as 1.
 */
static void spend(struct gq_launch *l, uint64_t waited)
{
    if (l->run.budget_ns)
        l->run.budget_ns = waited < l->run.budget_ns ? l->run.budget_ns - waited : 1;
}

int gq_gate_enter(struct gq_gate *g, struct gq_launch *l, const uint32_t *flags)
{
    uint64_t start = now_ns(), now = start;
    int err = -pthread_rwlock_tryrdlock(&g->lock);

    if (!err)
        return 0;
    do {
        err = wait_a_step(g, now);
        now = now_ns();
        if (err == -ETIMEDOUT)
            err = gate_too_late(l, flags, now - start);
    } while (err == -EAGAIN);
    if (!err)
        spend(l, now - start);
    return err;
}

void gq_gate_leave(struct gq_gate *g)
{
    pthread_rwlock_unlock(&g->lock);
}

void gq_gate_take(struct gq_gate *g)
{
    pthread_mutex_lock(&g->alone);
    pthread_rwlock_wrlock(&g->lock);
}

/*
 * Releases the gate. The order matters: when the lock is released, only runs
 * wait for it.
 */
void gq_gate_give(struct gq_gate *g)
{
    pthread_rwlock_unlock(&g->lock);
    pthread_mutex_unlock(&g->alone);
}
