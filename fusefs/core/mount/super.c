/* SPDX-License-Identifier: BSD-2-Clause */
/* Chooses the valid superblock (FORMAT.md 4.1). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/inode/tx.h"
#include "fusefs/core/journal/ops.h"
#include "fusefs/core/mount/mount.h"

static const struct ffs_reason quiet = {NULL, 0};

static uint64_t device_blocks(const struct ffs *fs)
{
    return fs->dev->info.bytes >> LAY_BLOCK_SHIFT;
}

static int super_read_super(struct ffs *fs, uint64_t at, struct lay_super *sb,
                            struct lay_geometry *geo, const struct ffs_reason *r)
{
    const char *why = "";
    uint64_t features;

    if (at >= device_blocks(fs))
        return ffs_refuse(r, -EINVAL, "too small to hold a file system; truncated, or no image");
    int err = bd_read(fs->dev, ffs_bytes(at), sb, LAY_BLOCK_SIZE);
    if (err)
        return ffs_refuse(r, -EIO, "cannot read the superblock: %s", strerror(-err));
    err = lay_check_super(sb, at, 0, geo, &features, &why);
    if (!err && geo->blocks > device_blocks(fs))
        return ffs_refuse(
            r, -EUCLEAN,
            "the device ends at %llu of the file system's %llu bytes; truncated, give "
            "it that length again",
            (unsigned long long)fs->dev->info.bytes, (unsigned long long)ffs_bytes(geo->blocks));
    if (err == -EINVAL)
        return ffs_refuse(r, err, "not a gpunvmefs file system");
    if (err == -ENOTSUP)
        return ffs_refuse(r, err, "made by a newer version: %s (unknown features 0x%llx)", why,
                          (unsigned long long)features);
    return err ? ffs_refuse(r, err, "superblock at block %llu: wrong %s; run fsck.gpunvme",
                            (unsigned long long)at, why)
               : 0;
}

static uint64_t tid_of(const struct lay_super *sb)
{
    return lay_get64(sb->head.tid);
}

/* State of the search for the newest superblock. */
struct search {
    struct ffs *fs;
    const struct lay_super *primary; /* block 0 as it was read */
    int primary_err;                 /* error of block 0, or 0 */
    struct ffs_super_found *best;
    struct lay_geometry geo; /* geometry of the best one */
    bool any;                /* true if one was found */
    struct lay_super *copy;  /* buffer */
};

/*
 * Takes the superblock at `at` if it is valid and newer than the best one so
 * far.
 */
static void super_consider(struct search *s, uint64_t at)
{
    struct lay_geometry geo;

    if (at == 0 || at >= device_blocks(s->fs) || super_read_super(s->fs, at, s->copy, &geo, &quiet))
        return;
    /*
     * The first one found identifies the file system, because copies of an
     * older one may be left.
     */
    if (s->any && !lay_same_shape(&geo, &s->geo))
        return;
    if (s->any && tid_of(s->copy) <= tid_of(&s->best->sb))
        return;
    s->best->sb = *s->copy;
    s->best->at = at;
    s->geo = geo;
    s->any = true;
}

/*
 * The first copy of a file system that does not fill the device is at the start
 * of a group.
 */
static int super_search_groups(struct search *s)
{
    uint64_t end = device_blocks(s->fs);
    int err = 0;

    for (uint64_t at = LAY_GROUP_BLOCKS; at < end && !s->any && !err; at += LAY_GROUP_BLOCKS) {
        err = ffs_interrupted(s->fs);
        if (!err)
            super_consider(s, at);
    }
    if (s->any)
        super_consider(s, s->geo.copies[1]);
    return err;
}

static int super_consider_copies(struct search *s)
{
    uint64_t places[LAY_SUPER_COPIES];

    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        super_consider(s, lay_get64(s->primary->copies[i]));
    if (!s->primary_err)
        return 0;
    lay_super_places(device_blocks(s->fs), places);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        super_consider(s, places[i]);
    return s->any ? 0 : super_search_groups(s);
}

/*
 * True if block 0 is a damaged form of the copy and not the superblock of a
 * newer file system.
 */
static bool super_is_remnant(const struct search *s)
{
    const struct lay_super *sb = s->primary;
    uint64_t at = s->best->at;

    return s->primary_err == -EIO || memcmp(sb->head.uuid, s->geo.uuid, sizeof(s->geo.uuid)) == 0 ||
           lay_get64(sb->copies[0]) == at || lay_get64(sb->copies[1]) == at;
}

/*
 * Logs which copy is used. Refuses to write over a possible newer file system.
 */
static int use_copy(const struct search *s, const struct ffs_reason *r)
{
    struct ffs *fs = s->fs;
    unsigned long long at = s->best->at;

    if (s->primary_err && !super_is_remnant(s) && !fs->opts.read_only)
        return ffs_refuse(
            r, -EUCLEAN,
            "block 0 is no sound superblock, and block %llu is a copy of another one; "
            "mount read-only to see its files",
            at);
    ffs_log(fs, LOG_WARNING, "%s: superblock %s; the copy in block %llu is used",
            fs->dev->info.name,
            s->primary_err ? "damaged" : "older than a copy: a write to it was lost", at);
    return 0;
}

