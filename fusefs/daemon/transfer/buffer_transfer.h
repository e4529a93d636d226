/* SPDX-License-Identifier: BSD-2-Clause */
/* READ and WRITE move bytes between a file and a registered buffer. */
#ifndef FUSEFS_DAEMON_TRANSFER_BUFFER_TRANSFER_H
#define FUSEFS_DAEMON_TRANSFER_BUFFER_TRANSFER_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fusefs/daemon/state/buffers.h"
#include "fusefs/daemon/state/daemon.h"
#include "gpunvme/gpunvme_ioctl.h"
#include "support/clock.h"

struct transfer {
    struct daemon *daemon;
    struct ffs_inode *inode; /* of the open file, which outlives its ioctl */
    struct op op;            /* activity is set by the caller; the rest by the transfer */
    bool write;
    uid_t uid;
    pid_t pid;                /* caller, 0 if unknown */
    int flags;                /* of the open file */
    struct gpunvme_ioc_rw rw; /* in and out */
    /*
     * Set by an interrupt, by removal of the buffer, or at the end of the
     * session; polled by the executor. Relaxed accesses: the flag orders no
     * memory.
     */
    _Atomic uint32_t cancel;
    /* Results. */
    int error;           /* 0 or -errno: the result of the ioctl */
    bool needs_recovery; /* recover the executor's queues after the reply */

    /* Private to transfer_run(). */
    struct buffer_use use;
    int64_t deadline; /* CLOCK_MONOTONIC ms; 0 without a deadline */
    uint64_t done;    /* bytes moved, from the start of the range */
    bool no_fallback;
    bool gpu;      /* the engine moves the bytes, not this process */
    uint32_t path; /* GPUNVME_PATH_* of the engine */
    /* Runs of the executor. */
    uint64_t run_ns;    /* start of the last run */
    uint16_t status;    /* NVMe status of the last run */
    unsigned failures;  /* consecutive repeated runs without a byte moved */
    uint64_t failed_ns; /* total time of the repeated runs */
    bool stuck;         /* a run has commands that cannot be ended */
};

/*
 * Moves the bytes and makes them visible to the page cache. Every wait is
 * bounded.
 */
void transfer_run(struct transfer *t);
/*
 * Called after the reply. Returns queues to service that the transfer could not
 * recover.
 */
void transfer_recover(struct daemon *d);

/*
 * These functions serve batches (buffer_readv.c), whose reads share a buffer, a
 * deadline and a cancel flag.
 *
 * transfer_op_begin() and transfer_op_end() enclose the calls of the functions
 * below. They begin the record of the operation, and end it with t->error and
 * the bytes moved. transfer_begin() clears the results, begins the use of the
 * buffer and sets t->gpu. If it returns 0, transfer_end() must follow, which
 * ends the use of the buffer. transfer_read_range() moves the range of rw as
 * READ does, counts the bytes in t->done, and adds the path to rw.path.
 * transfer_fall_back() is called after the GPU path failed with err. The
 * function returns 0 if the transfer continues. The transfer then uses host
 * memory, with t->gpu false. If host memory must not be used, the transfer uses
 * the executor again, with t->gpu true.
 */
void transfer_op_begin(struct transfer *t, unsigned kind);
void transfer_op_end(struct transfer *t, uint64_t bytes);
int transfer_begin(struct transfer *t);
void transfer_end(struct transfer *t);
int transfer_read_range(struct transfer *t);
int transfer_fall_back(struct transfer *t, int err);

/* Counts bytes of the bounce path, and an access to the file (transfer_host.c). */
void transfer_count_bounced(struct transfer *t, uint64_t bytes);
/* Counts bytes that the engine has moved. */
static inline void transfer_count(struct transfer *t, uint64_t bytes)
{
    if (t->path == GPUNVME_PATH_BOUNCE)
        transfer_count_bounced(t, bytes);
}
/* Returns the name of the engine's path for messages. */
const char *transfer_engine_name(const struct transfer *t);

/* Runs of the executor that failed. */

void transfer_begin_run(struct transfer *t);
/*
 * Adds the results of a call of the engine, which returned err: commands,
 * status, staging, need of recovery. Ends the commands that the call left in
 * flight, before the blocks are unpinned, since late commands would access
 * blocks of another file. Returns false if they cannot be ended.
 */
bool transfer_take_result(struct transfer *t, int err, const struct gq_result *result);

/* Limits, and host memory (transfer_host.c). */

static inline bool transfer_is_cancelled(const struct transfer *t)
{
    return atomic_load_explicit(&t->cancel, memory_order_relaxed) != 0;
}
/*
 * Stores the milliseconds until the caller's deadline, at least 1, or 0 without
 * a deadline. Returns -ETIMEDOUT if it has passed.
 */
static inline int transfer_time_left(const struct transfer *t, unsigned *ms)
{
    *ms = 0;
    if (!t->deadline)
        return 0;
    int64_t left = t->deadline - (int64_t)now_ms();
    if (left <= 0)
        return -ETIMEDOUT;
    *ms = (unsigned)left;
    return 0;
}
/*
 * Moves at most MAX_IO bytes through host memory, between the file from byte
 * `offset` on and the buffer from byte `at` on. *moved is short at the end of
 * the file or of the free space.
 */
int transfer_bounce(struct transfer *t, uint64_t offset, uint64_t at, uint64_t len,
                    uint64_t *moved);

#endif
