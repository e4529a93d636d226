/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements READV, which makes many reads of one file, described by a list in
 * memory that the client may write to at any time. The daemon copies a piece
 * once, checks it and uses the copy. A piece that changes meanwhile is read in
 * its old or its new form, always within the buffer.
 *
 * The executor reads and answers the list in place (gq_readv()); without errors
 * the daemon accesses no piece. Pieces that the executor did not read have an
 * error in their result, and the daemon reads them one by one, as READ does.
 * The results, too, are the client's memory: if a client changes them, its own
 * pieces are read again, or not at all.
 */
#ifndef FUSEFS_DAEMON_TRANSFER_BUFFER_READV_H
#define FUSEFS_DAEMON_TRANSFER_BUFFER_READV_H

#include "fusefs/daemon/transfer/buffer_transfer.h"
#include "gpunvme/gpunvme_ioctl.h"

/*
 * Minimum of the bytes that one list may read; the limit is the buffer's length
 * if that is longer. It covers the longest piece, and 4 KiB for each of
 * GPUNVME_PIECES_MAX. Beyond the limit each queue of the executor reads at most
 * as much again (gq_readv()), and the daemon twice as much.
 */
#define READV_BYTES (4ull << 30)
static_assert(READV_BYTES > UINT32_MAX, "one piece is never too much");
static_assert(READV_BYTES >= 4096ull * GPUNVME_PIECES_MAX, "nor is a list of blocks");

struct readv {
    /*
     * daemon, inode and uid are set by the caller. cancel, error and
     * needs_recovery belong to the whole call, the other fields to the piece
     * being read.
     */
    struct transfer t;
    struct gpunvme_ioc_readv v; /* in and out; readv_run() checks flags, first and count */
};

/*
 * Every wait is bounded. Each piece has a result unless t.error shows that
 * nothing was begun. -E2BIG means that the list exceeded the byte limit, and
 * that some pieces have the result -E2BIG, too.
 */
void readv_run(struct readv *r);

#endif
