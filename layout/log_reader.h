/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the log (FORMAT.md 10). Recovery, fsck and dump read the log only with
 * this code, so that all agree on which transactions count. If there are two
 * logs, a block counts if it is sound in at least one log.
 *
 * The order is: lay_log_open(); lay_log_clean() if a superblock claims a clean
 * unmount; otherwise lay_log_newest(), then lay_log_next() until it returns 0.
 * Nothing here writes, and the geometry of the label suffices. When the
 * superblock is known the caller checks with lay_home_ok() that the images lie
 * within the complete geometry.
 *
 * The caller provides the blocks and keeps the images that it receives. A
 * transaction counts only after lay_log_next() has returned 1 for it. Until
 * then the transaction may prove incomplete.
 */
#ifndef LAYOUT_LOG_READER_H
#define LAYOUT_LOG_READER_H

#include <sys/cdefs.h>

#include "layout/label.h"

__BEGIN_DECLS

/*
 * Callbacks that provide blocks and receive their contents. All return 0 or an
 * error.
 */
struct lay_log_calls {
    /*
     * Sets *block to the 4096 bytes at position pos, 0 to log_blocks - 1, of a
     * log, 0 to lay_logs() - 1, aligned for union lay_block. They stay valid
     * until the next call for the same log. NULL means that the block cannot be
     * read: no record is there then.
     */
    int (*block)(void *arg, unsigned log, uint64_t pos, const void **block);
    /*
     * Receives a checked image of the block with the logical address `addr`,
     * found at log position pos. `data` is the block as read from a log. If it
     * had a flipped bit, `data` is the corrected block, and the block at pos is
     * still the damaged one.
     */
    int (*image)(void *arg, uint64_t addr, uint64_t pos, const void *data);
    /*
     * Notes that a log lacks the sound block that the other one has at position
     * pos. This function is not called if there is only one log.
     */
    int (*lacks)(void *arg, unsigned log, uint64_t pos);
};

/* Describes a block that one log lacks and the other log has. */
struct lay_log_lack {
    uint64_t pos;
    unsigned log;
};

/*
 * Holds the contents of a commit in the byte order of the machine, and the
 * commit's position.
 */
struct lay_log_mark {
    uint64_t tid, pos;
    uint64_t counter, id; /* incarnation of its writer */
    uint64_t tail_tid, tail_pos;
    uint32_t super_age;
    uint32_t blocks; /* of the transaction in the log, the commit included */
    struct lay_time time;
};

/* Describes a complete transaction. */
struct lay_log_tx {
    uint64_t tid;
    uint64_t pos; /* log position of its first block */
    uint64_t images;
    uint32_t blocks; /* in the log */
    struct lay_log_mark commit;
};

struct lay_log {
    const struct lay_geometry *geo;
    const struct lay_log_calls *calls;
    void *arg;
    struct lay_incarnation label; /* incarnation of the label */
    struct lay_log_mark newest;   /* the newest commit */
    uint64_t tid, pos;            /* the next transaction and its log position */
    uint64_t left;                /* blocks of the log that are in no transaction yet */
    uint64_t corrected;           /* blocks of which one bit was corrected */
    /*
     * True after the newest transaction was read, if that transaction is empty
     * and has the tail of the previous one. The next commit then replaces it
     * (R7e).
     */
    bool replace;
    bool ended;                 /* the newest transaction was read */
    const char *why;            /* reason of -EUCLEAN, for the user */
    uint64_t counter, tail_tid; /* of the transaction before */
    union lay_block fixed;      /* corrected copy of a block */
};

/*
 * Prepares to read the log of a file system. geo and calls must outlive the
 * object.
 */
void lay_log_open(struct lay_log *log, const struct lay_geometry *geo,
                  const struct lay_incarnation *label, const struct lay_log_calls *calls,
                  void *arg);

/*
 * R7f: returns 1 if this checked superblock was written by a clean unmount
 * after which nothing was committed. Then log->newest is the commit of that
 * unmount, no transaction of the log is needed, and lay_log_next() returns 0.
 * Otherwise returns 0 or the error of a callback. Reads two blocks of each log.
 */
int lay_log_clean(struct lay_log *log, const struct lay_super *sb);

/*
 * R7a: finds the newest commit by reading the whole log once, sets log->newest
 * and positions the reader at its tail. Returns 0, the error of a callback, or
 * -EUCLEAN with log->why if there is no commit, if each log has a newer one at
 * a wrong position, or if the label is older than the newest commit.
 */
int lay_log_newest(struct lay_log *log);

/*
 * Reads the transaction log->tid at log->pos. Returns 1 if it is complete; *tx
 * then describes it, and the reader has advanced to the next one. Returns 0 if
 * the newest transaction was read already; the next one is then log->tid at
 * log->pos. Returns -EUCLEAN if the transaction is not whole, so that the log
 * is damaged there: log->tid and log->pos stay, and images received since the last complete
 * transaction are void. Otherwise returns the error of a callback.
 *
 * Reading ends on any log: a call reads at most log_blocks + 1 blocks of each
 * log, and all complete transactions together have at most log_blocks.
 */
int lay_log_next(struct lay_log *log, struct lay_log_tx *tx);

/*
 * Called after lay_log_next() has returned -EUCLEAN. Searches for a later
 * transaction of the damaged log, up to the newest one, and positions the
 * reader at the first record found. Returns 1, 0 if there is no record, or the
 * error of a callback. fsck uses this function to list the changes of such
 * transactions.
 */
int lay_log_skip(struct lay_log *log);

/*
 * Receives the place of a block that cannot be written (-EIO), and the block
 * that the other log has. Returns 0 or an error.
 */
typedef int (*lay_log_lost_fn)(void *arg, uint64_t place, const union lay_block *b);
/*
 * R8: copies the n blocks that a log lacks from the other log, and flushes the
 * device. Calls `lost` for each block that cannot be written. Called before the
 * first commit of a new incarnation. Returns 0 or the error of a callback.
 */
int lay_log_mend(const struct lay_io *io, const struct lay_geometry *geo,
                 const struct lay_log_lack *lacks, size_t n, lay_log_lost_fn lost, void *arg);

__END_DECLS

#endif
