/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lets other threads pause and wake the controller threads, and wait for their
 * copies.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim/sim_internal.h"

void sim_pause(struct sim *s)
{
    pthread_mutex_lock(&s->gate_lock);
    atomic_store(&s->gate, true);
    for (unsigned i = 0; i < s->n_threads; i++)
        pthread_mutex_lock(&s->threads[i].lock);
}

void sim_resume(struct sim *s)
{
    assert(atomic_load(&s->gate));
    for (unsigned i = s->n_threads; i-- > 0;)
        pthread_mutex_unlock(&s->threads[i].lock);
    atomic_store(&s->gate, false);
    pthread_mutex_unlock(&s->gate_lock);
}

/*
 * Sleeps, because unlocking a mutex does not guarantee that the threads waiting
 * for it run.
 */
void sim_nap(void)
{
    struct timespec ts = {.tv_nsec = 100 * 1000};

    nanosleep(&ts, NULL);
}

void sim_pass_gate(struct sim *s)
{
    if (atomic_load_explicit(&s->gate, memory_order_relaxed)) {
        pthread_mutex_lock(&s->gate_lock);
        pthread_mutex_unlock(&s->gate_lock);
    }
}

void sim_wake(struct sim_thread *th)
{
    if (atomic_load(&th->parked) && atomic_exchange(&th->parked, 0))
        syscall(SYS_futex, &th->parked, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void sim_wake_all(struct sim *s)
{
    for (unsigned i = 0; i < s->n_threads; i++)
        sim_wake(&s->threads[i]);
}

bool sim_drained(struct sim *s)
{
    for (unsigned i = 0; i < s->n_threads; i++)
        if (atomic_load(&s->threads[i].moving))
            return false;
    return true;
}

int sim_drain(struct sim *s)
{
    uint64_t deadline = now_ns() + SIM_DRAIN_MS * 1000000ull;

    while (!sim_drained(s)) {
        if (now_ns() > deadline)
            return -ETIMEDOUT;
        sim_wake_all(s);
        sched_yield();
    }
    return 0;
}
