/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replays the log of the journal (FORMAT.md 10) in memory.
 */
#ifndef MKFS_REPLAY_H
#define MKFS_REPLAY_H

#include <stdbool.h>

#include "layout/journal_reader.h"
#include "mkfs/image.h"

struct log {
    uint64_t end_tid; /* the first transaction that is not in the log */
    uint64_t end_pos;
    struct lay_log_tx *transactions;
    size_t transaction_count;
    struct image_patch *images; /* in log order */
    size_t image_count;
    struct image_patch *revokes; /* sorted by block, then tid */
    size_t revoke_count;
};

/*
 * Reads every whole transaction from the tail on. The caller frees the log.
 * Returns 0, or -ENOMEM or a device error with nothing to free.
 */
int replay_read(struct image *img, const struct lay_journal *header, struct log *log);
void replay_free(struct log *log);

/* Makes image_read() return blocks as after recovery: 0 or -ENOMEM. */
int replay_replay(struct image *img, const struct log *log);

/*
 * Sets *tid to the most recent transaction that has a sound commit block
 * anywhere in the log, or to 0 if there is none. Blocks that cannot be read are
 * skipped if the image is tolerant.
 */
int replay_find_newest(struct image *img, uint64_t *tid);

#endif
