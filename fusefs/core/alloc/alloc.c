/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Chooses blocks and changes the bitmaps on disk.
 *
 * The search is next fit near a goal. The first choice is a range that starts
 * at the goal, which extends the existing range. The second choice is the first
 * range after the goal that is long enough. The last choice is the longest
 * range of the groups searched. No range crosses a group.
 */
#include "fusefs/core/alloc/alloc.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/inode/tx.h"
#include "fusefs/core/state.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bitmaps are used as words in place");

/*
 * Number of further groups to search for a range of the full length after an
 * acceptable one has been found.
 */
#define LOOK_FURTHER 8u

int ffs_alloc_init(struct ffs *fs)
{
    struct ffs_alloc *a = &fs->alloc;

    a->groups = malloc(lay_groups(&fs->geo) * sizeof(*a->groups));
    if (!a->groups)
        return -ENOMEM;
    for (uint64_t g = 0; g < lay_groups(&fs->geo); g++)
        a->groups[g] = (struct ffs_group){
            .free = LAY_GROUP_BLOCKS, .longest = LAY_GROUP_BLOCKS, .units = FFS_GROUP_UNITS};
    atomic_store(&a->wanted, 1);
    pthread_mutex_init(&a->lock, NULL);
    pthread_mutex_init(&a->look_lock, NULL);
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
    while (!LIST_EMPTY(&a->pins)) {
        struct ffs_pin *pin = LIST_FIRST(&a->pins);
        LIST_REMOVE(pin, entry);
        free(pin);
    }
    ffs_ranges_free(&a->deferred);
    pthread_mutex_destroy(&a->lock);
    pthread_mutex_destroy(&a->look_lock);
}

/* --- Busy blocks ------------------------------------------------------------------------------ */

/* Called with alloc.lock held, for a group with a map. */
static void alloc_busy(struct ffs_alloc *a, uint64_t group, uint32_t blocks)
{
    assert(a->groups[group].map && a->groups[group].busy + blocks <= UINT16_MAX);
    a->groups[group].busy = (uint16_t)(a->groups[group].busy + blocks);
    a->busy += blocks;
}

/* Called with alloc.lock held. */
static void alloc_idle(struct ffs_alloc *a, uint64_t group, uint32_t blocks)
{
    struct ffs_group *g = &a->groups[group];

    assert(g->busy >= blocks && a->busy >= blocks);
    g->busy = (uint16_t)(g->busy - blocks);
    a->busy -= blocks;
    if (g->busy == 0) {
        free(g->map);
        g->map = NULL;
    }
}

/* Gets the bitmap block of a group. The caller has a handle. */
static int alloc_get_bitmap(struct ffs *fs, uint64_t group, struct ffs_buf **out)
{
    struct lay_expect expect = {.magic = LAY_MAGIC_BITMAP};
    int err = ffs_section_check(fs, group);

    if (err)
        return err;
    err = ffs_buf_get(fs, LAY_ADDR(LAY_KIND_BITMAP, group), &expect, out);
    if (err == -EUCLEAN)
        ffs_section_give_up(fs, group);
    return err;
}

static const uint64_t *alloc_bits_of(const struct ffs_buf *buf)
{
    return (const uint64_t *)(const void *)((const struct lay_bitmap *)buf->data)->bits;
}

/*
 * Returns the bits that show what can be allocated. Called with alloc.lock
 * held.
 */
static const uint64_t *alloc_map_of(const struct ffs_group *g, const struct ffs_buf *buf)
{
    return g->map ? g->map : alloc_bits_of(buf);
}

