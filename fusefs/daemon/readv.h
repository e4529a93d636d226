/*
 * READV: many reads of one file, described by a list in memory that the client writes to as it
 * likes, also meanwhile. What a piece says is copied once, checked, and used; a piece that changes
 * under way is read as it was or as it is, within the buffer in any case.
 *
 * The executor works out extents and PRPs by itself (gq_readv()): what the daemon does for a piece
 * is one pass of arithmetic. What it could not read, for whatever reason, is read again as READ
 * would, piece by piece.
 */
#ifndef FUSEFS_DAEMON_READV_H
#define FUSEFS_DAEMON_READV_H

#include "client/gpunvme_ioctl.h"
#include "fusefs/daemon/transfer.h"

/*
 * What the lengths of a list's pieces may come to together, whether or not there is as much in the
 * file: the buffer's length, as for READ, or this where the buffer is shorter. It is as long as the
 * longest piece at least, and 4 KiB for each of GPUNVME_PIECES_MAX.
 */
#define READV_BYTES (4ull << 30)
static_assert(READV_BYTES > UINT32_MAX, "one piece is never too much");
static_assert(READV_BYTES >= 4096ull * GPUNVME_PIECES_MAX, "nor is a list of blocks");

struct readv {
    /*
     * The caller sets daemon, inode and uid. The rest is how the pieces are read; its cancel,
     * error and needs_recovery are those of the call.
     */
    struct transfer t;
    struct gpunvme_ioc_readv v; /* in and out; flags, first and count are checked here */
};

/*
 * Everything it waits for is bounded. The list has a result in each piece unless t.error says that
 * nothing was begun: -E2BIG is a list that is too long in bytes. Of one that has become longer
 * since, no more than twice as much is read, and the pieces beyond that have -E2BIG.
 */
void readv_run(struct readv *r);

#endif
