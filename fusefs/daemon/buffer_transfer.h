/*
 * READ and WRITE: bytes between a file and a registered buffer.
 */
#ifndef FUSEFS_DAEMON_BUFFER_TRANSFER_H
#define FUSEFS_DAEMON_BUFFER_TRANSFER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/gpunvme_ioctl.h"
#include "fusefs/daemon/buffers.h"
#include "fusefs/daemon/daemon.h"

struct transfer {
    struct daemon *daemon;
    struct ffs_inode *inode; /* the open file's: it stays open while its ioctl runs */
    bool write;
    uid_t uid;
    struct gpunvme_ioc_rw rw; /* in and out */
    /*
     * Set by an interrupt, by the end of the buffer, or by the end of the session; read by the
     * executor. A flag alone: it orders nothing.
     */
    _Atomic uint32_t cancel;
    /* out */
    int error;           /* 0 or -errno: what the ioctl returns */
    bool needs_recovery; /* of the executor's queues, once the ioctl is answered */

    /* The rest belongs to transfer_run(). */
    struct buffer_use use;
    int64_t deadline; /* CLOCK_MONOTONIC ms; 0: none of the caller's */
    uint64_t done;    /* bytes moved, from the start of the range */
    bool no_fallback, gpu;
};

/* Moves the bytes and makes them visible. Everything it waits for is bounded. */
void transfer_run(struct transfer *t);
/* After the reply: returns queues to service that no transfer could recover. */
void transfer_recover(struct daemon *d);

/*
 * The parts of it, for batches: reads that share buffer, deadline and cancel flag (readv.c).
 *
 * begin: clears what is out, takes hold of the buffer and sets t->gpu; on 0 end has to follow.
 * read: the range of rw, as READ does it; t->done is what it moved. The path is added to rw.path.
 * fall_back: after the GPU path failed with err: 0 when host memory may do better, and then
 * t->gpu is false.
 */
int transfer_begin(struct transfer *t);
void transfer_end(struct transfer *t);
int transfer_read(struct transfer *t);
int transfer_fall_back(struct transfer *t, int err);
bool transfer_is_cancelled(const struct transfer *t);

/* The part that goes around the ordinary path (transfer_gpu.c), used by transfer_run(). */

/* One piece of at most len bytes at t->done; what it moved is added to t->done. */
int transfer_gpu_read(struct transfer *t, uint64_t len, uint64_t *moved);
/* The same; offset and len are whole blocks. */
int transfer_gpu_write(struct transfer *t, uint64_t len, uint64_t *moved);
/* Milliseconds until the caller's deadline, at least 1; 0: no deadline. -ETIMEDOUT: it passed. */
int transfer_time_left(const struct transfer *t, unsigned *ms);
/*
 * Ends the commands that a transfer left under way, before it lets go of the blocks: late ones
 * would read or write what belongs to someone else by then. False: they cannot be ended.
 */
bool transfer_settle(struct daemon *d);

#endif