/* Makes blocks of the group busy, before the bitmap shows them as free. */
static int alloc_hold(struct ffs *fs, uint64_t group, const struct ffs_buf *buf, uint32_t blocks)
{
    struct ffs_alloc *a = &fs->alloc;
    struct ffs_group *g = &a->groups[group];
    uint64_t *map = malloc(FFS_GROUP_WORDS * sizeof(*map));

    if (!map)
        return -ENOMEM;
    pthread_mutex_lock(&a->lock);
    if (!g->map) {
        memcpy(map, alloc_bits_of(buf), FFS_GROUP_WORDS * sizeof(*map));
        g->map = map;
        map = NULL;
    }
    alloc_busy(a, group, blocks);
    pthread_mutex_unlock(&a->lock);
    free(map);
    return 0;
}

/* Called with alloc.lock held, for a group with a map. */
static void alloc_take_free(struct ffs_alloc *a, uint64_t group, struct ffs_found part,
                            uint32_t least, struct ffs_ranges *taken)
{
    struct ffs_group *g = &a->groups[group];
    uint32_t end = part.bit + part.len;

    for (uint32_t bit = part.bit; bit < end;) {
        uint32_t len = ffs_map_zeros(g->map, bit, end);
        if (len >= least && len > 0 && !ffs_ranges_reserve(taken, 1)) {
            ffs_ranges_add(taken, group * LAY_GROUP_BLOCKS + bit, len);
            ffs_map_set(g->map, bit, len);
            g->free = (uint16_t)(g->free - len);
            alloc_busy(a, group, len);
        }
        bit += len + 1;
    }
}

int ffs_alloc_keep(struct ffs *fs, uint64_t group, struct ffs_found part, uint32_t least,
                   struct ffs_ranges *taken)
{
    struct ffs_buf *buf;
    int err = alloc_get_bitmap(fs, group, &buf);

    if (err)
        return err;
    /* One more busy block keeps the map. */
    err = alloc_hold(fs, group, buf, 1);
    ffs_buf_put(buf);
    if (err)
        return err;
    pthread_mutex_lock(&fs->alloc.lock);
    alloc_take_free(&fs->alloc, group, part, least, taken);
    alloc_idle(&fs->alloc, group, 1);
    pthread_mutex_unlock(&fs->alloc.lock);
    return 0;
}

/* --- Search ----------------------------------------------------------------------------------- */

struct search {
    uint64_t goal;
    uint32_t min, want;
    unsigned align;
    bool patient;     /* the caller cannot try again: reads all sections if necessary */
    uint64_t best;    /* address of the best range */
    uint32_t len;     /* length of the range; 0: none found yet */
    unsigned further; /* groups searched since then */
    unsigned reads;   /* sections read */
};

static void alloc_consider(struct search *s, uint64_t group, struct ffs_found found)
{
    if (found.len >= s->min && found.len > s->len) {
        s->best = group * LAY_GROUP_BLOCKS + found.bit;
        s->len = found.len;
    }
}

/*
 * Searches the group of the goal: at the goal itself, then after it, then
 * anywhere.
 */
static void alloc_search_first(const uint64_t *map, uint64_t group, struct search *s)
{
    uint32_t from = (uint32_t)(s->goal % LAY_GROUP_BLOCKS);
    uint32_t to = from + s->want < LAY_GROUP_BLOCKS ? from + s->want : LAY_GROUP_BLOCKS;
    struct ffs_found at = {from, 0};

    if (from % s->align == 0)
        at.len = ffs_map_zeros(map, from, to) / s->align * s->align;
    alloc_consider(s, group, at);
    if (s->len > 0)
        return;
    alloc_consider(s, group, ffs_map_find(map, from, LAY_GROUP_BLOCKS, s->want, s->align));
    if (s->len < s->want)
        alloc_consider(s, group, ffs_map_find(map, 0, LAY_GROUP_BLOCKS, s->want, s->align));
}

static void alloc_search_group(struct ffs_group *g, const uint64_t *map, uint64_t group,
                               struct search *s)
{
    struct ffs_found found = ffs_map_find(map, 0, LAY_GROUP_BLOCKS, s->want, s->align);

