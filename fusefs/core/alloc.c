/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The allocator: the choice of blocks, and the bitmaps on disk.
 *
 * Next fit near a goal: a range that starts at the goal itself extends the existing one; else the
 * first range long enough after it; else the longest of the groups searched. No range crosses a
 * group.
 */
#include "fusefs/core/alloc.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/state.h"
#include "fusefs/core/tx.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bitmaps are used as words in place");

/* Groups looked at for a range of the full length once one that would do is known. */
#define LOOK_FURTHER 8u

int ffs_alloc_init(struct ffs *fs)
{
    struct ffs_alloc *a = &fs->alloc;

    a->groups = calloc(lay_groups(&fs->geo), sizeof(*a->groups));
    if (!a->groups)
        return -ENOMEM;
    for (uint64_t g = 0; g < lay_groups(&fs->geo); g++)
        a->groups[g].free = a->groups[g].longest = LAY_GROUP_BLOCKS;
    uint64_t reserve = fs->geo.blocks / 256;
    a->reserve = reserve < 32 ? 32 : reserve > 1024 ? 1024 : reserve;
    pthread_mutex_init(&a->lock, NULL);
    return 0;
}

void ffs_alloc_destroy(struct ffs *fs)
{
    struct ffs_alloc *a = &fs->alloc;

    if (!a->groups)
        return;
    for (uint64_t g = 0; g < lay_groups(&fs->geo); g++)
        free(a->groups[g].map);
    free(a->groups);
    a->groups = NULL;
    while (a->pins) {
        struct ffs_pin *next = a->pins->next;
        free(a->pins);
        a->pins = next;
    }
    ffs_ranges_free(&a->deferred);
    pthread_mutex_destroy(&a->lock);
}

/* The bitmap block of a group; its map is loaded on return. In a handle. */
static int get_bitmap(struct ffs *fs, uint64_t group, struct ffs_buf **out)
{
    struct ffs_group *g = &fs->alloc.groups[group];
    struct ffs_expect expect = {.magic = LAY_MAGIC_BITMAP, .index = group};
    int err = ffs_section_check(fs, group);

    if (!err)
        err = ffs_buf_get(fs, fs->geo.bitmap_start + group, &expect, out);
    /* Only handles set `map`, and ffs.meta admits one at a time. */
    if (err || g->map)
        return err;

    const struct lay_bitmap *bm = (*out)->data;
    uint64_t *map = malloc(FFS_GROUP_WORDS * sizeof(*map));
    if (!map) {
        ffs_buf_put(*out);
        return -ENOMEM;
    }
    memcpy(map, bm->bits, FFS_GROUP_WORDS * sizeof(*map));
    pthread_mutex_lock(&fs->alloc.lock);
    g->map = map;
    g->free = g->longest = lay_get32(bm->free);
    pthread_mutex_unlock(&fs->alloc.lock);
    return 0;
}

int ffs_alloc_load(struct ffs *fs, uint64_t group)
{
    struct ffs_buf *buf;
    int err = get_bitmap(fs, group, &buf);

    if (!err)
        ffs_buf_put(buf);
    return err;
}

struct search {
    uint64_t goal;
    uint32_t min, want;
    unsigned align;
    uint64_t best; /* address */
    uint32_t len;  /* 0: nothing yet */
};

static void consider(struct search *s, uint64_t group, struct ffs_found found)
{
    if (found.len >= s->min && found.len > s->len) {
        s->best = group * LAY_GROUP_BLOCKS + found.bit;
        s->len = found.len;
    }
}

/* The group of the goal: at the goal itself, after it, anywhere. alloc.lock is held. */
static void search_first(struct ffs *fs, uint64_t group, struct search *s)
{
    struct ffs_group *g = &fs->alloc.groups[group];
    uint32_t from = (uint32_t)(s->goal % LAY_GROUP_BLOCKS);
    uint32_t to = from + s->want < LAY_GROUP_BLOCKS ? from + s->want : LAY_GROUP_BLOCKS;
    struct ffs_found at = {from, 0};

    if (from % s->align == 0)
        at.len = ffs_map_zeros(g->map, from, to) / s->align * s->align;
    consider(s, group, at);
    if (s->len > 0)
        return;
    consider(s, group, ffs_map_find(g->map, from, LAY_GROUP_BLOCKS, s->want, s->align));
    if (s->len < s->want)
        consider(s, group, ffs_map_find(g->map, 0, LAY_GROUP_BLOCKS, s->want, s->align));
}

