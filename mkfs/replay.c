/* SPDX-License-Identifier: BSD-2-Clause */
/* Replays the log in memory, for fsck and dump. */
#include "mkfs/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "support/array.h"

struct replay {
    struct image *img;
    struct log *log;
    /* replay_rest(): receives the images instead of the log. */
    int (*each)(void *arg, uint64_t addr, const union lay_block *data);
    void *each_arg;
    union lay_block blocks[LAY_LOGS];
};

/* Keeps an image, and what `patch` owns. Returns 0 or -ENOMEM. */
static int replay_add_image(struct log *log, struct image_patch patch)
{
    int err = array_grow((void **)&log->images, log->image_count, sizeof(patch));

    if (err)
        return err;
    patch.order = log->image_count;
    log->images[log->image_count++] = patch;
    return 0;
}

/* Implements lay_log_calls.block. */
static int replay_block(void *arg, unsigned log, uint64_t pos, const void **block)
{
    struct replay *r = arg;
    int err = image_read_raw(r->img, r->img->log_at[log] + pos, &r->blocks[log]);

    *block = err ? NULL : &r->blocks[log];
    return err == -EIO ? 0 : err;
}

/* Implements lay_log_calls.image. */
static int replay_image(void *arg, uint64_t addr, uint64_t pos, const void *data)
{
    struct replay *r = arg;
    struct image_patch patch = {.addr = addr, .pos = pos, .tid = r->log->reader.tid};

    if (r->each)
        return r->each(r->each_arg, addr, data);
    if (data != &r->blocks[0]) {
        patch.data = malloc(sizeof(*patch.data));
        if (!patch.data)
            return -ENOMEM;
        memcpy(patch.data, data, sizeof(*patch.data));
    }
    int err = replay_add_image(r->log, patch);
    if (err)
        free(patch.data);
    return err;
}

/* Implements lay_log_calls.lacks. */
static int replay_lacks(void *arg, unsigned log, uint64_t pos)
{
    struct log *of = ((struct replay *)arg)->log;
    int err = array_grow((void **)&of->lacks, of->lack_count, sizeof(*of->lacks));

    if (!err)
        of->lacks[of->lack_count++] = (struct lay_log_lack){pos, log};
    return err;
}

static const struct lay_log_calls replay_calls = {replay_block, replay_image, replay_lacks};

/* Removes the images of a transaction that is not whole. */
static void replay_cut(struct log *log, size_t images)
{
    while (log->image_count > images)
        free(log->images[--log->image_count].data);
}

/* Adds the next transaction: 1, 0 at the end of the log, or an error. */
static int replay_transaction(struct log *log)
{
    size_t images = log->image_count;
    struct lay_log_tx tx;
    int more = lay_log_next(&log->reader, &tx);

    if (more != 1) {
        replay_cut(log, images);
        return more;
    }
    int err = array_grow((void **)&log->transactions, log->transaction_count, sizeof(tx));
    if (err)
        return err;
    log->transactions[log->transaction_count++] = tx;
    return 1;
}

/* Adds the transactions up to the newest commit, or up to a gap. */
static int replay_transactions(struct log *log)
{
    int more;

    do {
        more = replay_transaction(log);
    } while (more > 0);
    if (more != -EUCLEAN)
        return more;
    log->state = LOG_DAMAGED;
    log->why = log->reader.why;
    return 0;
}

/* Sets *clean to true if a superblock was written by a clean unmount that nothing followed. */
static int replay_is_clean(struct log *log, const struct lay_supers *supers, bool *clean)
{
    int found = 0;

    for (unsigned i = 0; i < LAY_SUPER_COPIES && found == 0; i++)
        found = supers->errors[i] ? 0 : lay_log_clean(&log->reader, &supers->copies[i]);
    *clean = found == 1;
    return found < 0 ? found : 0;
}

static int replay_begin(struct log *log, const struct lay_supers *supers)
{
    bool clean;
    int err = replay_is_clean(log, supers, &clean);

    if (err || clean) {
        log->state = LOG_CLEAN;
        return err;
    }
    err = lay_log_newest(&log->reader);
    if (err && err != -EUCLEAN)
        return err;
    log->why = err ? log->reader.why : NULL;
    if (log->reader.newest.tid == 0) {
        log->state = LOG_LOST;
        return 0;
    }
    return replay_transactions(log);
}

int replay_read(struct image *img, const struct lay_labels *labels, const struct lay_supers *supers,
                struct log *log)
{
    struct replay r = {.img = img, .log = log};

    memset(log, 0, sizeof(*log));
    lay_log_open(&log->reader, &img->geo, &lay_labels_newest(labels)->incarnation, &replay_calls,
                 &r);
    int err = replay_begin(log, supers);
    log->reader.arg = NULL;
    if (err)
        replay_free(log);
    return err;
}