    if (found.len < s->want && s->align == 1)
        g->longest = (uint16_t)found.len;
    if (found.len == 0 && s->align > 1)
        g->units = 0;
    alloc_consider(s, group, found);
}

/*
 * Returns true if the group may hold a better range than the best one found.
 * Called with alloc.lock held.
 */
static bool alloc_promising(const struct ffs_group *g, const struct search *s)
{
    if (s->align > 1 && g->units * LAY_GPU_ALIGN < s->min)
        return false;
    return g->free >= s->min && g->longest >= s->min && g->longest > s->len;
}

static int alloc_look_at(struct ffs *fs, uint64_t group, struct search *s)
{
    struct ffs_alloc *a = &fs->alloc;
    struct ffs_group *g = &a->groups[group];
    struct ffs_buf *buf;

    pthread_mutex_lock(&a->lock);
    bool worth = alloc_promising(g, s);
    pthread_mutex_unlock(&a->lock);
    if (!worth)
        return 0;
    int err = alloc_get_bitmap(fs, group, &buf);
    if (err)
        return err;
    pthread_mutex_lock(&a->lock);
    if (group == s->goal / LAY_GROUP_BLOCKS)
        alloc_search_first(alloc_map_of(g, buf), group, s);
    else
        alloc_search_group(g, alloc_map_of(g, buf), group, s);
    pthread_mutex_unlock(&a->lock);
    ffs_buf_put(buf);
    return 0;
}

static bool alloc_enough(const struct search *s)
{
    return s->len >= s->want || (s->len > 0 && s->further >= LOOK_FURTHER);
}

/* Searches the groups [from, to) of one section. */
static int alloc_search_section(struct ffs *fs, uint64_t from, uint64_t to, struct search *s)
{
    int err = ffs_section_check(fs, from);

    for (uint64_t g = from; g < to && !err && !alloc_enough(s); g++) {
        err = alloc_look_at(fs, g, s);
        /* A range after the goal is preferred to a longer one elsewhere. */
        if (s->len > 0)
            s->further += g == s->goal / LAY_GROUP_BLOCKS ? LOOK_FURTHER : 1;
    }
    return err;
}

/*
 * A section is read, with all its bitmaps, when it is first used. Sections that
 * have been read are searched first, then unread ones that have free blocks by
 * their hints. Hints may be wrong, because older programs and repairs do not
 * update them.
 */
enum pass { CHECKED, HINTED, ALL };

static bool alloc_in_pass(struct ffs *fs, uint64_t group, const struct search *s, enum pass pass)
{
    bool checked = fs->alloc.section_checked[group / lay_section_groups(&fs->geo)];
    bool full = ffs_section_is_full(fs, group, s->min);
    bool of_goal = group == s->goal / LAY_GROUP_BLOCKS;

    if (ffs_section_is_damaged(fs, group))
        return false;
    if (checked || (of_goal && !full))
        return pass == CHECKED && !full;
    return pass == ALL || (pass == HINTED && !full);
}

/*
 * A handle reads at most one section, because reading more would block all
 * other threads for that time.
 */
static bool alloc_may_read(struct ffs *fs, uint64_t group, struct search *s, enum pass pass)
{
    if (fs->alloc.section_checked[group / lay_section_groups(&fs->geo)] || s->patient)
        return true;
    return pass != ALL && s->reads++ == 0;
}

/* Searches from the group of the goal around to that group again. */
static int alloc_search_pass(struct ffs *fs, struct search *s, enum pass pass)
{
    uint64_t groups = lay_groups(&fs->geo), each = lay_section_groups(&fs->geo);
    uint64_t start = s->goal / LAY_GROUP_BLOCKS, from = start, done = 0;

    while (done < groups && !alloc_enough(s)) {
        uint64_t to = from - from % each + each, end = from < start ? start : groups;
        to = to < end ? to : end;
        if (alloc_in_pass(fs, from, s, pass)) {
            if (!alloc_may_read(fs, from, s, pass))
                return 0;
            int err = alloc_search_section(fs, from, to, s);
            if (err && !ffs_section_is_damaged(fs, from))
                return err;
        }
        done += to - from;
        from = to == groups ? 0 : to;
    }
    return 0;
}

