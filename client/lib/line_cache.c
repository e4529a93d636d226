/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens, drops and closes caches of direct files for kernels. */
#include "client/lib/line_cache.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/direct.h"
#include "client/lib/handle.h"
#include "support/minmax.h"

#define DEFAULT_LINE 4096u
#define LEAST_LINE   512u
#define MOST_LINE    65536u
#define MOST_LINES   ((uint64_t)1 << 32)

/* Returns the smallest line whose fill reads nothing else. */
static uint32_t cache_least_line(const struct leased_file *f)
{
    uint32_t least = f->device.sums.words ? GQ_SUM_BLOCK : f->d->lease.lba_size;

    return least > LEAST_LINE ? least : LEAST_LINE;
}

static int cache_check(const struct gpunvme_file *f, size_t bytes, uint32_t line)
{
    if (!f->leased)
        return gpunvme_fail(-EINVAL, "a cache needs a direct file (GPUNVME_FILE_DIRECT)%s%s",
                            f->why[0] ? ": " : "", f->why);
    uint32_t least = cache_least_line(f->leased);
    if (line < least || line > MOST_LINE || (line & (line - 1)))
        return gpunvme_fail(-EINVAL, "lines of %u bytes: not a power of two from %u to %u", line,
                            least, MOST_LINE);
    if (bytes / line == 0 || bytes / line > MOST_LINES)
        return gpunvme_fail(-EINVAL, "a cache of %zu bytes: no line of %u bytes, or too many",
                            bytes, line);
    return 0;
}

/*
 * Divides the lines among sets of at least GD_CACHE_WAYS ways, or makes one set
 * of fewer lines. The ways of each of several sets are an even number, since
 * lanes load pairs of words.
 */
static void cache_divide(struct gpunvme_device_cache *d, size_t bytes, uint32_t line)
{
    uint64_t lines = bytes / line;

    while (1u << d->line_shift < line)
        d->line_shift++;
    while (lines >> (d->set_shift + 1) >= GD_CACHE_WAYS)
        d->set_shift++;
    d->ways = (uint32_t)(lines >> d->set_shift);
    if (d->set_shift)
        d->ways &= ~1u;
    d->n_slots = (uint32_t)min_u64(GD_CACHE_SLOTS, GD_CACHE_SLOT_BYTES / line);
}

static uint64_t cache_lines_len(const struct gpunvme_device_cache *d)
{
    return ((uint64_t)d->ways << d->set_shift) << d->line_shift;
}

static const struct memory_space *cache_space(const struct gpunvme_cache *c)
{
    return &c->file->leased->d->space;
}

/*
 * Places the arrays from `at` on, those that are cleared first, and returns
 * their end.
 */
static uint64_t cache_place_all(struct gpunvme_cache *c, uint64_t at)
{
    struct gpunvme_device_cache *d = &c->device;
    uint64_t sets = (uint64_t)1 << d->set_shift, first = at;

    d->words = memory_space_place(&at, sets * d->ways + GD_CACHE_LOOKS, sizeof(*d->words));
    d->locks = memory_space_place(&at, sets, sizeof(*d->locks));
    d->slots = memory_space_place(&at, d->n_slots / 32, sizeof(*d->slots));
    d->recent = memory_space_place(&at, sets * d->ways, sizeof(*d->recent));
    c->words_len = at - first;
    d->counts = memory_space_place(&at, GD_CACHE_COUNTERS, sizeof(*d->counts));
    c->device_at = (uintptr_t)memory_space_place(&at, 1, sizeof(*d));
    return at;
}

/* Allocates the words and stores the struct for kernels. No line is valid. */
static int cache_alloc_words(struct gpunvme_cache *c)
{
    int err = memory_space_alloc(cache_space(c), cache_place_all(c, 0), &c->words_at);

    if (err)
        return err;
    (void)cache_place_all(c, c->words_at);
    c->device.generation = GD_CACHE_OFF + 1;
    return memory_space_put(cache_space(c), c->device_at, &c->device, sizeof(c->device));
}