static void search_group(struct ffs *fs, uint64_t group, struct search *s)
{
    struct ffs_group *g = &fs->alloc.groups[group];
    struct ffs_found found = ffs_map_find(g->map, 0, LAY_GROUP_BLOCKS, s->want, s->align);

    if (found.len < s->want && s->align == 1)
        g->longest = found.len;
    consider(s, group, found);
}

/* Could the group hold a better range than the best one found? alloc.lock is held. */
static bool promising(const struct ffs_group *g, const struct search *s)
{
    return g->free >= s->min && g->longest >= s->min && g->longest > s->len;
}

static int look_at(struct ffs *fs, uint64_t group, bool first, struct search *s)
{
    struct ffs_alloc *a = &fs->alloc;
    struct ffs_buf *buf;

    pthread_mutex_lock(&a->lock);
    bool worth = promising(&a->groups[group], s);
    pthread_mutex_unlock(&a->lock);
    if (!worth)
        return 0;
    int err = get_bitmap(fs, group, &buf);
    if (err)
        return err;
    pthread_mutex_lock(&a->lock);
    if (promising(&a->groups[group], s)) {
        if (first)
            search_first(fs, group, s);
        else
            search_group(fs, group, s);
    }
    pthread_mutex_unlock(&a->lock);
    ffs_buf_put(buf);
    return 0;
}

/* From the group of the goal on; `by_hints` leaves out sections that are said to be full. */
static int search_all(struct ffs *fs, struct search *s, bool by_hints)
{
    uint64_t groups = lay_groups(&fs->geo);
    uint64_t start = s->goal / LAY_GROUP_BLOCKS;
    unsigned further = 0;

    for (uint64_t i = 0; i < groups && s->len < s->want; i++) {
        uint64_t group = (start + i) % groups;
        if (by_hints && ffs_section_is_full(fs, group, s->min))
            continue;
        int err = look_at(fs, group, i == 0, s);
        if (err)
            return err;
        if (s->len > 0 && (i == 0 || ++further >= LOOK_FURTHER))
            break;
    }
    return 0;
}

/* Hints may be wrong: an older program, or a repair, leaves them as they were. */
static int search(struct ffs *fs, struct search *s)
{
    int err = search_all(fs, s, true);

    if (!err && s->len == 0)
        err = search_all(fs, s, false);
    return err ? err : s->len > 0 ? 0 : -ENOSPC;
}

/* Changes bitmap and counters for a range in one group; -EUCLEAN when it is not as `take` needs. */
static int change(struct ffs_tx *tx, uint64_t block, uint32_t len, bool take)
{
    struct ffs *fs = tx->fs;
    uint64_t group = block / LAY_GROUP_BLOCKS;
    uint32_t bit = (uint32_t)(block % LAY_GROUP_BLOCKS);
    struct ffs_buf *buf;
    int err = get_bitmap(fs, group, &buf);

    if (err)
        return err;
    struct lay_bitmap *bm = buf->data;
    struct lay_super *sb = ffs_super(fs);
    uint64_t *bits = (uint64_t *)(void *)bm->bits;

    if (!ffs_map_all(bits, bit, len, !take)) {
        err = ffs_corrupt(fs, block, 0,
                          take ? "in use, but about to be given out"
                               : "freed, but free in the bitmap already");
        goto put;
    }
    err = ffs_tx_dirty(tx, buf);
    if (!err)
        err = ffs_tx_dirty(tx, fs->super);
    if (err)
        goto put;
    uint32_t free_bits = lay_get32(bm->free);
    uint64_t free_blocks = lay_get64(sb->free_blocks);
    if (take)
        ffs_map_set(bits, bit, len);
    else
        ffs_map_clear(bits, bit, len);
    bm->free = lay_put32(take ? free_bits - len : free_bits + len);
    sb->free_blocks = lay_put64(take ? free_blocks - len : free_blocks + len);
    ffs_section_changed(fs, bm, group);
put:
    ffs_buf_put(buf);
    return err;
}

