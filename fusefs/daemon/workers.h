/*
 * Threads that run transfers. The session's own threads must stay free: they serve the READ and
 * WRITE requests that a transfer's page cache invalidation waits for, and the interrupts that
 * cancel transfers.
 */
#ifndef FUSEFS_DAEMON_WORKERS_H
#define FUSEFS_DAEMON_WORKERS_H

#include "fusefs/daemon/transfer.h"

struct workers;

struct job {
    struct transfer transfer;
    void (*run)(struct job *job); /* answers the request and frees the job */
    void *request;                /* fuse_req_t */
    struct job *next;
};

int workers_open(unsigned threads, struct workers **out);
void workers_add(struct workers *w, struct job *job);
/* Runs what is queued to its end, then ends the threads. */
void workers_close(struct workers *w);

#endif