void replay_free(struct log *log)
{
    replay_cut(log, 0);
    free(log->transactions);
    free(log->images);
    free(log->lacks);
    memset(log, 0, sizeof(*log));
}

/* --- Superblock ------------------------------------------------------------------------------- */

/* Finds the last image of the superblock in the log. */
static const struct image_patch *replay_last_super(const struct log *log)
{
    for (size_t i = log->image_count; i-- > 0;) {
        if (log->images[i].addr == LAY_ADDR_SUPER)
            return &log->images[i];
    }
    return NULL;
}

static const struct lay_super *replay_home_super(const struct log *log,
                                                 const struct lay_supers *supers, bool *lost)
{
    const struct lay_super *sb =
        log->state == LOG_LOST ? NULL : lay_supers_of_age(supers, log->reader.newest.super_age);

    *lost = !sb && log->state != LOG_LOST;
    return sb ? sb : lay_supers_newest(supers);
}

int replay_super(struct image *img, const struct log *log, const struct lay_supers *supers,
                 struct lay_super *super, bool *lost, const char **why)
{
    const struct image_patch *image = replay_last_super(log);
    union lay_block b;
    int err = 0;

    *lost = false;
    img->super_known = false;
    if (image) {
        err = image_read_patch(img, image, &b);
        *super = b.super;
    } else {
        const struct lay_super *home = replay_home_super(log, supers, lost);
        *why = "no superblock is the one that the log names";
        err = home ? 0 : -EUCLEAN;
        if (home)
            *super = *home;
    }
    if (!err)
        err = lay_check_super(super, &img->geo, &img->geo, why);
    img->super.super = *super;
    img->super_known = !err && !*lost && log->state != LOG_LOST;
    return err;
}

/* --- Images ----------------------------------------------------------------------------------- */

static int replay_by_addr(const void *a, const void *b)
{
    const struct image_patch *p = a, *q = b;

    if (p->addr != q->addr)
        return p->addr < q->addr ? -1 : 1;
    return p->order < q->order ? -1 : p->order > q->order;
}

/* Returns true if the image at `i` of the sorted ones is the last one of its block. */
static bool replay_counts(const struct log *log, size_t i)
{
    const struct image_patch *p = &log->images[i];

    return i + 1 == log->image_count || p[1].addr != p->addr;
}

/* Takes the image, unless it would overwrite an area of the geometry. */
static void replay_take(struct image *img, struct log *log, struct image_patch *image)
{
    if (lay_home_ok(&img->geo, image->addr)) {
        img->patches[img->patch_count++] = *image;
        image->data = NULL;
    } else {
        log->state = LOG_DAMAGED;
        log->why = "an image lies in a fixed area";
    }
}

int replay_replay(struct image *img, struct log *log)
{
    img->patches = malloc((log->image_count + 1) * sizeof(*img->patches));
    if (!img->patches)
        return -ENOMEM;
    if (log->image_count > 1)
        qsort(log->images, log->image_count, sizeof(*log->images), replay_by_addr);
    for (size_t i = 0; i < log->image_count; i++) {
        if (replay_counts(log, i))
            replay_take(img, log, &log->images[i]);
    }
    return 0;
}

/* Returns true if the final map has the segment of an image in a chunk, or may have it. */
static bool replay_is_mapped(const struct image *img, uint64_t addr)
{
    uint64_t segment = lay_addr_segment(addr);

    return lay_addr_kind(addr) != LAY_KIND_CHUNK || image_segment_block(img, segment) != LAY_NONE ||
           image_map_is_bad(img, segment);
}

void replay_drop_unmapped(struct image *img)
{
    size_t kept = 0;

    for (size_t i = 0; i < img->patch_count; i++) {
        if (replay_is_mapped(img, img->patches[i].addr))
            img->patches[kept++] = img->patches[i];
        else
            free(img->patches[i].data);
    }
    img->patch_count = kept;
    image_forget_names(img);
}

int replay_map(struct image *img, uint64_t chunks)
{
    int err = image_read_map(img, chunks);

    if (!err)
        replay_drop_unmapped(img);
    return err;
}

/* --- Behind a gap ----------------------------------------------------------------------------- */

int replay_rest(struct image *img, struct log *log,
                int (*each)(void *arg, uint64_t addr, const union lay_block *data), void *arg)
{
    struct replay r = {.img = img, .log = log, .each = each, .each_arg = arg};
    struct lay_log_tx tx;
    int found;

    log->reader.arg = &r;
    do {
        int more;
        do {
            more = lay_log_next(&log->reader, &tx);
        } while (more == 1);
        found = more == -EUCLEAN ? lay_log_skip(&log->reader) : more;
    } while (found == 1);
    log->reader.arg = NULL;
    return found;
}
