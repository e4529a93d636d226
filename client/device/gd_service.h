/* SPDX-License-Identifier: BSD-2-Clause */
/* Declares the reads that a host passes to the service (cuda/gq_service.h). */
#ifndef CLIENT_DEVICE_GD_SERVICE_H
#define CLIENT_DEVICE_GD_SERVICE_H

#include "client/device/gd_types.h"
#include "cuda/gq_service.h"

/* Describes a read that the host has requested. */
struct gd_request {
    uint64_t file; /* struct gpunvme_device_file, where the GPU has it */
    uint64_t addr, len, offset;
};
static_assert(sizeof(struct gd_request) <= GQ_SERVICE_ITEM_BYTES, "a request fits into a slot");

/* Describes the service in host memory. */
struct gd_service {
    struct gq_service_memory memory;
    int64_t launched; /* of a read by a kernel of its own (list.cu): its result, or: */
    uint32_t cancel;  /* 1: no host waits for that read any more */
};
#define GD_LAUNCHED INT64_MIN /* it has none yet */

/* Returns the answer to a read. Its upper half is the read's number, its lower half 0 or -errno. */
GQ_FN uint64_t gd_answer(uint32_t number, int err)
{
    return (uint64_t)number << 32 | (uint32_t)err;
}

#endif
