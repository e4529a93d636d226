/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the log for a scrub. Only a recovery shows whether a block of the log
 * is right, but a block that cannot be read would end a later commit.
 */
#include "fusefs/core/mount/log_scrub.h"

#include <errno.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"

#define LOG_SCRUB_RUN 64u /* blocks that are read with one command */

/* Returns true if a transaction from the tail on has the position. The caller holds commit_lock. */
static bool log_scrub_in_use(const struct ffs *fs, uint64_t pos)
{
    const struct ffs_journal *j = &fs->journal;
    const uint64_t blocks = fs->geo.log_blocks;

    return (pos + blocks - j->tail_pos) % blocks < j->used;
}

/*
 * Gets the content of an unreadable block: the block of the other log, or zeros
 * if no transaction has the block.
 */
static int log_scrub_content(struct ffs *fs, unsigned log, uint64_t pos, void *block)
{
    memset(block, 0, LAY_BLOCK_SIZE);
    if (!log_scrub_in_use(fs, pos))
        return 0;
    if (lay_logs(&fs->geo) == 1)
        return -EIO;
    return bd_read(fs->dev, ffs_bytes(lay_log_block(&fs->geo, !log, pos)), block, LAY_BLOCK_SIZE);
}

/* Reads a block of the log again, and writes it if it cannot be read. */
static void log_scrub_place(struct ffs *fs, unsigned log, uint64_t pos, void *block,
                            struct ffs_scrubbed *s)
{
    *s = (struct ffs_scrubbed){.place = lay_log_block(&fs->geo, log, pos)};
    if (bd_read(fs->dev, ffs_bytes(s->place), block, LAY_BLOCK_SIZE) == 0)
        return;
    s->wrong = s->unreadable = true;
    if (log_scrub_content(fs, log, pos, block) == 0)
        s->copied = ffs_checked_write_copy(fs, s->place, block) == 0;
    ffs_log(fs, LOG_WARNING, "%s: block %llu of the journal cannot be read%s", fs->dev->info.name,
            (unsigned long long)s->place, s->copied ? "; written again" : "");
}

/* Looks at one position with commit_lock, so that nobody writes the log. */
static void log_scrub_position(struct ffs *fs, uint64_t pos, void *block, struct log_scrubbed *out)
{
    pthread_mutex_lock(&fs->journal.commit_lock);
    ffs_meta_read(fs);
    for (unsigned i = 0; i < lay_logs(&fs->geo) && pos < fs->geo.log_blocks; i++)
        log_scrub_place(fs, i, pos, block, &out->places[out->n++]);
    ffs_meta_done(fs);
    pthread_mutex_unlock(&fs->journal.commit_lock);
}

/* Returns how many of n blocks from `block` on can be read before one that cannot. */
static uint64_t log_scrub_readable(struct ffs *fs, uint64_t block, uint64_t n, void *data)
{
    uint64_t i = 0;

    if (bd_read(fs->dev, ffs_bytes(block), data, ffs_bytes(n)) == 0)
        return n;
    while (i < n && bd_read(fs->dev, ffs_bytes(block + i), data, LAY_BLOCK_SIZE) == 0)
        i++;
    return i;
}

/* Reads positions of all logs from `pos` on, and returns how many before one that is unreadable. */
static uint64_t log_scrub_run(struct ffs *fs, const struct lay_geometry *geo, uint64_t pos,
                              uint64_t n, void *data)
{
    for (unsigned i = 0; i < lay_logs(geo); i++)
        n = ffs_min(n, log_scrub_readable(fs, lay_log_block(geo, i, pos), n, data));
    return n;
}

uint64_t ffs_log_scrub(struct ffs *fs, uint64_t pos, struct log_scrubbed *out)
{
    ffs_meta_read(fs);
    /* If the log moves after this, its old place is read, which changes nothing. */
    const struct lay_geometry geo = fs->geo;
    ffs_meta_done(fs);
    *out = (struct log_scrubbed){.n = 0};
    void *data = pos < geo.log_blocks ? ffs_dma_alloc(fs, ffs_bytes(LOG_SCRUB_RUN)) : NULL;
    if (!data)
        return geo.log_blocks;
    uint64_t run = ffs_min(geo.log_blocks - pos, LOG_SCRUB_RUN);
    uint64_t n = log_scrub_run(fs, &geo, pos, run, data);
    out->blocks = n * lay_logs(&geo);
    if (n < run)
        log_scrub_position(fs, pos + n, data, out);
    ffs_dma_free(fs, data, ffs_bytes(LOG_SCRUB_RUN));
    return pos + n + (n < run);
}
