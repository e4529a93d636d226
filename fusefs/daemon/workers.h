/*
 * Threads that run what takes long. The session's own threads must stay free: they serve the READ
 * and WRITE requests that a transfer's page cache invalidation waits for, and the interrupts that
 * cancel transfers.
 *
 * Transfers have threads of their own, so that the registration and the end of a buffer, which
 * wait for the executor, do not stand in line behind them: an end is what cancels them.
 */
#ifndef FUSEFS_DAEMON_WORKERS_H
#define FUSEFS_DAEMON_WORKERS_H

struct workers;

enum work { WORK_TRANSFER, WORK_BUFFER };

/* Begins a struct of the caller's. */
struct job {
    void (*run)(struct job *job); /* answers the request and frees the job */
    struct job *next;
};

/* transfers: threads for them. */
int workers_open(unsigned transfers, struct workers **out);
void workers_add(struct workers *w, enum work kind, struct job *job);
/* Runs what is queued to its end, then ends the threads. */
void workers_close(struct workers *w);

#endif
