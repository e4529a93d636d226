/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The thread of a transfer: the session thread that received it, or a worker, which takes longer to
 * wake up than many transfers take. Few session threads run transfers, because the mount's requests
 * need session threads, among them those that a transfer waits for. session_loop_join() cancels
 * transfers of session threads.
 */
#include "fusefs/daemon/ioctl/ioctl.h"
#include "fusefs/daemon/state/open_file.h"

/*
 * Transfers of session threads when a short one begins there: the executor's own concurrency, and
 * half of the first session threads. A long one begins where no other runs: all further long ones
 * are shared among users by the workers, whose limits do not count this one.
 */
#define MOST_SHORT 8u
#define MOST_LONG  1u

/* A flush of dirty pages needs session threads. */
static bool begin_here(struct daemon *d, struct ffs_inode *inode, bool is_short)
{
    if (file_has_writer(d, inode))
        return false;
    /* Relaxed: the counter limits threads and orders no memory. */
    if (atomic_fetch_add_explicit(&d->inline_jobs, 1, memory_order_relaxed) <
        (is_short ? MOST_SHORT : MOST_LONG))
        return true;
    atomic_fetch_sub_explicit(&d->inline_jobs, 1, memory_order_relaxed);
    return false;
}

void ioctl_run(struct daemon *d, struct ffs_inode *inode, struct job *job, bool is_short)
{
    if (!begin_here(d, inode, is_short)) {
        workers_add(d->workers, WORK_TRANSFER, job);
        return;
    }
    job->run(job);
    atomic_fetch_sub_explicit(&d->inline_jobs, 1, memory_order_relaxed);
}
