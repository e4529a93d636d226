/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Compares data on the device with its checksums, and can add missing
 * checksums and correct single flipped bits.
 *
 * A checksum is entered, and a bit corrected, while the inode's data lock is
 * held exclusively, from the read on, so that no writer changes the data in
 * between. The lock is released after each range of blocks.
 */
#include <errno.h>

#include "fusefs/core/base/checked.h"
#include "fusefs/core/data/data.h"
#include "fusefs/core/data/sums.h"
#include "fusefs/core/state.h"

/* Number of blocks compared while the data lock is held. */
#define RUN 256u
/* Limits of one call: blocks compared, and extents examined. */
#define MAX_BLOCKS  4096u
#define MAX_EXTENTS 4096u

struct scrub {
    struct ffs_inode *inode;
    struct ffs_scrub *out;
    uint8_t *data; /* RUN blocks */
    uint32_t sums[RUN];
    unsigned flags;
    uint64_t most; /* blocks that one call may compare */
    uint64_t end;  /* in file blocks */
};

static uint8_t *scrub_block_at(const struct scrub *s, uint64_t i)
{
    return s->data + ffs_bytes(i);
}

static void scrub_report(struct scrub *s, const struct ffs_extent *e, uint64_t i, bool unreadable)
{
    struct ffs_scrub *out = s->out;

    out->bad[out->nbad++] =
        (struct ffs_scrub_block){.offset = ffs_bytes(e->file_block + i),
                                 .device = e->damaged ? 0 : ffs_bytes(e->block + i),
                                 .unreadable = unreadable};
}

/*
 * Compares block i of the range, and reads it again if it differs. Returns
 * false if it was reported.
 */
static bool scrub_matches(struct scrub *s, const struct ffs_extent *e, uint64_t i)
{
    uint8_t *data = scrub_block_at(s, i);

    if (lay_data_sum(data) == s->sums[i])
        return true;
    int err = bd_read(ffs_dev(s->inode->fs), ffs_bytes(e->block + i), data, LAY_BLOCK_SIZE);
    if (!err && lay_data_sum(data) == s->sums[i])
        return true;
    scrub_report(s, e, i, err != 0);
    if (!err && (s->flags & FFS_SCRUB_CORRECT))
        err = ffs_checked_correct_data(s->inode->fs, e->block + i, s->sums[i], data);
    s->out->bad[s->out->nbad - 1].corrected = !err && (s->flags & FFS_SCRUB_CORRECT);
    return false;
}

/*
 * Reads the range. Blocks that cannot be read are reported and have 0 in
 * `readable`.
 */
static void scrub_read_range(struct scrub *s, const struct ffs_extent *e, bool *readable)
{
    struct bd_dev *dev = ffs_dev(s->inode->fs);
    int err = bd_read(dev, ffs_bytes(e->block), s->data, ffs_bytes(e->len));

    for (uint64_t i = 0; i < e->len; i++) {
        readable[i] = !err || bd_read(dev, ffs_bytes(e->block + i), scrub_block_at(s, i),
                                      LAY_BLOCK_SIZE) == 0;
        if (!readable[i])
            scrub_report(s, e, i, true);
    }
}

/*
 * Compares the range and computes missing checksums. *fresh is the number of
 * those.
 */
static void scrub_compare_range(struct scrub *s, const struct ffs_extent *e, uint64_t *fresh)
{
    bool readable[RUN];

    *fresh = 0;
    scrub_read_range(s, e, readable);
    for (uint64_t i = 0; i < e->len; i++) {
        if (!readable[i])
            continue;
        if (s->sums[i] != LAY_NO_SUM) {
            s->out->matching += scrub_matches(s, e, i);
        } else if (s->flags & FFS_SCRUB_ADD) {
            s->sums[i] = lay_data_sum(scrub_block_at(s, i));
            ++*fresh;
        } else {
            s->out->without++;
        }
    }
}

