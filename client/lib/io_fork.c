/* SPDX-License-Identifier: BSD-2-Clause */
/* The library in a child of fork(2). */
#include <errno.h>
#include <pthread.h>

#include "client/lib/handle.h"

static unsigned fork_count; /* changes only in a child that has one thread yet */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void fork_child(void)
{
    fork_count++;
}

static void fork_watch(void)
{
    pthread_atfork(io_cuda_lock_loads, io_cuda_unlock_loads, io_cuda_unlock_loads);
    pthread_atfork(NULL, NULL, fork_child);
}

unsigned handle_forks(void)
{
    pthread_once(&fork_once, fork_watch);
    return fork_count;
}

int handle_check_process(const struct gpunvme *g)
{
    if (g->forks == fork_count)
        return 0;
    return gpunvme_fail(-EPERM, "the handle belongs to the process that called fork(2): a child "
                                "opens files anew");
}
