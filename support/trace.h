/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Traces the process in a ring in memory, which keeps the most recent records.
 * While the trace is off, an event costs a load and a branch.
 */
#ifndef SUPPORT_TRACE_H
#define SUPPORT_TRACE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Names the kinds of records. The comments list the values of id, a, b, len and
 * result.
 */
enum trace_kind {
    TRACE_REQUEST = 1,   /* of the kernel: opcode, unique, node id, bytes; 0 */
    TRACE_REQUEST_DONE,  /* the thread of a request is free: opcode, unique, node id, 0; 0 */
    TRACE_OP,            /* a transfer began: GPUNVME_OP_*, inode, offset, bytes; 0 */
    TRACE_OP_DONE,       /* GPUNVME_OP_*, inode, NVMe commands, bytes moved; 0 or -errno */
    TRACE_SUBMIT,        /* NVMe: CID, first LBA, QID, opcode; 0 */
    TRACE_COMPLETE,      /* NVMe: CID, first LBA, QID, opcode; status field */
    TRACE_COMMIT,        /* of the journal, began: 0, transaction, 0, blocks; 0 */
    TRACE_COMMIT_DONE,   /* 0, transaction, 0, blocks; 0 or -errno */
    TRACE_RECOVERY,      /* began: enum trace_recovery, QID (of a controller: epoch), 0, 0; 0 */
    TRACE_RECOVERY_DONE, /* the same; 0 or -errno */
};

enum trace_recovery {
    TRACE_RECOVER_QUEUE = 1, /* of the ordinary path */
    TRACE_RECOVER_EXECUTOR,
    TRACE_RECOVER_CONTROLLER,
};

/* Also struct gpunvme_trace_record of the ioctl ABI. */
struct trace_record {
    uint64_t ns; /* CLOCK_MONOTONIC */
    uint32_t kind;
    uint32_t id;
    uint64_t a, b;
    uint32_t len;
    int32_t result;
};
static_assert(sizeof(struct trace_record) == 40, "a record is five words");

struct trace_ring;
/* The ring of the process, or NULL. It is set before threads exist and remains until the end. */
extern struct trace_ring *trace_ring;

/* Allocates the ring, once. Returns 0 or -ENOMEM. */
int trace_open(void);
/* Adds a record, from any thread. Only trace() calls it. */
void trace_add(enum trace_kind kind, uint32_t id, uint64_t a, uint64_t b, uint64_t len, int result);
/*
 * Copies up to max records, starting with number *next (0 means the oldest),
 * and sets *next to the number after the last one. Records that were
 * overwritten are skipped and added to *lost. Returns the number of records
 * copied.
 */
unsigned trace_read(uint64_t *next, struct trace_record *out, unsigned max, uint64_t *lost);
/*
 * Returns the number that the next record will have. The first record has
 * number 1.
 */
uint64_t trace_end(void);

/* A len above UINT32_MAX is stored as UINT32_MAX. */
static inline void trace(enum trace_kind kind, uint32_t id, uint64_t a, uint64_t b, uint64_t len,
                         int result)
{
    if (__builtin_expect(trace_ring != NULL, 0))
        trace_add(kind, id, a, b, len, result);
}

#endif
