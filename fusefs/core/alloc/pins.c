/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Freed blocks may be allocated again when the freeing transaction is durable and no pin covers
 * them. This file keeps the pins, and discards freed blocks before they become free.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"

/*
 * Stores the blocks of the segments, sorted, and returns the number of ranges. The blocks of most
 * files are sorted already; a needless qsort() would be most of the cost of a map.
 */
static size_t pin_collect(const struct ffs_segment *segments, size_t n, struct ffs_range *ranges)
{
    size_t count = 0;
    bool sorted = true;

    for (size_t i = 0; i < n; i++) {
        if (segments[i].device == FFS_HOLE || segments[i].len == 0)
            continue;
        ranges[count] = (struct ffs_range){segments[i].device >> LAY_BLOCK_SHIFT,
                                           segments[i].len >> LAY_BLOCK_SHIFT};
        sorted = sorted && (count == 0 || ranges[count - 1].block < ranges[count].block);
        count++;
    }
    if (!sorted)
        qsort(ranges, count, sizeof(*ranges), by_u64);
    return count;
}

int ffs_pin_add(struct ffs *fs, const struct ffs_segment *segments, size_t n, struct ffs_pin **out)
{
    struct ffs_alloc *a = &fs->alloc;
    struct ffs_pin *pin = malloc(sizeof(*pin) + n * sizeof(pin->ranges[0]));

    if (!pin)
        return -ENOMEM;
    pin->n = pin_collect(segments, n, pin->ranges);

    pthread_mutex_lock(&a->lock);
    LIST_INSERT_HEAD(&a->pins, pin, entry);
    pthread_mutex_unlock(&a->lock);
    *out = pin;
    return 0;
}

/*
 * Returns the index of the pin's first range that ends after `block`, or pin->n if there is none.
 */
static size_t pin_first_after(const struct ffs_pin *pin, uint64_t block)
{
    size_t lo = 0, hi = pin->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (pin->ranges[mid].block + pin->ranges[mid].len <= block)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/*
 * Returns true if `block` is pinned. Sets *len to the number of blocks from `block` on, up to
 * `end`, for which the answer is the same. The caller holds alloc.lock.
 */
static bool pin_covers(const struct ffs_alloc *a, uint64_t block, uint64_t end, uint64_t *len)
{
    uint64_t open_until = end;

    for (const struct ffs_pin *pin = LIST_FIRST(&a->pins); pin; pin = LIST_NEXT(pin, entry)) {
        size_t i = pin_first_after(pin, block);
        if (i == pin->n)
            continue;
        const struct ffs_range *r = &pin->ranges[i];
        if (r->block <= block) {
            uint64_t until = r->block + r->len;
            *len = (until < end ? until : end) - block;
            return true;
        }
        if (r->block < open_until)
            open_until = r->block;
    }
    *len = open_until - block;
    return false;
}

static_assert(LAY_GROUP_BLOCKS % LAY_SUMS_ENTRIES == 0, "a checksum block is of one group");

/* Makes the free blocks busy whose checksums are in this checksum block. */
static int pins_avoid_sums(struct ffs *fs, uint64_t index)
{
    uint64_t block = index * LAY_SUMS_ENTRIES, group = block / LAY_GROUP_BLOCKS;
    const struct ffs_found part = {(uint32_t)(block % LAY_GROUP_BLOCKS), LAY_SUMS_ENTRIES};
    struct ffs_ranges taken = {0};
    int err = ffs_alloc_keep(fs, group, part, 1, &taken);

    ffs_ranges_free(&taken);
    return err == -EUCLEAN ? 0 : err; /* nothing is allocated in a damaged section anyway */
}

void ffs_alloc_avoid(struct ffs *fs)
{
    struct ffs_alloc *a = &fs->alloc;
    uint64_t addr;

    for (; ffs_checked_nth_damaged(fs, a->avoided, &addr); a->avoided++) {
        if (lay_addr_kind(addr) == LAY_KIND_SUMS && pins_avoid_sums(fs, lay_addr_number(addr)))
            return;
    }
}

/*
 * Frees the parts of the range that no pin covers and adds the others to `kept`. The caller holds
 * alloc.lock.
 */
static void pin_release(struct ffs_alloc *a, const struct ffs_range *r, struct ffs_ranges *kept)
{
    uint64_t end = r->block + r->len;

    for (uint64_t block = r->block, len; block < end; block += len) {
        bool keep = pin_covers(a, block, end, &len);
        /*
         * If `kept` has no memory for the range, it stays busy until the next mount, which is safe.
         */
        if (!keep)
            ffs_alloc_give_back(a, block, len, true);
        else if (!ffs_ranges_reserve(kept, 1))
            ffs_ranges_add(kept, block, len);
    }
}

void ffs_alloc_release(struct ffs *fs, const struct ffs_ranges *freed)
{
    struct ffs_alloc *a = &fs->alloc;

    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < freed->n; i++)
        pin_release(a, &freed->v[i], &a->deferred);
    pthread_mutex_unlock(&a->lock);
}

void ffs_pin_drop(struct ffs *fs, struct ffs_pin *pin)
{
    struct ffs_alloc *a = &fs->alloc;
    struct ffs_ranges kept = {0};

    pthread_mutex_lock(&a->lock);
    LIST_REMOVE(pin, entry);
    for (size_t i = 0; i < a->deferred.n; i++)
        pin_release(a, &a->deferred.v[i], &kept);
    ffs_ranges_free(&a->deferred);
    a->deferred = kept;
    pthread_mutex_unlock(&a->lock);
    free(pin);
}

void ffs_trim_wait(struct ffs *fs)
{
    pthread_mutex_lock(&fs->trim_lock);
    pthread_mutex_unlock(&fs->trim_lock);
}

/* --- Discards --------------------------------------------------------------------------------- */

void ffs_set_discard(struct ffs *fs, bool discard)
{
    atomic_store(&fs->discard, discard && fs->dev->info.discards);
}

void ffs_discard_submit(struct ffs_discards *b)
{
    int err = b->n ? bd_submit(b->fs->dev, b->ios, b->n) : 0;

    if (err)
        ffs_log(b->fs, LOG_WARNING, "discard: %s", strerror(-err));
    b->n = 0;
}

void ffs_discard_add(struct ffs_discards *b, uint64_t block, uint64_t len)
{
    if (b->n == FFS_DISCARDS)
        ffs_discard_submit(b);
    b->ios[b->n++] =
        (struct bd_io){.op = BD_DISCARD, .offset = ffs_bytes(block), .len = ffs_bytes(len)};
}

/*
 * Adds the parts of a range that no pin covers. Pins of freed blocks can only be dropped meanwhile,
 * not added.
 */
static void pin_add_unpinned(struct ffs_discards *b, const struct ffs_range *r)
{
    struct ffs_alloc *a = &b->fs->alloc;
    uint64_t end = r->block + r->len;

    for (uint64_t block = r->block, len; block < end; block += len) {
        pthread_mutex_lock(&a->lock);
        bool keep = pin_covers(a, block, end, &len);
        pthread_mutex_unlock(&a->lock);
        if (!keep)
            ffs_discard_add(b, block, len);
    }
}

void ffs_discard_freed(struct ffs *fs, const struct ffs_ranges *freed)
{
    struct ffs_discards b = {.fs = fs};

    if (!atomic_load(&fs->discard))
        return;
    for (size_t i = 0; i < freed->n; i++)
        pin_add_unpinned(&b, &freed->v[i]);
    ffs_discard_submit(&b);
}
