/* SPDX-License-Identifier: BSD-2-Clause */
/* Records that host and persistent kernel exchange (gd_persistent.h). */
#ifndef CLIENT_DEVICE_GD_SERVICE_H
#define CLIENT_DEVICE_GD_SERVICE_H

#include <stddef.h>

#include "client/device/gd_types.h"
#include "cuda/gq_tagged_slot.h"

/* Words of the slot that are polled: 128 bytes, one load of a warp. */
#define GD_REQUEST_WORDS 16u

/* A read, as the host asks for it. */
union gd_request {
    uint32_t words[GD_REQUEST_WORDS];
    /*
     * A read of one command, which the host has made, in the layout of an SQE without the CID.
     * Fields that a READ does not use have the other parameters. The data pointer of a staged
     * command is the staging of the warp's queue, from which its bytes are copied to dst. A command
     * whose data is compared reads one block, to dst, by one PRP.
     */
    struct {
        uint32_t opcode, nsid;
        uint64_t lease, checked_ns; /* of the file, as in struct gpunvme_device_file */
        uint64_t prp1;
        uint64_t prp2; /* with GD_COMPARES the address of the word of the block's checksum */
        uint64_t slba;
        uint32_t nlb, staged; /* bytes to copy, 0: it is not staged; and GD_COMPARES */
        uint64_t dst;
    } command;
    /* Any other read. */
    struct {
        uint32_t opcode; /* 0: it is no command */
        uint32_t reserved;
        uint64_t file; /* struct gpunvme_device_file, where the GPU has it */
        uint64_t addr, len, offset;
    } read;
};
static_assert(sizeof(union gd_request) == sizeof(struct nvme_sqe) &&
                  sizeof(union gd_request) == GD_REQUEST_WORDS * sizeof(uint32_t),
              "a word of the slot carries a dword of the command");
static_assert(offsetof(union gd_request, command.staged) == 13 * sizeof(uint32_t) &&
                  offsetof(union gd_request, command.dst) == 14 * sizeof(uint32_t),
              "as below");
#define GD_REQUEST_LEASE      2u /* first word of two */
#define GD_REQUEST_CHECKED_NS 4u
#define GD_REQUEST_PRP1       6u
#define GD_REQUEST_PRP2       8u
#define GD_REQUEST_STAGED     13u
#define GD_REQUEST_DST        14u
#define GD_COMPARES           0x80000000u

/* In host memory. */
struct gd_service {
    struct gq_tagged_slot_memory slot;
    /* The read's number in the upper half; in the lower 0, -errno, or GQ_MISMATCH of a command */
    uint64_t answer;
    uint64_t sent;    /* likewise, where the completion of its command will be: gd_sent() */
    int64_t launched; /* of a read by a kernel of its own (gd_staged.h): its result, or: */
    uint32_t cancel;  /* 1: no host waits for that read any more */
};
#define GD_LAUNCHED INT64_MIN /* it has none yet */

GQ_FN uint64_t gd_answer(uint32_t number, int err)
{
    return (uint64_t)number << 32 | (uint32_t)err;
}

/*
 * The command of a read is in flight: by which queue of the lease, and what its CQE will be. The
 * CID is the entry with or without GQ_CID_LONE.
 */
GQ_FN uint64_t gd_sent(uint32_t number, uint32_t queue, uint32_t entry, uint32_t cid,
                       uint32_t phase)
{
    return (uint64_t)number << 32 | (entry ^ cid) << 16 | queue << 17 | phase << 16 | entry;
}

/*
 * By the host: has the command succeeded? cqs: of the lease's queues. A failure, or an entry that
 * cannot be, is reported by the kernel.
 */
GQ_FN bool gd_has_ended(uint64_t sent, const struct nvme_cqe *const *cqs)
{
    uint32_t entry = sent & 0xffffu, phase = sent >> 16 & 1u, queue = sent >> 17 & 0x3fffu;
    uint32_t cid = entry ^ (sent >> 16 & GQ_CID_LONE), dw3 = gq_load_cqe(&cqs[queue][entry]);

    return dw3 == ((phase << 16) | cid);
}

/* Arguments of a launch. */
struct gd_service_launch {
    struct gq_tagged_slot_launch slot;
    uint64_t *answer, *sent;
    struct gd_set set;                    /* whose queues serve single commands */
    const struct gq_sum_table *sum_table; /* NULL: none is compared */
};

#endif