/* The part of a range that lies in the group of its first block. */
static uint32_t in_group(uint64_t block, uint64_t len)
{
    uint64_t left = LAY_GROUP_BLOCKS - block % LAY_GROUP_BLOCKS;

    return (uint32_t)(len < left ? len : left);
}

/* The sections of a range have more free blocks (sign 1), or fewer (-1). */
static void count_range(struct ffs *fs, const struct ffs_range *r, int sign)
{
    for (uint64_t done = 0; done < r->len;) {
        int64_t part = in_group(r->block + done, r->len - done);

        ffs_section_count(fs, (r->block + done) / LAY_GROUP_BLOCKS, sign < 0 ? -part : part);
        done += (uint64_t)part;
    }
}

/* In a handle that has changed the bitmaps of the range, and has the superblock dirty. */
static void count_and_hint(struct ffs *fs, const struct ffs_range *r, int sign)
{
    count_range(fs, r, sign);
    for (uint64_t done = 0; done < r->len;) {
        ffs_section_hint(fs, (r->block + done) / LAY_GROUP_BLOCKS);
        done += in_group(r->block + done, r->len - done);
    }
}

static int take(struct ffs_tx *tx, uint64_t block, uint32_t len)
{
    struct ffs_alloc *a = &tx->fs->alloc;
    struct ffs_group *g = &a->groups[block / LAY_GROUP_BLOCKS];
    int err = ffs_ranges_reserve(&tx->allocated, 1);

    if (!err)
        err = change(tx, block, len, true);
    if (err)
        return err;
    ffs_ranges_add(&tx->allocated, block, len);
    count_and_hint(tx->fs, &(struct ffs_range){block, len}, -1);
    pthread_mutex_lock(&a->lock);
    ffs_map_set(g->map, (uint32_t)(block % LAY_GROUP_BLOCKS), len);
    g->free -= len;
    pthread_mutex_unlock(&a->lock);
    return 0;
}

/* Blocks that this handle may still take, with `keep` left for other handles. */
static uint64_t available(struct ffs_tx *tx, uint64_t keep)
{
    struct ffs_alloc *a = &tx->fs->alloc;
    uint64_t free_blocks = lay_get64(ffs_super(tx->fs)->free_blocks);

    if (tx->use_reserve)
        keep = 0;
    pthread_mutex_lock(&a->lock);
    keep += a->busy;
    pthread_mutex_unlock(&a->lock);
    return free_blocks > keep ? free_blocks - keep : 0;
}

/* Blocks that a commit, running or under way, will make free are worth waiting for. */
static int no_space(struct ffs *fs)
{
    struct ffs_alloc *a = &fs->alloc;
    uint64_t pinned = 0;

    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->deferred.n; i++)
        pinned += a->deferred.v[i].len;
    a->starved = a->busy > pinned;
    pthread_mutex_unlock(&a->lock);
    return -ENOSPC;
}

static int alloc_range(struct ffs_tx *tx, struct search *s, uint64_t max, uint64_t keep)
{
    struct ffs *fs = tx->fs;
    uint64_t left = available(tx, keep);
    uint64_t want = max < left ? max : left;

    if (want > LAY_GROUP_BLOCKS)
        want = LAY_GROUP_BLOCKS;
    s->want = (uint32_t)(want / s->align * s->align);
    if (s->want < s->min)
        return no_space(fs);
    int err = search(fs, s);
    if (err)
        return err == -ENOSPC ? no_space(fs) : err;
    return take(tx, s->best, s->len);
}

int ffs_alloc(struct ffs_tx *tx, uint64_t goal, uint64_t min, uint64_t max, unsigned align,
              uint64_t *block, uint64_t *len)
{
    struct ffs_alloc *a = &tx->fs->alloc;

    assert(min > 0 && min <= max && (align == 1 || align == LAY_GPU_ALIGN));
    if (min > LAY_GROUP_BLOCKS)
        return -ENOSPC;
    uint64_t least = (min + align - 1) / align * align;
    bool anywhere = goal == 0 || goal >= tx->fs->geo.blocks;
    struct search s = {.goal = anywhere ? a->cursor : goal, .min = (uint32_t)least, .align = align};

    int err = alloc_range(tx, &s, max < least ? least : max, a->reserve);
    if (err)
        return err;
    if (anywhere)
        a->cursor = (s.best + s.len) % tx->fs->geo.blocks;
    *block = s.best;
    *len = s.len;
    return 0;
}

