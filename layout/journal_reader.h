/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the log of the journal (FORMAT.md 10). Recovery, fsck and dump read it
 * with this code only, so that they agree on which transactions count.
 *
 * The caller provides the blocks, and keeps the images and revokes that it
 * gets. Nothing of a transaction counts before lay_log_next() has returned 1
 * for it: until then its commit block may be missing or damaged.
 */
#ifndef LAYOUT_JOURNAL_READER_H
#define LAYOUT_JOURNAL_READER_H

#include "layout/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Callbacks that provide blocks and receive their contents. All return 0 or an
 * error.
 */
struct lay_log_calls {
    /*
     * Sets *block to the 4096 bytes at log position pos, 1 to journal_blocks -
     * 1, aligned for union lay_block. They stay valid until the next call.
     * lay_log_newest() skips a block that is set to NULL; lay_log_next() does
     * not accept one.
     */
    int (*block)(void *arg, uint64_t pos, const void **block);
    /*
     * Receives a checked image of block `home`, found at device address `at`.
     */
    int (*image)(void *arg, uint64_t home, uint64_t at, const void *data);
    /*
     * Receives the number of a metadata block whose images up to this
     * transaction are void.
     */
    int (*revoke)(void *arg, uint64_t home);
};

struct lay_log {
    const struct lay_geometry *geo;
    const struct lay_log_calls *calls;
    void *arg;
    uint64_t tid, pos; /* the next transaction and its log position */
    uint64_t left;     /* blocks of the log that are in no transaction yet */
};

/* A complete transaction. */
struct lay_log_tx {
    uint64_t tid;
    uint64_t pos; /* log position of its first block */
    uint64_t images, revokes;
    uint32_t blocks; /* in the log */
    struct lay_time time;
};

/*
 * Starts at the tail that a header names, which lay_check_journal() has
 * accepted.
 */
void lay_log_begin(struct lay_log *log, const struct lay_geometry *geo,
                   const struct lay_journal *header, const struct lay_log_calls *calls, void *arg);

/*
 * Reads the transaction log->tid at log->pos. Returns 1 if it is complete; *tx
 * then describes it, and the reader has advanced to the next one. Returns 0 at
 * the end of the log; images and revokes received since the last complete
 * transaction are then void. Otherwise returns the error of a callback.
 *
 * Reading ends on any log: a call reads at most journal_blocks blocks, and all
 * complete transactions together have at most journal_blocks - 1.
 */
int lay_log_next(struct lay_log *log, struct lay_log_tx *tx);

/*
 * Sets *tid to the most recent transaction that has a valid commit block
 * anywhere in the log, or to 0 if there is none. Reads the whole log in
 * ascending order. Returns 0 or the error of a callback.
 */
int lay_log_newest(const struct lay_log *log, uint64_t *tid);

#ifdef __cplusplus
}
#endif

#endif
