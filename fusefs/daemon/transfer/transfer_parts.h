/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums of a READ or WRITE by the executor, of one part while the next parts are under way.
 * Only on file systems with checksums (stack.data_csum).
 *
 * READ: blocks are compared when they have arrived. Their checksums are looked up before, or by a
 * thread beside a long transfer: the thread of the transfer holds queues, so that a reset waits for
 * it, and may not wait for the drive. Blocks whose checksums are not to be had without waiting for
 * a writer, and those that do not match, are for transfer_sums.h. WRITE: the checksum of a block is
 * computed before the drive reads it, and again afterwards. Where the two differ the application
 * has changed the buffer meanwhile, and the block gets no checksum: its content on the drive is not
 * known.
 */
#ifndef FUSEFS_DAEMON_TRANSFER_TRANSFER_PARTS_H
#define FUSEFS_DAEMON_TRANSFER_TRANSFER_PARTS_H

#include <pthread.h>

#include "fusefs/daemon/transfer/buffer_transfer.h"

struct transfer_parts {
    struct gq_listener listener; /* of the request, whose bytes begin at: */
    struct transfer *t;
    uint64_t file, at; /* bytes, in the file and in the buffer */
    uint32_t *sums;    /* of all blocks; READ: those of the file */
    uint32_t *have;    /* of a part, as the buffer has them */
    bool stopped;      /* READ: a block differed. Both: error */
    /* READ: blocks [first, next) of the file match. WRITE: those before `next` have both sums */
    uint64_t first, next;
    uint64_t begun; /* WRITE: blocks from the start that have the first of them */
    /* READ: */
    uint64_t blocks;        /* whole ones, from `first` on */
    _Atomic uint64_t known; /* of them have entries in sums */
    pthread_t thread;       /* looks the rest up */
    bool has_thread;
    _Atomic bool ends; /* transfer_parts_free() has begun: the thread ends */
};

/*
 * Before the next len bytes of the transfer are moved. NULL: a WRITE that is not of whole blocks,
 * or no memory.
 */
struct transfer_parts *transfer_parts_new(struct transfer *t, uint64_t len);
void transfer_parts_free(struct transfer_parts *p);
/* After a READ of so many bytes: compares the rest of them. Waits for the thread. */
void transfer_parts_read(struct transfer_parts *p, uint64_t bytes);
/*
 * After a WRITE, of which so many bytes, whole blocks, are written: their checksums. NULL: they
 * could not be computed.
 */
const uint32_t *transfer_parts_written(struct transfer_parts *p, uint64_t bytes);

#endif
