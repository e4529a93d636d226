/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Applies a log that an earlier repair has kept in lost+found. The user has
 * copied the file, and perhaps mended it; it is read like an image whose log
 * begins at block 0, followed by the second one if there are two.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/store.h"

struct kept {
    struct image img;
    struct lay_labels labels;
    struct lay_supers supers; /* none is sound, so the log counts */
    struct lay_super super;   /* as of the tail */
    struct log log;
};

static int kept_refuse(struct fsck *f, const char *why)
{
    f->why = why;
    return -EUCLEAN;
}

/* Reads the label and the superblock behind the log, and sets the geometry. */
static int kept_read_end(struct fsck *f, struct kept *k)
{
    struct image *img = &k->img;
    uint64_t len = f->img.geo.log_blocks, blocks = lay_logs(&f->img.geo) * len;
    struct lay_label *label = &k->labels.copies[0].label;

    if (img->device_blocks != blocks + FSCK_KEPT_MORE)
        return kept_refuse(f, "the file is no log of this file system");
    int err = image_read_raw(img, blocks, (union lay_block *)label);
    if (!err)
        err = image_read_raw(img, blocks + 1, (union lay_block *)&k->super);
    if (err)
        return err;
    if (lay_check_label(label, NULL, NULL) != 0 ||
        memcmp(label->head.uuid, f->img.geo.uuid, sizeof(label->head.uuid)) != 0 ||
        lay_get64(label->log_blocks) != len ||
        lay_check_super(&k->super, &f->img.geo, NULL, NULL) != 0)
        return kept_refuse(f, "the file is no log of this file system");
    if (lay_get64(k->super.mounts) != lay_get64(f->sb.mounts))
        return kept_refuse(f, "the file system was written by a mount since this log was kept");
    img->geo = f->img.geo;
    img->geo.log_id = lay_get64(label->log_id);
    img->log_at[0] = 0;
    img->log_at[1] = len;
    return 0;
}

/* Reads the log, of which every transaction must be whole. */
static int kept_read_log(struct fsck *f, struct kept *k)
{
    k->labels.newest = 0;
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        k->supers.errors[i] = -EUCLEAN;
    int err = replay_read(&k->img, &k->labels, &k->supers, &k->log);

    /* This finds images in the fixed areas. */
    if (!err)
        err = replay_replay(&k->img, &k->log);
    if (!err && (k->log.state != LOG_WHOLE || k->log.why))
        err = kept_refuse(f, "the log in the file is still damaged");
    return err;
}

/* Takes what a superblock of the log says, but for the state of this one. */
static void kept_take_super(struct fsck *f, const struct lay_super *sb)
{
    struct lay_super now = f->sb;

    f->sb = *sb;
    f->sb.clean_incarnation = now.clean_incarnation;
    f->sb.clean_tid = now.clean_tid;
    f->sb.clean_pos = now.clean_pos;
    /* These are the ages of what is in place. */
    f->sb.map_age = now.map_age;
    f->sb.area.bitmap_age = now.area.bitmap_age;
    f->sb.area.sums_age = now.area.sums_age;
}

/* Puts an image, unless the map does not have its segment. */
static int kept_put_image(struct fsck *f, const struct image_patch *p, union lay_block *b)
{
    uint32_t magic = lay_get32(b->head.magic);
    uint64_t places[2];
    int err = 0;

    if (p->addr == LAY_ADDR_SUPER) {
        kept_take_super(f, &b->super);
        return 0;
    }
    if (image_places(&f->img, p->addr, places) == 0)
        return 0;
    if (magic == LAY_MAGIC_ENTRIES || magic == LAY_MAGIC_MAP || magic == LAY_MAGIC_AGES)
        err = fsck_fill_ages(f, p->addr, b);
    return err ? err : store_put(f, p->addr, b);
}

/* The images are in the order of their kinds: those of the map come before those in chunks. */
static int kept_put(struct fsck *f, struct kept *k)
{
    union lay_block b;
    bool mapped = false;
    int err = 0;

    for (size_t i = 0; i < k->img.patch_count && !err; i++) {
        const struct image_patch *p = &k->img.patches[i];
        err = image_read_patch(&k->img, p, &b);
        if (!err && !mapped && lay_addr_kind(p->addr) > LAY_KIND_MAP)
            err = fsck_load_map(f);
        mapped |= lay_addr_kind(p->addr) > LAY_KIND_MAP;
        if (!err)
            err = kept_put_image(f, p, &b);
    }
    if (!err && !mapped)
        err = fsck_load_map(f);
    if (err)
        return err;
    /* The images are written even if the result needs no repair. */
    f->wanted++;
    fsck_say(f, "Journal: %zu kept transactions applied, checking the result",
             k->log.transaction_count);
    return 0;
}

int fsck_apply_kept(struct fsck *f)
{
    struct kept *k = calloc(1, sizeof(*k));
    int err = k ? bd_file_open(f->replay, BD_OPEN_READ_ONLY, 0, &k->img.dev) : -ENOMEM;

    if (err) {
        free(k);
        return err == -ENOMEM ? err : kept_refuse(f, "the file with the log cannot be opened");
    }
    k->img.device_blocks = k->img.dev->info.bytes >> LAY_BLOCK_SHIFT;
    err = kept_read_end(f, k);
    if (!err)
        err = kept_read_log(f, k);
    if (!err)
        err = kept_put(f, k);
    replay_free(&k->log);
    image_end(&k->img);
    bd_close(k->img.dev);
    free(k);
    return err;
}
