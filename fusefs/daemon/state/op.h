/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the record of one operation that moves bytes. The record begins
 * where the request arrives, and ends once. STATS, Prometheus, `gpunvme top`
 * and the trace take their data about operations from these records.
 */
#ifndef FUSEFS_DAEMON_STATE_OP_H
#define FUSEFS_DAEMON_STATE_OP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "gpunvme/gpunvme_ioctl.h"

struct activity;

/*
 * Holds sums over all operations. Accesses are relaxed, since each counter is
 * independent and orders no other memory.
 */
struct op_totals {
    _Atomic uint64_t requests; /* requests of the kernel */
    struct {
        _Atomic uint64_t ns, buckets[GPUNVME_LATENCY_BUCKETS];
    } latency[3][3]; /* [GPUNVME_OP_*][GPUNVME_PATH_* - 1] */
    _Atomic uint64_t fallbacks[8];
    _Atomic uint64_t bounce_transfers;
    _Atomic uint64_t bounce_bytes[2]; /* read, written */
};

/*
 * Names kinds in addition to GPUNVME_OP_*: requests of the kernel, which have
 * no latency in STATS.
 */
#define OP_KERNEL_READ  3u
#define OP_KERNEL_WRITE 4u

struct op {
    struct op_totals *totals;
    struct activity *activity; /* that of the open file, or NULL */
    unsigned kind;             /* GPUNVME_OP_* or OP_KERNEL_* */
    uint64_t ino, offset, len;
    uint64_t begun_ns;
    /* These are set before the end. */
    uint64_t bytes;    /* bytes moved */
    uint64_t bounced;  /* part of them that moved through host memory */
    uint64_t commands; /* NVMe commands of the executor */
    uint32_t path;     /* GPUNVME_PATH_*; 0 if no byte was moved */
    int error;         /* 0 or -errno */
};

void op_begin(struct op *op);
void op_end(struct op *op);
/* Returns the latency bucket of an operation: the least i with ns < 2^(i + 1) us, or the last. */
unsigned op_bucket(uint64_t ns);
/*
 * Counts a transfer that left the GPU path because of err. 0 means that its
 * buffer never had that path.
 */
void op_fell_back(struct op *op, int err);
/* Sets the latencies, fallbacks, requests and bounce counters of out. */
void op_totals_fill(struct op_totals *totals, struct gpunvme_ioc_stats *out);

/* Counts the bytes that each open file description has moved. */

struct daemon;
struct open_file;

/* Number of closed descriptions that are still reported. */
#define ACTIVITY_CLOSED 64u

enum activity_path { ACTIVITY_GPU, ACTIVITY_BOUNCE, ACTIVITY_KERNEL, ACTIVITY_PATHS };

/*
 * Holds the counters of an open file. Accesses are relaxed, since each counter
 * is independent and orders no other memory.
 */
struct activity {
    uint64_t id;             /* larger than those of earlier descriptions */
    _Atomic uint64_t caller; /* of the last request: uid << 32 | pid */
    _Atomic uint64_t calls;
    _Atomic uint64_t bytes[ACTIVITY_PATHS][2]; /* read, written */
};

/* Protected by daemon.files_lock. */
struct activity_log {
    uint64_t last_id;
    struct gpunvme_open_file closed[ACTIVITY_CLOSED]; /* id is 0 in a free entry */
    unsigned next;                                    /* entry to overwrite next */
};

/* Called at RELEASE with the lock held. */
void activity_end(struct activity_log *log, const struct open_file *file);

/*
 * Sets the caller. pid is 0 for write-back by the kernel, which leaves the
 * caller unchanged.
 */
void activity_caller(struct activity *a, uid_t uid, pid_t pid);

/*
 * Returns true if uid may see the activity of a process of owner. Root sees
 * everything, and a user sees its own processes.
 */
bool activity_visible(uid_t uid, uint32_t owner);
/* Reports the files that uid may see. */
int activity_files(struct daemon *d, uid_t uid, struct gpunvme_ioc_open_files *arg);

/*
 * Holds counters of the work that libgpunvme does without the daemon. Programs
 * share these counters with the daemon.
 */

/*
 * Limits of descriptions that share counters, in total and per user. Each holds
 * a descriptor.
 */
#define SHARED_CALLS_MAX     1024u
#define SHARED_CALLS_OF_USER 512u

struct shared_calls;

/* Protected by daemon.files_lock. */
struct shared_calls_log {
    LIST_HEAD(, shared_calls) all;
    struct gpunvme_calls ended; /* sum over closed descriptions */
};

/* Implements SHARE_CALLS. The memfd is closed with the file, or on an error. */
int shared_calls_add(struct daemon *d, struct open_file *file, uid_t uid, int fd);
/*
 * Called at RELEASE with the lock held. Describes the file, which shares
 * counters, for the last time.
 */
void shared_calls_end(struct shared_calls_log *log, struct open_file *file);
/* Fills in the counters that the file shares. The caller holds the lock. */
void shared_calls_describe(struct shared_calls *c, struct gpunvme_open_file *out);
/* Stores the sum since the mount. */
void shared_calls_sum(struct daemon *d, struct gpunvme_calls *out);

#endif
