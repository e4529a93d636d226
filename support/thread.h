/* SPDX-License-Identifier: BSD-2-Clause */
/* Starts threads of libraries, and joins threads. */
#ifndef SUPPORT_THREAD_H
#define SUPPORT_THREAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "support/wait.h"

/*
 * Creates a thread like pthread_create(). All signals are blocked in it, because they are for the
 * application's threads.
 */
static inline int thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}

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
