/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares worker threads for requests that block. Session threads must remain
 * free: they serve the READ and WRITE requests that a page cache invalidation
 * waits for (WORK_CACHE), and the interrupts that cancel transfers.
 *
 * Transfers and buffers have separate threads, so that registration and removal
 * of a buffer, which wait for the executor, do not queue behind transfers: a
 * removal cancels them.
 *
 * WORK_SYNC is for requests that wait for a flush of the drive when the session
 * threads already serve as many of them as they may.
 *
 * All threads but those of WORK_CACHE are shared between users. The next job is
 * that of the user with the fewest running jobs; among equals, the oldest job.
 * A user occupies at most two thirds of the transfer threads and half of the
 * others. All users except root together leave one thread of each kind free.
 * Transfers in session threads (ioctl_run()) are not counted.
 */
#ifndef FUSEFS_DAEMON_BASE_WORKERS_H
#define FUSEFS_DAEMON_BASE_WORKERS_H

#include <sys/queue.h>
#include <sys/types.h>

struct workers;

enum work { WORK_TRANSFER, WORK_BUFFER, WORK_SYNC, WORK_CACHE, WORK_KINDS };

/* First member of the caller's struct. */
struct job {
    void (*run)(struct job *job); /* replies and frees the job */
    uid_t uid;                    /* caller; unused with WORK_CACHE */
    TAILQ_ENTRY(job) entry;
};

/*
 * Starts the first thread of each kind. A job that finds no idle thread starts
 * another one, up to a limit, which for WORK_TRANSFER is `transfers` (at least
 * 2). Returns 0 or -errno.
 */
int workers_open(unsigned transfers, struct workers **out);
void workers_add(struct workers *w, enum work kind, struct job *job);
/* Completes the queued jobs, then joins the threads. */
void workers_close(struct workers *w);

#endif
