/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums of a READ or WRITE by the executor, of one part while the next parts are under way.
 * Only on file systems with checksums (stack.data_csum).
 *
 * READ: blocks are compared when they have arrived, as far as that needs no wait. The remaining
 * blocks, and those that do not match, are for transfer_sums.h.
 * WRITE: the checksum of a block is computed before the drive reads it, and again afterwards. Where
 * the two differ the application has changed the buffer meanwhile, and the block gets no checksum:
 * its content on the drive is not known.
 */
#ifndef FUSEFS_DAEMON_TRANSFER_TRANSFER_PARTS_H
#define FUSEFS_DAEMON_TRANSFER_TRANSFER_PARTS_H

#include "fusefs/daemon/transfer/buffer_transfer.h"

struct transfer_parts {
    struct gq_listener listener; /* of the request, whose bytes begin at: */
    struct transfer *t;
    uint64_t file, at; /* bytes, in the file and in the buffer */
    uint32_t *sums;    /* READ: of a part, those of the file. WRITE: of all blocks */
    uint32_t *have;    /* of a part, as the buffer has them */
    bool stopped;      /* READ: a block differed, or its checksum was not to be had. WRITE: error */
    /* READ: blocks [first, next) of the file match. WRITE: those before `next` have both sums */
    uint64_t first, next;
    uint64_t begun; /* WRITE: blocks from the start that have the first of them */
};

/*
 * Before the next len bytes of the transfer are moved. NULL: a WRITE that is not of whole blocks,
 * or no memory.
 */
struct transfer_parts *transfer_parts_new(struct transfer *t, uint64_t len);
void transfer_parts_free(struct transfer_parts *p);
/*
 * After a WRITE, of which so many bytes, whole blocks, are written: their checksums. NULL: they
 * could not be computed.
 */
const uint32_t *transfer_parts_written(struct transfer_parts *p, uint64_t bytes);

#endif