static int cache_alloc(struct gpunvme_cache *c)
{
    struct gpunvme_device_cache *d = &c->device;
    size_t len = cache_lines_len(d) + ((size_t)d->n_slots << d->line_shift);
    int err = gpunvme_alloc(c->file, len, &c->lines);

    if (err)
        return err;
    d->lines = (uintptr_t)c->lines;
    d->slots_at = d->lines + cache_lines_len(d);
    d->file = leased_file_device(c->file->leased);
    return cache_alloc_words(c);
}

int gpunvme_cache_open(struct gpunvme_file *f, size_t bytes, uint32_t line_bytes,
                       struct gpunvme_cache **out)
{
    uint32_t line = line_bytes ? line_bytes : DEFAULT_LINE;
    int err = handle_check_process(f->g);

    if (!err)
        err = cache_check(f, bytes, line);
    if (err)
        return err;
    struct gpunvme_cache *c = calloc(1, sizeof(*c));
    if (!c)
        return gpunvme_fail(-ENOMEM, "out of memory");
    file_get(f);
    c->file = f;
    cache_divide(&c->device, bytes, line);
    err = cache_alloc(c);
    if (err) {
        gpunvme_cache_close(c);
        return err;
    }
    leased_file_add_cache(f->leased, c);
    *out = c;
    return 0;
}

void gpunvme_cache_close(struct gpunvme_cache *c)
{
    if (!c || handle_check_process(c->file->g))
        return;
    leased_file_remove_cache(c->file->leased, c);
    memory_space_free(cache_space(c), c->words_at);
    if (c->lines)
        (void)gpunvme_unregister(c->file->g, c->lines); /* the mount may no longer exist */
    file_put(c->file);
    free(c);
}

const struct gpunvme_device_cache *gpunvme_cache_device(const struct gpunvme_cache *c)
{
    return (const struct gpunvme_device_cache *)(uintptr_t)c->device_at;
}

int gpunvme_cache_set_insertion(struct gpunvme_cache *c, uint32_t insertion)
{
    int err = handle_check_process(c->file->g);

    if (err)
        return err;
    if (insertion != GPUNVME_CACHE_ALL && insertion != GPUNVME_CACHE_SECOND_TOUCH)
        return gpunvme_fail(-EINVAL, "unknown insertion %u", insertion);
    c->device.second_touch = insertion == GPUNVME_CACHE_SECOND_TOUCH;
    return memory_space_put(cache_space(c),
                            c->device_at + offsetof(struct gpunvme_device_cache, second_touch),
                            &c->device.second_touch, sizeof(c->device.second_touch));
}

int gpunvme_cache_drop(struct gpunvme_cache *c)
{
    int err = handle_check_process(c->file->g);

    return err ? err : leased_file_drop_cache(c->file->leased, c);
}

int gpunvme_cache_stats(struct gpunvme_cache *c, struct gpunvme_cache_stats *out, size_t size)
{
    const struct gpunvme_device_cache *d = &c->device;
    struct gpunvme_cache_stats all = {.bytes = cache_lines_len(d),
                                      .line_bytes = (uint64_t)1 << d->line_shift};
    struct gd_cache_counts counts[GD_CACHE_COUNTERS];
    int err = handle_check_process(c->file->g);

    if (!err)
        err = memory_space_get(cache_space(c), counts, (uintptr_t)d->counts, sizeof(counts));
    if (err)
        return err;
    for (size_t i = 0; i < GD_CACHE_COUNTERS; i++) {
        all.hits += counts[i].hits;
        all.misses += counts[i].misses;
        all.bypasses += counts[i].bypasses;
    }
    memset(out, 0, size);
    memcpy(out, &all, size < sizeof(all) ? size : sizeof(all));
    return 0;
}
