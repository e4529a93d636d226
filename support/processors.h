/* SPDX-License-Identifier: BSD-2-Clause */
/* How many processors there are to use. */
#ifndef SUPPORT_PROCESSORS_H
#define SUPPORT_PROCESSORS_H

#include <sched.h>
#include <unistd.h>

/*
 * The processors that the calling thread may run on: with taskset(1), or in a container, fewer than
 * the machine has. At least 1.
 */
static inline unsigned processors_allowed(void)
{
    cpu_set_t set;
    long all;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return (unsigned)CPU_COUNT(&set);
    all = sysconf(_SC_NPROCESSORS_ONLN); /* more than the set has room for */
    return all > 0 ? (unsigned)all : 1;
}

#endif
