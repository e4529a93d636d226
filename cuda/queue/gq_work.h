/*
 * What the host hands to whoever drives queue pairs (a kernel, or a host thread), and what it
 * gets back. Plain data in memory that both sides reach; C11 and CUDA.
 */
#ifndef CUDA_QUEUE_GQ_WORK_H
#define CUDA_QUEUE_GQ_WORK_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/nvme/nvme_spec.h"

#define GQ_MAX_QUEUES 128u

/* One NVMe command: where on the device, how much, and where in memory. */
struct gq_cmd {
    uint64_t slba;
    uint64_t prp1;
    uint64_t prp2;
    uint32_t nlb; /* LBAs - 1, as CDW12 has it */
    uint32_t reserved;
};
static_assert(sizeof(struct gq_cmd) == 32, "a warp reads 32 commands as 1 KiB");

/* The result of a command: GQ_PENDING until its completion was seen, then GQ_ENDED | status. */
#define GQ_PENDING 0u
#define GQ_ENDED   0x80000000u

/* Bytes to copy beside the commands, between staging and buffer, or zeros to write. */
struct gq_copy {
    uint64_t dst;
    uint64_t src; /* 0: zeros */
    uint64_t len;
    uint32_t cmd; /* copied only when this command succeeded; GQ_COPY_ALWAYS: in any case */
    uint32_t reserved;
};
static_assert(sizeof(struct gq_copy) == 32, "pieces are read by a kernel");
#define GQ_COPY_ALWAYS UINT32_MAX

/* Bits of the word behind gq_run.flags, set by the host while a run is under way. */
#define GQ_FLAG_CANCEL 1u /* send no more, drain, end */
#define GQ_FLAG_LEAVE  2u /* before a reset: end now, with what is in flight */

/*
 * What all queues working on one list share, of commands, or of reads (gq_reads.h: then cmds is
 * not looked at); read-only while they run.
 */
struct gq_run {
    const struct gq_cmd *cmds;
    uint32_t *results;               /* n_cmds; of reads: may be NULL */
    const volatile uint32_t *flags;  /* GQ_FLAG_*, the executor's; NULL: none */
    const volatile uint32_t *cancel; /* the caller's, not zero: as GQ_FLAG_CANCEL; NULL: never */
    /* Each a word that is leave_value when what it stands for is gone: as GQ_FLAG_LEAVE; or NULL.
     */
    const volatile uint32_t *leave[2];
    struct nvme_transport *kick; /* CPU only: woken after doorbell stores; may be NULL */
    uint64_t command_ns;         /* a command not completed after this is lost */
    uint64_t budget_ns;          /* for the whole list; 0: no limit */
    uint32_t n_cmds;             /* of the list: commands, or reads */
    uint32_t n_queues;
    uint32_t group_shift; /* they go to queues in groups of 1 << group_shift */
    uint32_t nsid;
    uint32_t opcode; /* NVME_IO_READ or NVME_IO_WRITE */
    uint32_t leave_value;
};

/* A command in flight, found by its CID. */
struct gq_tracker {
    uint64_t sent_ns;
    uint32_t cmd; /* index in the list, or at least GQ_TRACKER_FREE */
    uint32_t tag; /* of whoever sent it */
};
#define GQ_TRACKER_FREE 0xf0000000u

/* A queue pair, at the addresses by which its driver reaches it. */
struct gq_port {
    struct nvme_sqe *sq;
    struct nvme_cqe *cq;
    volatile uint32_t *sq_doorbell;
    volatile uint32_t *cq_doorbell;
    struct gq_tracker *trackers; /* depth - 1, indexed by CID */
    uint32_t *free_cids;         /* stack of depth - 1 */
    uint32_t depth;
    uint32_t reserved;
};

enum gq_outcome {
    GQ_OUT_RUNNING = 0,
    GQ_OUT_DONE = 1,
    GQ_OUT_CANCELLED = 2, /* nothing in flight, not all sent */
    GQ_OUT_TIMED_OUT = 3, /* commands may be in flight */
    GQ_OUT_BROKEN = 4,    /* the controller completed a command that was not in flight */
    GQ_OUT_LEFT = 5,      /* told to leave: commands may be in flight */
};

/* The part of a queue pair that changes, carried from one run to the next by the host. */
struct gq_state {
    uint32_t sq_tail;
    uint32_t cq_head;
    uint32_t phase;         /* of the CQE expected at cq_head */
    uint32_t cq_db_pending; /* not 0: the CQ doorbell has not been told of cq_head; nothing is in
                               flight */
    uint32_t in_flight;
    uint32_t sent; /* commands sent by this run */
    uint32_t outcome;
    /* Beside it: of the one command of a list (gq_single_report), or, of a run of reads, below. */
    uint32_t status;
    uint32_t progress; /* of life: changes once in a while as long as the run gets on */
    /* Of a run of reads that has ended, where the host asks (gq_report_reads). */
    uint32_t status_of; /* the index of the first read in the list with a status: it is `status` */
    uint64_t bytes;     /* that the reads have which this run has taken on */
    uint32_t bad; /* the lowest index of a read that has not all its bytes; UINT32_MAX: none */
    uint32_t reserved;
};
static_assert(offsetof(struct gq_state, outcome) % 8 == 0 && sizeof(struct gq_state) == 56,
              "states lie side by side in memory of both sides; outcome and status are one store");

#endif
