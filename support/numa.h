/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Keeps a thread on a NUMA node while it allocates memory and starts threads
 * that belong there. `root` is the folder that contains sys/; "" means the
 * running system.
 */
#ifndef SUPPORT_NUMA_H
#define SUPPORT_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/*
 * Stores the processors of a node that the calling thread may use, and returns
 * their number. It is 0 for a node that does not exist or is not reported (-1).
 */
int numa_processors(const char *root, int node, cpu_set_t *out);

/* This struct has the processors that the thread had before numa_enter(). */
struct numa_stay {
    bool entered, prefers;
    cpu_set_t before;
};
/*
 * Binds the calling thread to the processors of a node, and makes it prefer the
 * memory of that node. Threads that it starts inherit both. A policy that the
 * process was started with (numactl) stays. Does nothing if the node has fewer
 * than `least` processors that the thread may use.
 */
void numa_enter(const char *root, int node, int least, struct numa_stay *stay);
/* Restores the processors and the memory policy of the calling thread. */
void numa_leave(const struct numa_stay *stay);

__END_DECLS

#endif
