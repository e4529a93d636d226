/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads that a host waits for, without a launch: a block of threads stays on the GPU while reads
 * come one after another, and leaves when none has come for 0.2 ms, or after 0.1 s
 * (cuda/gq_tagged_slot.h).
 */
#ifndef CLIENT_LIB_DIRECT_SERVICE_H
#define CLIENT_LIB_DIRECT_SERVICE_H

#include <stdbool.h>

#include "client/device/gd_types.h"
#include "client/lib/memory_space.h"

struct direct_service;
struct gpunvme_direct;
struct gd_launch;

/* Inside of one buffer, not past the end of the file. */
struct direct_service_read {
    const struct gpunvme_device_file *file;
    uint64_t file_at; /* in the memory space */
    uint64_t addr, len, offset;
    const struct gq_cmd *command;      /* that is all of it; NULL: there is no such one */
    bool staged;                       /* the command reads into staging: PRPs are not its */
    const struct nvme_cqe *const *cqs; /* of the queues in file->set, as the host has them */
    /*
     * Starts a kernel of its own for `part` of a long read, whose result goes to part->bytes: 1, it
     * did, 0, the block is to read it, or -errno. NULL: the block reads all.
     */
    int (*launch)(struct gpunvme_direct *d, struct gd_launch *part, void *stream);
    struct gpunvme_direct *direct;
    const struct gd_launch *whole;
};

/*
 * The memory space is of a GPU. launches: reads may have a kernel of their own. *out NULL, and 0:
 * the library has no code for it.
 */
int direct_service_open(const struct memory_space *p, bool launches, struct direct_service **out);
/* Waits for the block to leave. NULL: nothing. */
void direct_service_close(struct direct_service *s);
/*
 * Bytes, of which only an error in the middle makes fewer than asked for, or -errno and a sentence
 * for gpunvme_error(). Threads take turns. -ETIMEDOUT also when the block did not answer in time,
 * for want of room on the GPU: a read that it has taken may still go on then. -EIO also when the
 * CUDA context has failed, within 0.1 s of waiting, and from then on at once.
 */
int64_t direct_service_read(struct direct_service *s, const struct direct_service_read *read);
/*
 * Before what reads used goes: if one was given up since the last call, waits for the block to
 * leave, for as long as it may take to find a queue and to end a command, and a second. NULL:
 * nothing.
 */
void direct_service_settle(struct direct_service *s);
/*
 * No block is resident or being launched: memory handed to it may be freed. NULL: none was opened.
 */
bool direct_service_has_left(struct direct_service *s);

#endif
