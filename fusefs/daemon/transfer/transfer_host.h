/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Verifies the checksums of data that the executor has read. Used only on file
 * systems with checksums (stack.data_csum).
 *
 * The executor computes the checksums where the data is. A block that does not
 * match is read again by the ordinary path, which verifies it under the inode's
 * data lock and reports a bad block, since a concurrent writer may have caused
 * the mismatch. A block that was read in part is also read again, unless the
 * executor has read it whole and computed its checksum, as it does for READV.
 */
#ifndef FUSEFS_DAEMON_TRANSFER_TRANSFER_HOST_H
#define FUSEFS_DAEMON_TRANSFER_TRANSFER_HOST_H

#include <pthread.h>

#include "fusefs/daemon/transfer/buffer_transfer.h"

/* Number of blocks compared together: at any offsets, and in a run. */
#define TRANSFER_SUMS 8192u
#define TRANSFER_RUN  65536u
/*
 * Largest number of blocks whose checksums are looked up at once; their words
 * take 64 MiB.
 */
#define TRANSFER_SPAN (16u << 20)

struct transfer_sums {
    struct transfer *t;
    /*
     * Called if a block of range `owner` at this file offset could not be
     * verified, with the error.
     */
    void (*lost)(struct transfer_sums *s, uint64_t owner, uint64_t file_offset, int err);
    void *ctx; /* argument of lost() */

    uint32_t *span; /* checksums of blocks [span_first, span_end), or NULL */
    uint64_t span_first, span_end;

    size_t n; /* blocks to compare, with their file and buffer offsets */
    uint64_t owner[TRANSFER_SUMS], file[TRANSFER_SUMS], at[TRANSFER_SUMS];
    uint32_t want[TRANSFER_SUMS], have[TRANSFER_SUMS];
    uint32_t run_want[TRANSFER_RUN], run_have[TRANSFER_RUN];
};

/* Returns NULL if memory is exhausted. */
struct transfer_sums *transfer_sums_new(struct transfer *t);
void transfer_sums_free(struct transfer_sums *s);
/*
 * Looks up the checksums of [from, to) of the file once, before many short
 * ranges of it are added. Without the call, beyond TRANSFER_SPAN blocks and
 * after an error each range looks up its own.
 */
void transfer_sums_look_up(struct transfer_sums *s, uint64_t from, uint64_t to);
/*
 * Adds len bytes that were read from file_offset to byte `at` of the buffer.
 * `parts` is two words of gq_readv.part_sums, or NULL.
 */
void transfer_sums_add(struct transfer_sums *s, uint64_t owner, uint64_t file_offset, uint64_t at,
                       uint64_t len, const uint32_t *parts);
/* Compares the added blocks. */
void transfer_sums_end(struct transfer_sums *s);

/*
 * Holds checksums of a READ or WRITE by the executor, of one part while the
 * next parts are in flight. The struct is used only on file systems with
 * checksums (stack.data_csum).
 *
 * READ: blocks are compared when they have arrived. Their checksums are looked
 * up before the transfer, or by a separate thread during a long transfer. The
 * thread of the transfer must not wait for the drive, because it holds queues
 * for which a reset waits. transfer_sums_end() handles blocks whose checksums
 * are unavailable without waiting for a writer, and blocks that do not match.
 *
 * WRITE: the checksum of a block is computed before the drive reads it, and
 * again afterwards. If the two differ, the application has changed the buffer
 * meanwhile. The block then gets no checksum, since its content on the drive is
 * unknown.
 */

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
    _Atomic bool ends; /* set to end the thread */
};

/*
 * Called before the next len bytes of the transfer are moved. Returns NULL for
 * a WRITE of partial blocks, or if memory is exhausted.
 */
struct transfer_parts *transfer_parts_new(struct transfer *t, uint64_t len);
/* Ends the thread and frees the parts, which are not NULL. */
void transfer_parts_end(struct transfer_parts *p);
static inline void transfer_parts_free(struct transfer_parts *p)
{
    if (p)
        transfer_parts_end(p);
}
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
