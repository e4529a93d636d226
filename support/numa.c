/* SPDX-License-Identifier: BSD-2-Clause */
/* Binds threads and their memory to NUMA nodes by system calls, without libnuma. */
#include "support/numa.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MOST 1024
#define WORD_BITS  (8 * (int)sizeof(unsigned long))

/* Adds the processors of a list such as "0-3,8" that are in `allowed`. */
static void numa_add(const char *list, const cpu_set_t *allowed, cpu_set_t *out)
{
    char *at;

    for (const char *c = list; *c; c = *at == ',' ? at + 1 : at) {
        long first = strtol(c, &at, 10), last = first;
        if (at == c)
            return;
        if (*at == '-')
            last = strtol(at + 1, &at, 10);
        for (long cpu = first; cpu >= 0 && cpu <= last && cpu < CPU_SETSIZE; cpu++) {
            if (CPU_ISSET(cpu, allowed))
                CPU_SET(cpu, out);
        }
        if (*at != ',')
            return;
    }
}

int numa_processors(const char *root, int node, cpu_set_t *out)
{
    char path[PATH_MAX], list[4096];
    cpu_set_t allowed;

    CPU_ZERO(out);
    snprintf(path, sizeof(path), "%s/sys/devices/system/node/node%d/cpulist", root, node);
    FILE *f = node < 0 ? NULL : fopen(path, "re");
    if (!f)
        return 0;
    if (fgets(list, sizeof(list), f) && sched_getaffinity(0, sizeof(allowed), &allowed) == 0)
        numa_add(list, &allowed, out);
    fclose(f);
    return CPU_COUNT(out);
}

static bool numa_has_policy(void)
{
    int policy = MPOL_DEFAULT;

    return syscall(SYS_get_mempolicy, &policy, NULL, 0ul, NULL, 0ul) != 0 || policy != MPOL_DEFAULT;
}

static bool numa_prefer(int node)
{
    unsigned long mask[NODES_MOST / WORD_BITS] = {0};

    if (node >= NODES_MOST || numa_has_policy())
        return false;
    mask[node / WORD_BITS] = 1ul << node % WORD_BITS;
    return syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask, (unsigned long)NODES_MOST) == 0;
}

void numa_enter(const char *root, int node, int least, struct numa_stay *stay)
{
    cpu_set_t near;
    int n = numa_processors(root, node, &near);

    *stay = (struct numa_stay){.entered = false};
    if (n == 0 || n < least || sched_getaffinity(0, sizeof(stay->before), &stay->before) != 0)
        return;
    stay->entered = sched_setaffinity(0, sizeof(near), &near) == 0;
    stay->prefers = numa_prefer(node);
}

void numa_leave(const struct numa_stay *stay)
{
    if (stay->prefers)
        syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0ul);
    if (stay->entered)
        sched_setaffinity(0, sizeof(stay->before), &stay->before);
}