int ffs_super_find(struct ffs *fs, struct ffs_super_found *found, const struct ffs_reason *r)
{
    struct lay_super *buffers = calloc(2, sizeof(*buffers));

    if (!buffers)
        return ffs_refuse(r, -ENOMEM, "out of memory");
    struct search s = {.fs = fs, .primary = &buffers[0], .best = found, .copy = &buffers[1]};
    int err = s.primary_err = super_read_super(fs, 0, &buffers[0], &s.geo, r);
    if (err == -ENOTSUP || (err == -EINVAL && !lay_super_magic(&buffers[0])))
        goto free_buffers;
    s.any = err == 0;
    found->sb = buffers[0];
    found->at = 0;
    err = super_consider_copies(&s);
    if (err == -EINTR)
        ffs_refuse(r, err, "interrupted");
    else if (!s.any)
        err = s.primary_err;
    if (!err && found->at != 0)
        err = use_copy(&s, r);
    if (!err)
        fs->geo = s.geo;
free_buffers:
    free(buffers);
    return err;
}

/*
 * Finds the newest superblock: in the log, in block 0, or the one with which
 * recovery began.
 */
static int newest(struct ffs *fs, const struct ffs_super_found *found, struct lay_super *out,
                  struct lay_geometry *geo, const struct ffs_reason *r)
{
    uint64_t features;
    const char *why = "";

    if (ffs_home_read(&fs->home, 0, out)) {
        if (lay_check_super(out, 0, device_blocks(fs), geo, &features, &why))
            return ffs_refuse(r, -EUCLEAN, "superblock in the journal: wrong %s; run fsck.gpunvme",
                              why);
        return 0;
    }
    if (!super_read_super(fs, 0, out, geo, &quiet) && tid_of(out) >= tid_of(&found->sb))
        return 0;
    *out = found->sb;
    lay_head_init(&out->head, LAY_MAGIC_SUPER, fs->geo.uuid, 0, 0);
    *geo = fs->geo;
    return 0;
}

/*
 * Checks that the superblock matches the journal's header and last transaction.
 */
static int check_age(struct ffs *fs, const struct lay_super *sb, const struct ffs_reason *r)
{
    const char *what;

    if (tid_of(sb) < fs->journal.super_tid)
        what = "superblock older than the journal: a write to it was lost";
    else if (tid_of(sb) > atomic_load(&fs->journal.committed))
        what = "journal older than the superblock: a write to it was lost";
    else
        return 0;
    if (!fs->opts.read_only)
        return ffs_refuse(r, -EUCLEAN, "%s; run fsck.gpunvme", what);
    ffs_log(fs, LOG_ERR, "%s: %s; shown as it is", fs->dev->info.name, what);
    fs->sums.stale = true;
    return 0;
}

int ffs_set_label(struct ffs *fs, const char *label)
{
    size_t len = strlen(label);
    struct ffs_tx *tx;

    if (!lay_label_ok(label, len))
        return -EINVAL;
    int err = ffs_tx_begin(fs, 1, &tx);
    if (err)
        return err;
    err = ffs_tx_dirty(tx, fs->super);
    if (!err) {
        memset(ffs_super(fs)->label, 0, sizeof(ffs_super(fs)->label));
        memcpy(ffs_super(fs)->label, label, len);
    }
    return ffs_tx_finish(tx, err);
}

int ffs_super_settle(struct ffs *fs, const struct ffs_super_found *found, struct lay_super *out,
                     const struct ffs_reason *r)
{
    struct lay_geometry geo;
    int err = newest(fs, found, out, &geo, r);

    if (err)
        return err;
    /*
     * Memory was allocated for the first geometry, and a crafted image may
     * describe another one here.
     */
    if (!lay_same_shape(&geo, &fs->geo))
        return ffs_refuse(r, -EUCLEAN, "superblocks contradict each other; run fsck.gpunvme");
    fs->geo = geo;
    return check_age(fs, out, r);
}

void ffs_statfs(struct ffs *fs, struct ffs_statfs *out)
{
    memset(out, 0, sizeof(*out));
    ffs_meta_read(fs);
    out->blocks = fs->geo.blocks;
    out->free_blocks = ffs_free_blocks(fs);
    out->inodes = lay_get64(ffs_super(fs)->inodes);
    memcpy(out->label, ffs_super(fs)->label, sizeof(out->label));
    ffs_meta_done(fs);
    memcpy(out->uuid, fs->geo.uuid, sizeof(out->uuid));
    out->read_only = ffs_writable(fs) != 0;
    out->failed = ffs_health(fs) & FFS_FAILED;
    out->data_csum = ffs_has_sums(&fs->geo);
}
