/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums of data that the executor has read. Only on file systems with checksums
 * (stack.data_csum).
 *
 * The executor computes the checksums where the data is. A block that does not match is read again
 * by the ordinary path, which verifies under the inode's data lock and names a block that is bad:
 * the mismatch may be a writer's doing. So is a block that was read in part, unless the executor
 * has read it whole and computed its checksum, as it does for READV.
 */
#ifndef FUSEFS_DAEMON_TRANSFER_TRANSFER_SUMS_H
#define FUSEFS_DAEMON_TRANSFER_TRANSFER_SUMS_H

#include "fusefs/daemon/transfer/buffer_transfer.h"

/* Blocks that are compared together: anywhere, and one after the other. */
#define TRANSFER_SUMS 8192u
#define TRANSFER_RUN  65536u
/* Blocks whose checksums are looked up at once, at most: words of 64 MiB. */
#define TRANSFER_SPAN (16u << 20)

struct transfer_sums {
    struct transfer *t;
    /* A block of range `owner`, at this offset of the file, could not be verified: err. */
    void (*lost)(struct transfer_sums *s, uint64_t owner, uint64_t file_offset, int err);
    void *ctx; /* of lost() */

    uint32_t *span; /* checksums of blocks [span_first, span_end) of the file; NULL: none */
    uint64_t span_first, span_end;

    size_t n; /* blocks to compare, at these offsets of file and buffer */
    uint64_t owner[TRANSFER_SUMS], file[TRANSFER_SUMS], at[TRANSFER_SUMS];
    uint32_t want[TRANSFER_SUMS], have[TRANSFER_SUMS];
    uint32_t run_want[TRANSFER_RUN], run_have[TRANSFER_RUN];
};

/* NULL: out of memory. */
struct transfer_sums *transfer_sums_new(struct transfer *t);
void transfer_sums_free(struct transfer_sums *s);
/*
 * Before many short ranges of [from, to) of the file are added: looks the checksums up once.
 * Without the call, past TRANSFER_SPAN blocks and after an error each range looks up its own.
 */
void transfer_sums_look_up(struct transfer_sums *s, uint64_t from, uint64_t to);
/*
 * len bytes were read from file_offset to byte `at` of the buffer. parts: two words, of
 * gq_readv.part_sums, or NULL.
 */
void transfer_sums_add(struct transfer_sums *s, uint64_t owner, uint64_t file_offset, uint64_t at,
                       uint64_t len, const uint32_t *parts);
/* Compares what has been added. */
void transfer_sums_end(struct transfer_sums *s);

#endif
