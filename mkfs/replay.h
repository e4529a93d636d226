/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replays the log (FORMAT.md 10) in memory.
 */
#ifndef MKFS_REPLAY_H
#define MKFS_REPLAY_H

#include <stdbool.h>
#include <sys/cdefs.h>

#include "layout/log_reader.h"
#include "mkfs/image.h"

__BEGIN_DECLS

enum log_state {
    LOG_WHOLE,   /* every transaction up to the newest commit is whole */
    LOG_CLEAN,   /* the log holds nothing since a clean unmount */
    LOG_DAMAGED, /* the transactions before the gap at reader.tid are whole */
    LOG_LOST,    /* no commit was found */
};

struct log {
    enum log_state state;
    const char *why; /* what is wrong with the newest commit or with a transaction, or NULL */
    /*
     * Holds the newest commit, the place of the next transaction, and
     * corrections.
     */
    struct lay_log reader;
    struct lay_log_tx *transactions;
    size_t transaction_count;
    struct image_patch *images; /* in log order */
    size_t image_count;
    struct lay_log_lack *lacks; /* blocks that one of two logs lacks */
    size_t lack_count;
};

/*
 * Reads every whole transaction from the tail of the newest commit on. The
 * caller frees the log, which must not be moved. Returns 0, or -ENOMEM or a
 * device error with nothing to free.
 */
int replay_read(struct image *img, const struct lay_labels *labels, const struct lay_supers *supers,
                struct log *log);
void replay_free(struct log *log);

/*
 * Finds the superblock that counts after recovery: the last image in the log,
 * otherwise one with the age that the newest commit names. Returns 0 with
 * img->geo complete, -EUCLEAN with *why if there is none, -ENOMEM or a device
 * error. A superblock of another age counts if the right one is lost; *lost says
 * so.
 */
int replay_super(struct image *img, const struct log *log, const struct lay_supers *supers,
                 struct lay_super *super, bool *lost, const char **why);

/*
 * Makes image_read() return blocks as after recovery. Returns 0 or -ENOMEM. An
 * image inside the areas of the geometry is dropped, and the log is damaged
 * then.
 */
int replay_replay(struct image *img, struct log *log);

/*
 * After replay_replay(): reads the chunk map (image_read_map()), and drops the
 * images of segments that it does not have. Those whose block of the map is
 * damaged stay. `chunks` is that of the superblock, or UINT64_MAX. Returns 0,
 * -ENOMEM or a device error.
 */
int replay_map(struct image *img, uint64_t chunks);
/* Drops them again, when a repair has changed the map. */
void replay_drop_unmapped(struct image *img);

/*
 * Calls `each` for the images from the gap of a damaged log on, as far as they
 * are sound. `data` is the image. Returns 0 or an error. The reader is then no
 * longer at the gap.
 */
int replay_rest(struct image *img, struct log *log,
                int (*each)(void *arg, uint64_t addr, const union lay_block *data), void *arg);

__END_DECLS

#endif