static int alloc_search(struct ffs *fs, struct search *s)
{
    int err = 0;

    for (enum pass pass = CHECKED; pass <= ALL && s->len == 0 && !err; pass++)
        err = alloc_search_pass(fs, s, pass);
    return err ? err : s->len > 0 ? 0 : -ENOSPC;
}

/*
 * Changes bitmap and counters for a range in one group. Returns -EUCLEAN if the
 * bitmap is not in the state that `take` needs.
 */
static int alloc_change(struct ffs_tx *tx, uint64_t block, uint32_t len, bool take)
{
    struct ffs *fs = tx->fs;
    uint64_t group = block / LAY_GROUP_BLOCKS;
    uint32_t bit = (uint32_t)(block % LAY_GROUP_BLOCKS);
    struct ffs_buf *buf;
    int err = alloc_get_bitmap(fs, group, &buf);

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
    uint64_t free_blocks = lay_get64(sb->area.free_blocks);
    if (take)
        ffs_map_set(bits, bit, len);
    else
        ffs_map_clear(bits, bit, len);
    bm->free = lay_put32(take ? free_bits - len : free_bits + len);
    sb->area.free_blocks = lay_put64(take ? free_blocks - len : free_blocks + len);
put:
    ffs_buf_put(buf);
    return err;
}

/* Returns the length of the part that lies in the group of the first block. */
static uint32_t alloc_in_group(uint64_t block, uint64_t len)
{
    uint64_t left = LAY_GROUP_BLOCKS - block % LAY_GROUP_BLOCKS;

    return (uint32_t)(len < left ? len : left);
}

/*
 * Adds the blocks of a range to the free counts of its sections (sign 1), or
 * subtracts them (-1).
 */
static void alloc_count_range(struct ffs *fs, const struct ffs_range *r, int sign)
{
    for (uint64_t done = 0; done < r->len;) {
        int64_t part = alloc_in_group(r->block + done, r->len - done);

        ffs_section_count(fs, (r->block + done) / LAY_GROUP_BLOCKS, sign < 0 ? -part : part);
        done += (uint64_t)part;
    }
}

static int alloc_take(struct ffs_tx *tx, uint64_t block, uint32_t len)
{
    struct ffs_alloc *a = &tx->fs->alloc;
    struct ffs_group *g = &a->groups[block / LAY_GROUP_BLOCKS];
    int err = ffs_ranges_reserve(&tx->allocated, 1);

    if (!err)
        err = alloc_change(tx, block, len, true);
    if (err)
        return err;
    ffs_ranges_add(&tx->allocated, block, len);
    alloc_count_range(tx->fs, &(struct ffs_range){block, len}, -1);
    pthread_mutex_lock(&a->lock);
    if (g->map)
        ffs_map_set(g->map, (uint32_t)(block % LAY_GROUP_BLOCKS), len);
    g->free = (uint16_t)(g->free - len);
    pthread_mutex_unlock(&a->lock);
    return 0;
}

/* Returns the number of free blocks that are not busy. */
static uint64_t alloc_available(struct ffs *fs)
{
    struct ffs_alloc *a = &fs->alloc;
    uint64_t free_blocks = lay_get64(ffs_super(fs)->area.free_blocks);

    pthread_mutex_lock(&a->lock);
    uint64_t busy = a->busy;
    pthread_mutex_unlock(&a->lock);
    return free_blocks > busy ? free_blocks - busy : 0;
}

int ffs_alloc_no_space(struct ffs *fs)
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

