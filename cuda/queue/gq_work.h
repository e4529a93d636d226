/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Describes the work of the driver of a queue pair (a kernel or a host thread)
 * and the results of that work. The structs are plain data in C11 and CUDA and
 * lie in memory of both sides.
 */
#ifndef CUDA_QUEUE_GQ_WORK_H
#define CUDA_QUEUE_GQ_WORK_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/nvme/nvme_spec.h"

#define GQ_MAX_QUEUES 128u

/* Describes one NVMe command by its LBAs and memory. */
struct gq_cmd {
    uint64_t slba;
    uint64_t prp1;
    uint64_t prp2;
    uint32_t nlb; /* LBAs - 1, as in CDW12 */
    uint32_t reserved;
};
static_assert(sizeof(struct gq_cmd) == 32, "a warp reads 32 commands as 1 KiB");

/* The result of a command is GQ_ENDED | status when its completion was seen. */
#define GQ_ENDED 0x80000000u

/* Names the bits of *gq_run.flags, which the host sets during a run. */
#define GQ_FLAG_CANCEL 1u /* post no more, drain, end */
#define GQ_FLAG_LEAVE  2u /* before a reset: end now, with commands in flight */

/*
 * Holds words in the executor's memory by which the queues of a run of reads
 * share its list. The first two words are zero between runs, because the last
 * group resets them.
 */
struct gq_dealing {
    uint32_t next; /* the first read that no group has taken */
    uint32_t left; /* number of groups that take no more */
    uint32_t runs; /* number of runs that have ended; not reset */
    uint32_t reserved;
};

/*
 * Parameters common to all queues of a run of reads (gq_reads.h), read-only
 * during the run.
 */
struct gq_run {
    uint32_t *results;               /* n_cmds entries for units that fail; may be NULL */
    const volatile uint32_t *flags;  /* GQ_FLAG_* from the executor; NULL: none */
    const volatile uint32_t *cancel; /* the caller's; not 0: like GQ_FLAG_CANCEL; may be NULL */
    /*
     * NULL, or words that equal leave_value when a lease has ended; this acts like
     * GQ_FLAG_LEAVE.
     */
    const volatile uint32_t *leave[2];
    /* Groups take portions. If it is NULL, reads are assigned in turn, without a prefetch warp. */
    struct gq_dealing *dealing;
    struct nvme_transport *kick; /* CPU only: notified after doorbell stores; may be NULL */
    uint64_t command_ns;         /* deadline of a command */
    uint64_t budget_ns;          /* limit of the whole list; 0: none */
    uint32_t n_cmds;             /* reads of the list, or units */
    uint32_t n_queues;
    uint16_t group_shift;   /* queues get the list in groups of at most 1 << group_shift */
    uint16_t least_portion; /* minimum reads of a portion with dealing; 0: GQ_LEAST_PORTION */
    uint32_t nsid;
    uint32_t opcode; /* NVME_IO_READ or NVME_IO_WRITE */
    uint32_t leave_value;
};

/*
 * The low gq_bits_of(depth - 1) bits of a CID are the index of its tracker. No
 * index has all of these bits set, so no CID is FFFFh. The upper bits change
 * with each command that has the index, so that a second completion of a
 * command does not end the next command. The upper bits have 1,024 values for
 * up to 64 entries, 64 values for 1,024 entries, and one value for more than
 * 32,768 entries.
 */
#define GQ_CID_MASK 0xffffu

/* A tracker describes a command in flight, and is found by the CID. */
struct gq_tracker {
    uint64_t sent_ns;
    uint32_t cmd;     /* index in the list, or >= GQ_TRACKER_FREE */
    uint32_t cid_tag; /* CID in 31:16; a tag of the poster in 15:0 */
};
#define GQ_TRACKER_CID(tracker) ((tracker)->cid_tag >> 16)
#define GQ_TRACKER_FREE         0xf0000000u

/* Describes a queue pair at its driver's addresses. */
struct gq_port {
    struct nvme_sqe *sq;
    struct nvme_cqe *cq;
    volatile uint32_t *sq_doorbell;
    volatile uint32_t *cq_doorbell;
    struct gq_tracker *trackers; /* depth - 1 elements */
    uint32_t *free_cids;         /* stack of depth - 1, as they will be posted */
    uint32_t depth;
    uint32_t reserved;
};

enum gq_outcome {
    GQ_OUT_RUNNING = 0,
    GQ_OUT_DONE = 1,
    GQ_OUT_CANCELLED = 2, /* nothing in flight, not all posted */
    GQ_OUT_TIMED_OUT = 3, /* commands may be in flight */
    GQ_OUT_BROKEN = 4,    /* the controller completed a command that was not in flight */
    GQ_OUT_LEFT = 5,      /* left by GQ_FLAG_LEAVE: commands may be in flight */
};

/*
 * Holds the mutable part of a queue pair. The host passes it from one run to
 * the next.
 */
struct gq_state {
    uint32_t sq_tail;
    uint32_t cq_head;
    uint32_t phase;         /* phase of the CQE expected at cq_head */
    uint32_t cq_db_pending; /* not 0: cq_head was not stored to the CQ doorbell */
    uint32_t first_cid;     /* CID of index 0 when it is first posted in the next run of rounds */
    uint32_t in_flight;
    uint32_t sent;     /* commands posted by this run */
    uint32_t progress; /* changes every GQ_FLAGS_NS while the run makes progress */
    uint32_t outcome;
    /*
     * Results of a run that has ended (gq_report_reads): the status of the first
     * read with one, or 0.
     */
    uint32_t status;
    uint32_t status_of; /* index of that read */
    uint32_t bad;       /* lowest index of a read without all its bytes; UINT32_MAX: none */
    uint64_t bytes;     /* bytes of the reads that this run has begun */
};
static_assert(sizeof(struct gq_state) == 56, "states lie side by side in memory of both sides");

/* --- Shared queues (gq_shared.h) ------------------------------------------ */

#define GQ_CID_WORDS 32u
#define GQ_MAX_CIDS  (GQ_CID_WORDS * 32u)

/* Names the states of a CID, in addition to GQ_ENDED | status. */
#define GQ_CID_PENDING 0x10000u
#define GQ_CID_POSTED  0x30000u /* includes the bit of PENDING; 15:0: the CID as it was posted */
#define GQ_CID_LEFT    0x40000u /* added to PENDING or POSTED */

/*
 * Describes the CIDs of a queue, in the executor's memory. All fields are
 * initially zero, except the bits of `taken` beyond the last CID, the pointers
 * and n_cids.
 */
struct gq_cids {
    uint32_t taken[GQ_CID_WORDS];   /* one bit per CID: claimed */
    uint32_t pending[GQ_CID_WORDS]; /* one bit per CID: to be posted */
    uint32_t lost;                  /* number of CIDs in state LEFT; if not 0, no CID is claimed */
    uint32_t n_cids;                /* at most depth - 1 and GQ_MAX_CIDS */
    struct gq_cmd *cmds;            /* arrays of n_cids elements */
    uint32_t *states;
};

#endif
