/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads that a host passes to the service (cuda/gq_service.h). */
#ifndef CLIENT_DEVICE_GD_SERVICE_H
#define CLIENT_DEVICE_GD_SERVICE_H

#include <stddef.h>

#include "client/device/gd_types.h"
#include "cuda/gq_service.h"

/* A read as requested by the host. */
union gd_request {
    uint32_t words[GQ_SERVICE_WORDS];
    /* A read of one command, which the host has made. */
    struct {
        uint32_t kind;              /* GD_COMMAND, or GD_COMPARED */
        uint32_t staged;            /* bytes to copy from the queue's staging; 0: not staged */
        uint64_t lease, checked_ns; /* of the file, as in struct gpunvme_device_file */
        uint64_t prp1;              /* of a command that is not staged */
        uint64_t prp2;              /* likewise; GD_COMPARED: address of the checksum */
        uint64_t slba;
        uint64_t dst; /* of the bytes that are copied, or compared */
        uint32_t nlb, reserved;
    } command;
    /* Any other read. */
    struct {
        uint32_t kind; /* GD_READ */
        uint32_t reserved;
        uint64_t file; /* struct gpunvme_device_file, where the GPU has it */
        uint64_t addr, len, offset;
    } read;
};
static_assert(sizeof(union gd_request) == GQ_SERVICE_WORDS * sizeof(uint32_t),
              "one word of the slot for each dword");
#define GD_READ     0u
#define GD_COMMAND  1u
#define GD_COMPARED 2u /* of one block */

/* The service in host memory. */
struct gd_service {
    struct gq_service_memory memory;
    int64_t launched; /* of a read by a kernel of its own (list.cu): its result, or: */
    uint32_t cancel;  /* 1: no host waits for that read any more */
};
#define GD_LAUNCHED INT64_MIN /* it has none yet */

/*
 * Returns the answer to a read. The upper half has the number of the read, the
 * lower one 0, -errno, or GQ_MISMATCH of a command.
 */
GQ_FN uint64_t gd_answer(uint32_t number, int err)
{
    return (uint64_t)number << 32 | (uint32_t)err;
}

/* Arguments of a launch. */
struct gd_service_launch {
    struct gq_service_launch service;
    struct gd_set set;                    /* its queues serve single commands */
    const struct gq_sum_table *sum_table; /* NULL: none is compared */
};

#endif
