/*
 * Threads that run what takes long. The session's own threads must stay free: they serve the READ
 * and WRITE requests that a transfer's page cache invalidation waits for, and the interrupts that
 * cancel transfers.
 *
 * Transfers have threads of their own, so that the registration and the end of a buffer, which
 * wait for the executor, do not stand in line behind them: an end is what cancels them. One user's
 * work on buffers takes half of its threads at most: pinning much memory takes long.
 */
#ifndef FUSEFS_DAEMON_WORKERS_H
#define FUSEFS_DAEMON_WORKERS_H

#include <sys/types.h>

struct workers;

enum work { WORK_TRANSFER, WORK_BUFFER };

/* Begins a struct of the caller's. */
struct job {
    void (*run)(struct job *job); /* answers the request and frees the job */
    uid_t uid;                    /* whose it is; of WORK_BUFFER */
    struct job *next;
};

/* transfers: threads for them. */
int workers_open(unsigned transfers, struct workers **out);
/* Jobs begin in the order they were added in, but for those of a user with threads enough. */
void workers_add(struct workers *w, enum work kind, struct job *job);
/* Runs what is queued to its end, then ends the threads. */
void workers_close(struct workers *w);

#endif
