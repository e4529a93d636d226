/* SPDX-License-Identifier: BSD-2-Clause */
/* Waits for another thread or a device for a bounded time. */
#ifndef SUPPORT_WAIT_H
#define SUPPORT_WAIT_H

#include <sched.h>
#include <stdbool.h>
#include <time.h>

#include "support/clock.h"

/* Sleeps for the whole time; signals do not shorten it. */
static inline void wait_ms(unsigned ms)
{
    uint64_t until = deadline_after_ms(ms), now;

    while ((now = now_ns()) < until) {
        const struct timespec left = timespec_of_ns(until - now);
        nanosleep(&left, NULL);
    }
}

/*
 * A wait between polls has stages. A fast device answers within the first
 * polls, which do not pause. Then the thread yields, because with few cores a
 * controller in software may need its core. Then the thread sleeps, longer each
 * time, because a reset or a lost command takes seconds. The sleeps grow so
 * slowly that each one remains a small part of the time that the wait has
 * already taken.
 */
#define POLL_WAIT_SPINS    256u
#define POLL_WAIT_YIELDS   128u
#define POLL_WAIT_SLEEP_NS 50000
#define POLL_WAIT_STEP_NS  3000 /* by which a sleep is longer than the previous one */
#define POLL_WAIT_MAX_NS   1000000

struct poll_wait {
    unsigned polls; /* consecutive polls without success */
};

/* Restarts the stages after a successful poll. */
static inline void poll_wait_reset(struct poll_wait *w)
{
    w->polls = 0;
}

/*
 * Waits once. Returns true after a sleep, when the caller should also make its
 * rarer checks.
 */
static inline bool poll_wait_once(struct poll_wait *w)
{
    const unsigned awake = POLL_WAIT_SPINS + POLL_WAIT_YIELDS;

    if (w->polls < awake) {
        if (w->polls++ >= POLL_WAIT_SPINS)
            sched_yield();
        return false;
    }
    struct timespec ts = {0, POLL_WAIT_SLEEP_NS + (long)(w->polls - awake) * POLL_WAIT_STEP_NS};
    if (ts.tv_nsec < POLL_WAIT_MAX_NS)
        w->polls++;
    nanosleep(&ts, NULL);
    return true;
}

#endif
