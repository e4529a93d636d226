/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Worker threads for requests that block. Session threads must remain free:
 * they serve the READ and WRITE requests that a page cache invalidation waits
 * for (WORK_CACHE), and the interrupts that cancel transfers.
 *
 * Transfers and buffers have separate threads, so that registration and removal
 * of a buffer, which wait for the executor, do not queue behind transfers: a
 * removal cancels them. One user's jobs on buffers take at most half of the
 * buffer threads, since pinning much memory takes long.
 */
#ifndef FUSEFS_DAEMON_WORKERS_H
#define FUSEFS_DAEMON_WORKERS_H

#include <sys/types.h>

struct workers;

enum work { WORK_TRANSFER, WORK_BUFFER, WORK_CACHE, WORK_KINDS };

/* First member of the caller's struct. */
struct job {
    void (*run)(struct job *job); /* replies and frees the job */
    uid_t uid;                    /* the caller; used with WORK_BUFFER */
    struct job *next;
};

/* transfers: number of threads for WORK_TRANSFER. 0 or -errno. */
int workers_open(unsigned transfers, struct workers **out);
/*
 * Jobs begin in the order of their addition, except those of a user at the
 * limit of threads.
 */
void workers_add(struct workers *w, enum work kind, struct job *job);
/* Runs the queued jobs to their end, then joins the threads. */
void workers_close(struct workers *w);

#endif