int ffs_alloc_meta(struct ffs_tx *tx, uint64_t goal, uint64_t *block)
{
    struct ffs_alloc *a = &tx->fs->alloc;
    bool anywhere = goal == 0 || goal >= tx->fs->geo.blocks;
    struct search s = {.goal = anywhere ? a->meta_cursor : goal, .min = 1, .align = 1};

    /* The map of a file that is written keeps up with its data; names leave truncate its half. */
    int err = alloc_range(tx, &s, 1, a->reserve / 2);
    if (err)
        return err;
    if (anywhere)
        a->meta_cursor = (s.best + 1) % tx->fs->geo.blocks;
    *block = s.best;
    return 0;
}

int ffs_free(struct ffs_tx *tx, uint64_t block, uint64_t len)
{
    struct ffs *fs = tx->fs;

    if (!lay_range_ok(&fs->geo, block, len))
        return ffs_corrupt(fs, block, 0, "freed, but not a block for files");
    int err = ffs_ranges_reserve(&tx->freed, 1);
    if (!err)
        err = ffs_ranges_reserve(&fs->journal.running.freed, tx->freed.n + 1);
    for (uint64_t done = 0; !err && done < len;) {
        uint32_t part = in_group(block + done, len - done);
        err = change(tx, block + done, part, false);
        done += part;
    }
    if (err)
        return err;
    ffs_ranges_add(&tx->freed, block, len);
    count_and_hint(fs, &(struct ffs_range){block, len}, 1);
    pthread_mutex_lock(&fs->alloc.lock);
    fs->alloc.busy += len;
    pthread_mutex_unlock(&fs->alloc.lock);
    return 0;
}

int ffs_free_meta(struct ffs_tx *tx, uint64_t block)
{
    struct ffs *fs = tx->fs;

    if (tx->nrevoked >= LAY_JREVOKE_MAX)
        return -ENOSPC;
    int err = ffs_ranges_reserve(&tx->revoked, 1);
    if (!err)
        err = ffs_ranges_reserve(&fs->journal.running.revoked, tx->revoked.n + 1);
    if (!err)
        err = ffs_free(tx, block, 1);
    if (err)
        return err;
    ffs_ranges_add(&tx->revoked, block, 1);
    tx->nrevoked++;
    return 0;
}

void ffs_alloc_give_back(struct ffs_alloc *a, uint64_t block, uint64_t len, bool was_busy)
{
    if (was_busy)
        a->busy -= len;
    for (uint64_t done = 0; done < len;) {
        struct ffs_group *g = &a->groups[(block + done) / LAY_GROUP_BLOCKS];
        uint32_t part = in_group(block + done, len - done);
        ffs_map_clear(g->map, (uint32_t)((block + done) % LAY_GROUP_BLOCKS), part);
        g->free += part;
        g->longest = g->free;
        done += part;
    }
}

void ffs_alloc_undo(struct ffs *fs, const struct ffs_ranges *allocated,
                    const struct ffs_ranges *freed)
{
    struct ffs_alloc *a = &fs->alloc;

    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < allocated->n; i++) {
        ffs_alloc_give_back(a, allocated->v[i].block, allocated->v[i].len, false);
        count_range(fs, &allocated->v[i], 1);
    }
    for (size_t i = 0; i < freed->n; i++) {
        a->busy -= freed->v[i].len;
        count_range(fs, &freed->v[i], -1);
    }
    pthread_mutex_unlock(&a->lock);
    a->hints_behind = true; /* the superblock has the former ones again */
}

bool ffs_alloc_starved(struct ffs *fs)
{
    struct ffs_alloc *a = &fs->alloc;

    pthread_mutex_lock(&a->lock);
    bool starved = a->starved;
    a->starved = false;
    pthread_mutex_unlock(&a->lock);
    return starved;
}