/* The checksums of a range lie in at most two checksum blocks. */
static int scrub_enter_sums(struct scrub *s, const struct ffs_extent *e)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(s->inode->fs, 2, &tx);

    return err ? err : ffs_tx_finish(tx, ffs_sums_put(tx, e->block, e->len, s->sums));
}

static int scrub_range(struct scrub *s, const struct ffs_extent *e)
{
    uint64_t fresh;
    int err = ffs_sums_get(s->inode->fs, e->block, e->len, s->sums);

    if (err)
        return err;
    scrub_compare_range(s, e, &fresh);
    if (fresh > 0)
        err = scrub_enter_sums(s, e);
    if (!err)
        s->out->added += fresh;
    return err;
}

/* Reports the first blocks of a damaged extent and cuts it to these. */
static void scrub_report_damage(struct scrub *s, struct ffs_extent *e)
{
    e->len = min_u64(e->len, RUN);
    for (uint64_t i = 0; i < e->len; i++)
        scrub_report(s, e, i, true);
}

/* Gets the extent at file block *at, or its first part. */
static int scrub_next(struct scrub *s, uint64_t *at)
{
    struct ffs_inode *inode = s->inode;
    struct ffs_extent e;
    struct ffs_file f;
    int err = ffs_file_open(inode, &f);

    if (err)
        return err;
    s->end = min_u64(s->end, ffs_block_up(f.size));
    if (*at >= s->end)
        return 0;
    ffs_meta_read(inode->fs);
    err = ffs_extent_find(inode, *at, &e);
    ffs_meta_done(inode->fs);
    if (err)
        return err;
    e.len = min_u64(e.len, s->end - *at);
    if (e.damaged) {
        scrub_report_damage(s, &e);
    } else if (ffs_extent_is_data(&e)) {
        e.len = min_u64(e.len, RUN);
        err = scrub_range(s, &e);
    }
    *at += e.len;
    return err;
}

/* Processes as much of [*at, s->end) as one call may. */
static int scrub_some(struct scrub *s, uint64_t *at)
{
    const struct ffs_scrub *out = s->out;
    int err = 0;

    for (unsigned i = 0; i < MAX_EXTENTS && *at < s->end && !err; i++) {
        if (out->matching + out->added + out->without >= s->most || out->nbad + RUN > FFS_SCRUB_BAD)
            break;
        if (s->flags)
            pthread_rwlock_wrlock(&s->inode->data);
        else
            pthread_rwlock_rdlock(&s->inode->data);
        err = scrub_next(s, at);
        pthread_rwlock_unlock(&s->inode->data);
    }
    return err;
}

static int scrub_call(struct ffs_inode *inode, uint64_t offset, uint64_t end, unsigned flags,
                      uint64_t most, struct ffs_scrub *out)
{
    struct ffs *fs = inode->fs;
    uint64_t at = ffs_block_of(offset);
    struct scrub s = {
        .inode = inode, .out = out, .flags = flags, .most = most, .end = ffs_block_up(end)};

    *out = (struct ffs_scrub){.next = end};
    if (!ffs_has_sums(ffs_geometry(fs)) || fs->sums.stale)
        return -EOPNOTSUPP;
    if ((flags & FFS_SCRUB_CORRECT) && ffs_writable(fs))
        return ffs_writable(fs);
    s.data = ffs_dma_alloc(fs, ffs_bytes(RUN));
    if (!s.data)
        return -ENOMEM;
    int err = scrub_some(&s, &at);
    ffs_dma_free(fs, s.data, ffs_bytes(RUN));
    if (at < s.end)
        out->next = ffs_bytes(at);
    return err;
}

int ffs_scrub(struct ffs_inode *inode, uint64_t offset, uint64_t end, unsigned flags,
              struct ffs_scrub *out)
{
    return scrub_call(inode, offset, end, flags, MAX_BLOCKS, out);
}

int ffs_scrub_step(struct ffs_inode *inode, uint64_t offset, struct ffs_scrub *out)
{
    return scrub_call(inode, offset, INT64_MAX, 0, 1, out);
}
