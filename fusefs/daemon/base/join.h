/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef FUSEFS_DAEMON_BASE_JOIN_H
#define FUSEFS_DAEMON_BASE_JOIN_H

#include "support/clock.h"
#include <pthread.h>
#include <stdint.h>

/*
 * Joins the thread until until_ns on the clock of now_ns() (CLOCK_MONOTONIC).
 * Returns 0, or -ETIMEDOUT if the thread was not joined.
 */
int join_until(pthread_t thread, uint64_t until_ns);

#endif
