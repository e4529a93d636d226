/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the journal's log (FORMAT.md 10) and replays it in memory. */
#ifndef MKFS_REPLAY_H
#define MKFS_REPLAY_H

#include <stdbool.h>

#include "mkfs/image.h"

struct log_transaction {
    uint64_t tid;
    uint64_t pos;
    uint32_t blocks; /* length in the log */
    uint64_t images, revokes;
    struct lay_time time;
};

struct log {
    uint64_t end_tid; /* first transaction that is not in the log */
    uint64_t end_pos;
    struct log_transaction *transactions;
    size_t transaction_count;
    struct image_patch *images; /* images in log order */
    size_t image_count;
    struct image_patch *revokes; /* block, tid */
    size_t revoke_count;
};

/*
 * Reads every valid transaction from the tail on. Returns 0, -ENOMEM or a
 * device error. replay_free() frees the log.
 */
int replay_read(struct image *img, const struct lay_journal *header, struct log *log);
void replay_free(struct log *log);

/*
 * Makes image_read() return blocks as they are after recovery. Returns 0 or
 * -ENOMEM.
 */
int replay_replay(struct image *img, const struct log *log);

/*
 * Finds the newest transaction with a valid commit block anywhere in the log; 0
 * if there is none.
 */
int replay_find_newest(struct image *img, uint64_t *tid);

#endif