static int alloc_range(struct ffs_tx *tx, struct search *s, uint64_t max)
{
    struct ffs *fs = tx->fs;
    uint64_t left = alloc_available(fs);
    uint64_t want = min_u64(min_u64(max, left), LAY_GROUP_BLOCKS);

    s->want = (uint32_t)(want / s->align * s->align);
    if (s->want < s->min)
        return ffs_alloc_no_space(fs);
    s->patient = tx->use_reserve;
    int err = alloc_search(fs, s);
    if (err == -ENOSPC) {
        ffs_section_want(fs, s->align);
        err = ffs_alloc_no_space(fs);
        bool may_help = fs->alloc.starved || atomic_load(&fs->alloc.wanted);
        return fs->alloc.any_damaged && !may_help ? -EUCLEAN : err;
    }
    if (!err)
        err = alloc_take(tx, s->best, s->len);
    if (!err)
        ffs_section_stock(fs);
    return err;
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

    int err = alloc_range(tx, &s, max < least ? least : max);
    if (err)
        return err;
    if (anywhere)
        a->cursor = (s.best + s.len) % tx->fs->geo.blocks;
    *block = s.best;
    *len = s.len;
    return 0;
}

/* Searches space for one place of a chunk. */
static int alloc_search_chunk(struct ffs *fs, uint64_t goal, struct search *s)
{
    uint32_t len = (uint32_t)ffs_chunk_blocks(&fs->geo);

    *s = (struct search){.goal = goal, .min = len, .want = len, .align = LAY_SEGMENT_BLOCKS};
    int err = alloc_search(fs, s);
    if (err == -ENOSPC)
        ffs_section_want(fs, s->align);
    return err;
}

static int alloc_chunk_place(struct ffs_tx *tx, uint64_t goal, uint64_t *block)
{
    struct search s;
    int err = alloc_search_chunk(tx->fs, goal, &s);

    if (!err)
        err = alloc_take(tx, s.best, s.len);
    *block = s.best;
    return err;
}

int ffs_alloc_keep_chunk(struct ffs_tx *tx, uint64_t goal, uint64_t *block)
{
    struct ffs *fs = tx->fs;
    struct ffs_ranges taken = {0};
    struct search s;
    int err = alloc_available(fs) < ffs_chunk_blocks(&fs->geo) ? -ENOSPC : 0;

    if (!err)
        err = alloc_search_chunk(fs, goal, &s);
    if (err)
        return err;
    const struct ffs_found part = {(uint32_t)(s.best % LAY_GROUP_BLOCKS), s.len};
    err = ffs_alloc_keep(fs, s.best / LAY_GROUP_BLOCKS, part, s.len, &taken);
    if (!err && taken.n == 0)
        err = -ENOMEM;
    ffs_ranges_free(&taken);
    *block = s.best;
    return err;
}

/*
 * Undoes alloc_take() of the last range that this handle has taken. The range
 * was not used, so it is free at once. A search since then may have lowered the
 * bounds of its group.
 */
static int alloc_put_back(struct ffs_tx *tx, uint64_t block, uint32_t len)
{
    struct ffs_alloc *a = &tx->fs->alloc;
    struct ffs_group *g = &a->groups[block / LAY_GROUP_BLOCKS];
    struct ffs_range *last = &tx->allocated.v[tx->allocated.n - 1];
    int err = alloc_change(tx, block, len, false);

    if (err)
        return err;
    assert(last->block + last->len == block + len);
    last->len -= len;
    tx->allocated.n -= last->len == 0;
    alloc_count_range(tx->fs, &(struct ffs_range){block, len}, 1);
    pthread_mutex_lock(&a->lock);
    if (g->map)
        ffs_map_clear(g->map, (uint32_t)(block % LAY_GROUP_BLOCKS), len);
    g->free = (uint16_t)(g->free + len);
    g->longest = g->free;
    g->units = FFS_GROUP_UNITS;
    pthread_mutex_unlock(&a->lock);
    return 0;
}

