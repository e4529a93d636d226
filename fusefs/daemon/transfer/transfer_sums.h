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
#ifndef FUSEFS_DAEMON_TRANSFER_TRANSFER_SUMS_H
#define FUSEFS_DAEMON_TRANSFER_TRANSFER_SUMS_H

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

#endif
