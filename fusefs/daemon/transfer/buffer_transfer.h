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
    struct ffs_inode *inode; /* of the open file, which outlives its ioctl */
    struct op op;            /* activity is set by the caller; the rest by the transfer */
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
    bool no_fallback, gpu;
    /* Of runs of the executor. */
    uint64_t run_ns;    /* when the last one began */
    uint16_t status;    /* of the last one, NVMe */
    unsigned failures;  /* repeated, one after the other without a byte moved */
    uint64_t failed_ns; /* that repeated ones took, all together */
    bool stuck;         /* commands of one cannot be ended */
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
 * op_begin: begins the record of the operation, op_end ends it with t->error and the bytes moved.
 *
 * begin: clears the out fields, begins the use of the buffer and sets t->gpu. After 0, end must
 * follow, which ends the use. read: moves the range of rw, as READ; t->done counts the bytes, and
 * rw.path gains the path. fall_back: called after the GPU path failed with err. 0: it goes on,
 * through host memory, and t->gpu is false; or, where host memory may not be used, by the executor
 * again (transfer_repeat()), and t->gpu is still true.
 */
void transfer_op_begin(struct transfer *t, unsigned kind);
void transfer_op_end(struct transfer *t, uint64_t bytes);
int transfer_begin(struct transfer *t);
void transfer_end(struct transfer *t);
int transfer_read(struct transfer *t);
int transfer_fall_back(struct transfer *t, int err);

/* Runs of the executor that failed (transfer_repeat.c). */

void transfer_begin_run(struct transfer *t);
/*
 * True: the run that ended with err may be made again, and none of its commands is under way: the
 * queue of one that was lost has been recovered. False: a repetition does not help, or the run has
 * been repeated as often, or the call's failed runs have taken as long, as they may.
 */
bool transfer_repeat(struct transfer *t, int err);

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