int ffs_alloc_chunk(struct ffs_tx *tx, const uint64_t *goals, unsigned n, uint64_t *blocks)
{
    uint32_t len = (uint32_t)ffs_chunk_blocks(&tx->fs->geo);
    int err = alloc_available(tx->fs) < (uint64_t)n * len ? -ENOSPC : 0, undo = 0;
    unsigned taken = 0;

    while (taken < n && !err) {
        err = alloc_chunk_place(tx, goals[taken], &blocks[taken]);
        taken += err == 0;
    }
    while (err && taken > 0 && !undo)
        undo = alloc_put_back(tx, blocks[--taken], len);
    return undo ? undo : err;
}

/*
 * Frees blocks of one group. They are busy before the bitmap shows them as
 * free.
 */
static int alloc_free_part(struct ffs_tx *tx, uint64_t block, uint32_t len)
{
    struct ffs *fs = tx->fs;
    uint64_t group = block / LAY_GROUP_BLOCKS;
    struct ffs_buf *buf;

    if (ffs_chunks_have(&fs->chunks, block, len))
        return ffs_corrupt(fs, block, 0, "freed as data, but in a chunk");
    int err = alloc_get_bitmap(fs, group, &buf);
    if (err)
        return err;
    err = alloc_hold(fs, group, buf, len);
    ffs_buf_put(buf);
    if (err)
        return err;
    err = alloc_change(tx, block, len, false);
    if (err) {
        pthread_mutex_lock(&fs->alloc.lock);
        alloc_idle(&fs->alloc, group, len);
        pthread_mutex_unlock(&fs->alloc.lock);
        return err;
    }
    ffs_ranges_add(&tx->freed, block, len);
    alloc_count_range(fs, &(struct ffs_range){block, len}, 1);
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
        uint32_t part = alloc_in_group(block + done, len - done);
        err = alloc_free_part(tx, block + done, part);
        done += part;
    }
    return err;
}

void ffs_alloc_give_back(struct ffs_alloc *a, uint64_t block, uint64_t len, bool was_busy)
{
    a->released++;
    for (uint64_t done = 0; done < len;) {
        uint64_t group = (block + done) / LAY_GROUP_BLOCKS;
        struct ffs_group *g = &a->groups[group];
        uint32_t part = alloc_in_group(block + done, len - done);
        if (g->map)
            ffs_map_clear(g->map, (uint32_t)((block + done) % LAY_GROUP_BLOCKS), part);
        if (was_busy)
            alloc_idle(a, group, part);
        g->free = (uint16_t)(g->free + part);
        g->longest = g->free;
        g->units = FFS_GROUP_UNITS;
        done += part;
    }
}

void ffs_alloc_return(struct ffs *fs, uint64_t block, uint64_t len)
{
    pthread_mutex_lock(&fs->alloc.lock);
    ffs_alloc_give_back(&fs->alloc, block, len, true);
    pthread_mutex_unlock(&fs->alloc.lock);
}

uint64_t ffs_alloc_released(struct ffs *fs)
{
    pthread_mutex_lock(&fs->alloc.lock);
    uint64_t released = fs->alloc.released;
    pthread_mutex_unlock(&fs->alloc.lock);
    return released;
}

/*
 * Marks blocks as used again after the handle that freed them was undone.
 * Called with alloc.lock held.
 */
static void alloc_still_used(struct ffs_alloc *a, const struct ffs_range *r)
{
    for (uint64_t done = 0; done < r->len;) {
        uint32_t part = alloc_in_group(r->block + done, r->len - done);
        alloc_idle(a, (r->block + done) / LAY_GROUP_BLOCKS, part);
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
        alloc_count_range(fs, &allocated->v[i], 1);
    }
    for (size_t i = 0; i < freed->n; i++) {
        alloc_still_used(a, &freed->v[i]);
        alloc_count_range(fs, &freed->v[i], -1);
    }
    pthread_mutex_unlock(&a->lock);
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
