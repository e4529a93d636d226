/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads monotonic time (CLOCK_MONOTONIC), converts units of time, and waits
 * until a given time.
 */
#ifndef SUPPORT_CLOCK_H
#define SUPPORT_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define NS_PER_S  1000000000ull
#define NS_PER_MS 1000000ull
#define MS_PER_S  1000ull

/* These functions return the current time in the unit that their name ends with. */
static inline uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static inline uint64_t now_ms(void)
{
    return now_ns() / NS_PER_MS;
}

static inline int64_t now_s(void)
{
    return (int64_t)(now_ns() / NS_PER_S);
}

static inline double now_seconds(void)
{
    return (double)now_ns() / NS_PER_S;
}

/* Returns the time `ms` milliseconds from now in ns of now_ns(). */
static inline uint64_t deadline_after_ms(uint64_t ms)
{
    return now_ns() + ms * NS_PER_MS;
}

/* Converts ns of now_ns(). */
static inline struct timespec timespec_of_ns(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

/*
 * Calls pthread_cond_timedwait() with a deadline in now_ns() time. Returns 0 or
 * ETIMEDOUT. The condition variable needs no clock attribute.
 */
static inline int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    const struct timespec ts = timespec_of_ns(until_ns);

    return pthread_cond_clockwait(cond, lock, CLOCK_MONOTONIC, &ts);
}

#endif
