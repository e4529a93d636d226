/* SPDX-License-Identifier: BSD-2-Clause */
/* Looks for bad blocks where the log continues, which end a mount that writes. */
#include <errno.h>
#include <inttypes.h>

#include "mkfs/fsck/store.h"
#include "support/minmax.h"

/*
 * Tries to read a block of the log, and in a repair to write the same again,
 * which changes nothing even if a crash cuts it: no transaction has the block.
 */
static int ahead_try(struct fsck *f, uint64_t place)
{
    const bool writes = f->mode != FSCK_CHECK && f->log.state == LOG_WHOLE;
    union lay_block b;
    int err = image_read_raw(&f->img, place, &b);

    if (!err && writes)
        err = bd_write(f->img.dev, place << LAY_BLOCK_SHIFT, &b, sizeof(b), 0);
    return err;
}

/* Tries the block at a position of a log, and reports it if it is bad. */
static int ahead_check(struct fsck *f, unsigned log, uint64_t pos)
{
    const uint64_t place = lay_log_block(&f->img.geo, log, pos);
    int err = ahead_try(f, place);

    if (err != -EIO)
        return err;
    if (!fsck_report(f, PROBLEM_JOURNAL_BLOCK, NULL, "block %" PRIu64, place))
        return 0;
    const struct fsck_ahead item = {.pos = pos, .place = place, .bad = true};
    return fsck_append(&f->ahead, &item, sizeof(item));
}

int fsck_log_ahead(struct fsck *f, uint64_t pos)
{
    const uint64_t left = f->log.reader.left;
    uint64_t n = left > 0 ? min_u64(left - 1, FSCK_AHEAD) : 0;
    int err = 0;

    for (; n > 0 && !err; n--, pos = lay_log_after(&f->img.geo, pos)) {
        for (unsigned i = 0; i < lay_logs(&f->img.geo) && !err; i++)
            err = ahead_check(f, i, pos);
    }
    return err;
}
