/* SPDX-License-Identifier: BSD-2-Clause */
/* READ and WRITE: bytes between a file and a registered buffer. */
#ifndef FUSEFS_DAEMON_TRANSFER_BUFFER_TRANSFER_H
#define FUSEFS_DAEMON_TRANSFER_BUFFER_TRANSFER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fusefs/daemon/state/buffers.h"
#include "fusefs/daemon/state/daemon.h"
#include "gpunvme/gpunvme_ioctl.h"

struct transfer {
    struct daemon *daemon;
    struct ffs_inode *inode;   /* of the open file, which outlives its ioctl */
    struct activity *activity; /* the open file's; NULL: none is counted */
    bool write;
    uid_t uid;
    pid_t pid;                /* of the caller; 0: unknown */
    int flags;                /* of the open file */
    struct gpunvme_ioc_rw rw; /* in and out */
    /*
     * Set by an interrupt, by removal of the buffer, or at the end of the
     * session; polled by the executor. Relaxed accesses: the flag orders no
     * memory.
     */
    _Atomic uint32_t cancel;
    /* out */
    int error;           /* 0 or -errno: the ioctl's result */
    bool needs_recovery; /* the executor's queues, after the reply */

    /* Private to transfer_run(). */
    struct buffer_use use;
    int64_t deadline; /* CLOCK_MONOTONIC ms; 0: the caller gave none */
    uint64_t done;    /* bytes moved, from the start of the range */
    uint64_t bounced; /* bytes moved through host memory */
    bool no_fallback, gpu;
};

/*
 * Moves the bytes and makes them visible to the page cache. Every wait is
 * bounded.
 */
void transfer_run(struct transfer *t);
/*
 * Called after the reply: returns queues to service that the transfer could not
 * recover.
 */
void transfer_recover(struct daemon *d);

/*
 * Parts for batches (buffer_readv.c), whose reads share buffer, deadline and
 * cancel flag.
 *
 * begin: clears the out fields, begins the use of the buffer and sets t->gpu.
 * After 0, end must follow. read: moves the range of rw, as READ; t->done
 * counts the bytes, and rw.path gains the path. end: adds the bytes to the open
 * file's. fall_back: called after the GPU
 * path failed with err. 0: host memory may succeed, and t->gpu is false.
 */
int transfer_begin(struct transfer *t);
void transfer_end(struct transfer *t, uint64_t bytes);
int transfer_read(struct transfer *t);
int transfer_fall_back(struct transfer *t, int err);

/* Limits, and host memory (buffer_transfer_bounce.c). */

bool transfer_is_cancelled(const struct transfer *t);
/*
 * Milliseconds until the caller's deadline, at least 1; 0: no deadline.
 * -ETIMEDOUT: it has passed.
 */
int transfer_time_left(const struct transfer *t, unsigned *ms);
/*
 * Moves at most MAX_IO bytes between the file, from byte `offset` on, and the buffer, from byte
 * `at` on, through host memory. *moved is short at the end of the file or of the free space.
 */
int transfer_bounce(struct transfer *t, uint64_t offset, uint64_t at, uint64_t len,
                    uint64_t *moved);

/* The GPU path (buffer_transfer_gpu.c), used by transfer_run(). */

/* Moves at most len bytes at t->done. The caller adds *moved to t->done. */
int transfer_gpu_read(struct transfer *t, uint64_t len, uint64_t *moved);
/* The same for a write; offset and len are multiples of the block size. */
int transfer_gpu_write(struct transfer *t, uint64_t len, uint64_t *moved);
/*
 * Adds what a call of the engine, which returned err, reports: commands, status, staging, the need
 * of recovery. Ends the commands that it left in flight, before the blocks are unpinned: late
 * commands would read or write blocks of another file. False: they cannot be ended.
 */
bool transfer_take_result(struct transfer *t, int err, const struct gq_result *result);

#endif
