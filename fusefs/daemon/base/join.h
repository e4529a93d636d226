/* SPDX-License-Identifier: BSD-2-Clause */
/* pthread_join() with a deadline. */
#ifndef FUSEFS_DAEMON_BASE_JOIN_H
#define FUSEFS_DAEMON_BASE_JOIN_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>

#include "support/clock.h"
#include "support/wait.h"

/*
 * Joins the thread until until_ns on the clock of now_ns() (CLOCK_MONOTONIC).
 * Returns 0, or -ETIMEDOUT if the thread was not joined. Polls, because
 * ThreadSanitizer does not model pthread_clockjoin_np().
 */
static inline int join_until(pthread_t thread, uint64_t until_ns)
{
    int err = pthread_tryjoin_np(thread, NULL);

    while (err == EBUSY && now_ns() < until_ns) {
        wait_ms(1);
        err = pthread_tryjoin_np(thread, NULL);
    }
    return err == EBUSY ? -ETIMEDOUT : -err;
}

#endif
