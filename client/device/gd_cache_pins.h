/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements lines that a group reads in place. The group is a reader of the
 * line from gd_cache_hold() until gd_cache_release(), and a line with readers is
 * not replaced. Progress of others does not depend on the release, because a
 * group that finds no other way in a set reads its bytes without a line.
 */
#ifndef CLIENT_DEVICE_GD_CACHE_PINS_H
#define CLIENT_DEVICE_GD_CACHE_PINS_H

#include "client/device/gd_cache.h"

struct gd_cache_held {
    uint64_t *word;   /* of the line; NULL: no line is held */
    uint64_t address; /* of the line */
    uint64_t offset;  /* of its first byte in the file */
    uint64_t bytes;   /* of the file in the line */
};

/*
 * Called by all lanes of a group together. Holds the line at the offset, which
 * is below the end of the file. Returns 0, or -errno if a read of its bytes would
 * fail, too. No line is held after an error, or if the bytes have to be read
 * without a line.
 */
GQ_FN int gd_cache_hold(const struct gd_cache_reader *w, uint64_t offset, struct gd_cache_held *out)
{
    struct gd_cache_line line = gd_cache_line_of(w->cache, offset);
    int err = gd_cache_enter(w, &line);

    *out = (struct gd_cache_held){.word = NULL};
    if (err)
        return err == -EAGAIN ? 0 : err;
    *out = (struct gd_cache_held){.word = gd_cache_word(w, &line),
                                  .address = gd_cache_address(w, &line),
                                  .offset = line.number << w->cache->line_shift,
                                  .bytes = gd_cache_line_bytes(w, line.number)};
    return 0;
}

/*
 * Called by all lanes of a warp together. Ends the use of the line, if there is
 * one. The fences order the loads of all lanes before the next claim of the line.
 */
GQ_FN void gd_cache_release(struct gd_cache_held *held)
{
    const struct gd_cache_reader self = {.group = gq_whole_group()}, *w = &self;

    if (!held->word)
        return;
    GQ_FOR_LANES(lane)
    {
        gq_fence_device();
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            (void)gd_add64(held->word, -GD_CACHE_PIN);
    }
    held->word = NULL;
}

#endif
