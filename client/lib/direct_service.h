/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads that a host waits for, without a launch: the service (cuda/gq_service.h). A block of its
 * kernel serves the reads of one thread at a time.
 */
#ifndef CLIENT_LIB_DIRECT_SERVICE_H
#define CLIENT_LIB_DIRECT_SERVICE_H

#include <stdbool.h>

#include "client/device/gd_types.h"
#include "client/lib/memory_space.h"

struct direct_service;
struct gpunvme_direct;
struct gd_launch;

/*
 * Patience for a kernel that reads len bytes: for each part of them three deadlines of a command,
 * for a queue, for the part, and one to be sure.
 */
#define DIRECT_PART ((uint64_t)64 << 20)

static inline uint64_t direct_patience_ns(const struct gd_set *set, uint64_t len)
{
    return (len + DIRECT_PART - 1) / DIRECT_PART * 3 * set->command_ns;
}

/* Inside of one buffer, not past the end of the file. */
struct direct_service_read {
    const struct gpunvme_device_file *file;
    uint64_t file_at; /* in the memory space */
    uint64_t addr, len, offset;
    const struct gq_cmd *command; /* that reads all; NULL: one does not suffice */
    bool staged;                  /* the kernel sets the PRPs of the command, to staging */
    /*
     * Launches another kernel for `part` of a long read, whose result goes to part->bytes. 1:
     * launched; 0: the block makes the read; or -errno: nothing of it runs, but with -ETIMEDOUT
     * it may. NULL: the block makes all reads.
     */
    int (*launch)(struct gpunvme_direct *d, struct gd_launch *part, void *stream);
    struct gpunvme_direct *direct;
    const struct gd_launch *whole;
};

/*
 * The memory space is of a GPU. launches: reads may have `launch`. 0 and *out NULL: the library has
 * no device code.
 */
int direct_service_open(const struct memory_space *p, bool launches, struct direct_service **out);
/* Waits for the end of the block. NULL: no effect. */
void direct_service_close(struct direct_service *s);
/*
 * Returns bytes, fewer than requested only after an error in a later part; or -errno, with a
 * sentence for gpunvme_error(). More threads than slots take turns. -ETIMEDOUT also when the block
 * did not answer in time, as without room on the GPU: a read that it has begun may still be in
 * flight. -EIO also when the CUDA context has failed, within 0.1 s of waiting, and from then on at
 * once.
 */
int64_t direct_service_read(struct direct_service *s, const struct direct_service_read *read);
/*
 * To be called before memory of reads is freed: if a read ended with -ETIMEDOUT since the last
 * call, waits for the end of the block, for the time of finding a queue and of a command, and a
 * second. NULL: no effect.
 */
void direct_service_settle(struct direct_service *s);
/* True: no block runs or is being launched, so its memory may be freed. NULL: true. */
bool direct_service_has_left(struct direct_service *s);

#endif
