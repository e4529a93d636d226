/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes reads for waiting host threads without a launch (cuda/gq_service.h). A block of the
 * persistent kernel serves the reads of one thread at a time.
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
 * Time limit for a kernel that reads len bytes: three deadlines of a command for each part, namely
 * one for the queue, one for the part, and one as a margin.
 */
#define DIRECT_PART ((uint64_t)64 << 20)

static inline uint64_t direct_patience_ns(const struct gd_set *set, uint64_t len)
{
    return (len + DIRECT_PART - 1) / DIRECT_PART * 3 * set->command_ns;
}

/* Describes a read inside one buffer. The read does not pass the end of the file. */
struct direct_service_read {
    const struct gpunvme_device_file *file;
    uint64_t file_at; /* address in the memory space */
    uint64_t addr, len, offset;
    /*
     * Launches another kernel for `part` of a long read, which stores its result in part->bytes.
     * Returns 1 if it was launched, 0 if the block has to make the read, or -errno if nothing of it
     * runs; after -ETIMEDOUT it may run. NULL: the block makes all reads.
     */
    int (*launch)(struct gpunvme_direct *d, struct gd_launch *part, void *stream);
    struct gpunvme_direct *direct;
    const struct gd_launch *whole;
};

/*
 * Opens the service of a GPU's memory space. Returns 0 and sets *out to NULL if the library has no
 * device code.
 */
int direct_service_open(const struct memory_space *p, struct direct_service **out);
/*
 * Waits for the end of the blocks and frees the service. Returns false if a block may still run, or
 * waits for room on the GPU, after two deadlines of a command and 10 s for each stream. Nothing is
 * freed then, and the caller frees none of the memory that a block uses. Returns true for NULL.
 */
bool direct_service_close(struct direct_service *s);
/*
 * Returns true if a service of this process was closed and a block of its
 * kernel may still run. Freeing or unpinning any memory on its GPU, also memory
 * of another mount, would wait for the block.
 */
bool direct_service_any_stuck(void);
/*
 * Executes a read and waits for its end. Returns -errno with gpunvme_error() set, or the number of
 * bytes. The number is less than requested only after an error in a later part. More threads than
 * slots take turns. Returns -ETIMEDOUT also if no block answered in time, for example because the
 * GPU has no room for one; a read that has begun may then still be in flight. Returns -EIO also
 * within 0.1 s after the CUDA context has failed, and immediately afterwards.
 */
int64_t direct_service_read(struct direct_service *s, const struct direct_service_read *read);
/*
 * Called before memory of reads is freed. If a read ended with -ETIMEDOUT since the last call,
 * waits for the end of the blocks, at most for the time to find a queue, the time of a command, and
 * a second. Returns false if a block still runs then, or still does since an earlier call: it may
 * access the memory, and freeing memory on a GPU would wait for it. Returns true for NULL.
 */
bool direct_service_settle(struct direct_service *s);
/*
 * Returns true if no block runs or is being launched, so that its memory may be freed, and for
 * NULL.
 */
bool direct_service_has_left(struct direct_service *s);

#endif
