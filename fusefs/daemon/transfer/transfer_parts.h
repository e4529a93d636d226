/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums of a READ or WRITE by the executor, of one part while the next
 * parts are in flight. They are used only on file systems with checksums
 * (stack.data_csum).
 *
 * READ: blocks are compared when they have arrived. Their checksums are looked
 * up before the transfer, or by a separate thread during a long one: the thread
 * of the transfer holds queues, for which a reset waits, so it must not wait
 * for the drive. transfer_sums.h handles blocks whose checksums are unavailable
 * without waiting for a writer, and those that do not match.
 *
 * WRITE: the checksum of a block is computed before the drive reads it, and
 * again afterwards. If the two differ, the application has changed the buffer
 * meanwhile. The block then gets no checksum, since its content on the drive is
 * unknown.
 */
#ifndef FUSEFS_DAEMON_TRANSFER_TRANSFER_PARTS_H
#define FUSEFS_DAEMON_TRANSFER_TRANSFER_PARTS_H

#include <pthread.h>

#include "fusefs/daemon/transfer/buffer_transfer.h"

struct transfer_parts {
    struct gq_listener listener; /* of the request */
    struct transfer *t;
    uint64_t file, at; /* start in the file and in the buffer, bytes */
    uint32_t *sums;    /* of all blocks; READ: those of the file */
    uint32_t *have;    /* checksums of a part of the buffer */
    bool stopped;      /* a block differed (READ), or an error occurred */
    /*
     * READ: blocks [first, next) of the file match. WRITE: blocks before `next`
     * have both checksums.
     */
    uint64_t first, next;
    uint64_t begun; /* WRITE: blocks from the start with the first checksum */
    /* The following are used by READ. */
    uint64_t blocks;        /* whole blocks from `first` on */
    _Atomic uint64_t known; /* number of them with entries in sums */
    pthread_t thread;       /* looks up the rest */
    bool has_thread;
    _Atomic bool ends; /* tells the thread to end */
};

/*
 * Called before the next len bytes of the transfer are moved. Returns NULL for
 * a WRITE of partial blocks, or if memory is exhausted.
 */
struct transfer_parts *transfer_parts_new(struct transfer *t, uint64_t len);
void transfer_parts_free(struct transfer_parts *p);
/*
 * Called after a READ of so many bytes. Waits for the thread and compares the
 * remaining blocks.
 */
void transfer_parts_read(struct transfer_parts *p, uint64_t bytes);
/*
 * Called after a WRITE that wrote so many bytes, which are whole blocks.
 * Returns their checksums, or NULL if they could not be computed.
 */
const uint32_t *transfer_parts_written(struct transfer_parts *p, uint64_t bytes);

#endif
