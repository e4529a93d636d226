/* SPDX-License-Identifier: BSD-2-Clause */
/* Counts the usable processors. */
#ifndef SUPPORT_PROCESSORS_H
#define SUPPORT_PROCESSORS_H

#include <sched.h>
#include <unistd.h>

/*
 * Returns the number of processors on which the calling thread may run, at
 * least 1. It is smaller than the machine's under taskset(1) or in a container.
 */
static inline unsigned processors_allowed(void)
{
    cpu_set_t set;
    long all;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return (unsigned)CPU_COUNT(&set);
    all = sysconf(_SC_NPROCESSORS_ONLN); /* the set is too small for this machine */
    return all > 0 ? (unsigned)all : 1;
}

#endif
