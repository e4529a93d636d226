/* SPDX-License-Identifier: BSD-2-Clause */
/* Starts threads of libraries. */
#ifndef SUPPORT_THREAD_H
#define SUPPORT_THREAD_H

#include <pthread.h>
#include <signal.h>

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

#endif
