/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements pthread_join() with a deadline. */
#include "fusefs/daemon/base/join.h"

#include <errno.h>
#include <time.h>

#include "support/clock.h"

#define NAP_NS 1000000

/*
 * The thread is polled, because ThreadSanitizer does not model
 * pthread_clockjoin_np().
 */
int join_until(pthread_t thread, uint64_t until_ns)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    int err = pthread_tryjoin_np(thread, NULL);

    while (err == EBUSY && now_ns() < until_ns) {
        nanosleep(&nap, NULL);
        err = pthread_tryjoin_np(thread, NULL);
    }
    return err == EBUSY ? -ETIMEDOUT : -err;
}
