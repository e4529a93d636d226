/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Chooses the thread of a transfer: the session thread that received it, or a
 * worker, whose wake-up takes longer than many transfers. Only few session
 * threads run transfers, since they must also serve the mount's requests,
 * including those that a transfer waits for. session_loop_join() cancels
 * transfers in session threads.
 */
#include "fusefs/daemon/ioctl/ioctl.h"
#include "fusefs/daemon/state/open_file.h"

/*
 * Limits of transfers in session threads. A short one may start while fewer
 * than MOST_SHORT run, which is the executor's own concurrency and half of the
 * initial session threads. A long one may start only if no other runs. Further
 * long ones run in workers, which share them between users and do not count
 * this one.
 */
#define MOST_SHORT 8u
#define MOST_LONG  1u

/*
 * A file with writers may need a flush of dirty pages, which needs session
 * threads.
 */
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
