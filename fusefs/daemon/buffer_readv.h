/*
 * READV: many reads of one file, described by a list in memory that the client writes to as it
 * likes, also meanwhile. What a piece says is copied once, checked, and used; a piece that changes
 * under way is read as it was or as it is, within the buffer in any case.
 *
 * The executor reads and answers the list where it is (gq_readv()): while all goes well the daemon
 * looks at no piece. What the executor did not read, for whatever reason, its results tell, and the
 * daemon reads it as READ would, piece by piece. They are the client's memory, too: who changes
 * them has pieces of his own read once more, or not at all.
 */
#ifndef FUSEFS_DAEMON_BUFFER_READV_H
#define FUSEFS_DAEMON_BUFFER_READV_H

#include "client/gpunvme_ioctl.h"
#include "fusefs/daemon/buffer_transfer.h"

/*
 * So many bytes of a list are read in any case: the buffer's length, as for READ, or this where the
 * buffer is shorter. It is as long as the longest piece at least, and 4 KiB for each of
 * GPUNVME_PIECES_MAX. Of a longer list each queue of the executor reads so much at most
 * (gq_readv()), and the daemon twice as much.
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
 * nothing was begun. -E2BIG: some pieces have it, too, for the list was too long in bytes.
 */
void readv_run(struct readv *r);

#endif
