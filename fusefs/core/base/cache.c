/* SPDX-License-Identifier: BSD-2-Clause */
/* Caches metadata blocks. */
#include "fusefs/core/base/cache.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fusefs/core/base/checked.h"
#include "fusefs/core/state.h"

#define DEFAULT_BYTES (64u << 20)
#define MIN_BLOCKS    16u

/*
 * Sets up a table with a constant number of buckets, at least `least` and one per block. The
 * addresses come from the image, so the hash function must not be known when the image is made.
 */
static int cache_table_init(struct ffs_table *table, size_t least, uint64_t blocks)
{
    while (least < blocks)
        least *= 2;
    return ffs_table_init(table, least, least, ffs_random() | 1);
}

static struct ffs_cbuf *cache_of_item(const struct ffs_item *item)
{
    return item ? (void *)((char *)item - offsetof(struct ffs_cbuf, item)) : NULL;
}

int ffs_cache_init(struct ffs_cache *cache, size_t bytes)
{
    size_t blocks = (bytes ? bytes : DEFAULT_BYTES) >> LAY_BLOCK_SHIFT;
    int err = cache_table_init(&cache->table, 1024, blocks);

    if (err)
        return err;
    TAILQ_INIT(&cache->unused);
    cache->unused_max = blocks < MIN_BLOCKS ? MIN_BLOCKS : blocks;
    ffs_slabs_init(&cache->contents, LAY_BLOCK_SIZE, LAY_BLOCK_SIZE);
    pthread_mutex_init(&cache->lock, NULL);
    pthread_cond_init(&cache->loaded, NULL);
    return 0;
}

static void cache_free_cbuf(struct ffs_cbuf *cb)
{
    ffs_slab_give(&cb->fs->cache.contents, cb->pub.data);
    free(cb);
}

void ffs_cache_destroy(struct ffs_cache *cache)
{
    struct ffs_item *next;

    if (!cache->table.buckets)
        return;
    for (struct ffs_item *item = ffs_table_next(&cache->table, NULL); item; item = next) {
        next = ffs_table_next(&cache->table, item);
        cache_free_cbuf(cache_of_item(item));
    }
    ffs_table_destroy(&cache->table);
    ffs_slabs_destroy(&cache->contents);
    pthread_mutex_destroy(&cache->lock);
    pthread_cond_destroy(&cache->loaded);
}

static struct ffs_cbuf *cache_find(struct ffs_cache *cache, uint64_t block)
{
    return cache_of_item(ffs_table_find(&cache->table, block));
}

static void cache_unused_remove(struct ffs_cache *cache, struct ffs_cbuf *cb)
{
    TAILQ_REMOVE(&cache->unused, cb, unused);
    cache->unused_count--;
}

static void cache_ref_locked(struct ffs_cache *cache, struct ffs_cbuf *cb)
{
    if (cb->refs++ == 0)
        cache_unused_remove(cache, cb);
}

static void cache_put_locked(struct ffs_cache *cache, struct ffs_cbuf *cb)
{
    assert(cb->refs > 0);
    if (--cb->refs > 0)
        return;
    if (!cb->item.in_table) {
        cache_free_cbuf(cb);
        return;
    }
    TAILQ_INSERT_TAIL(&cache->unused, cb, unused);
    if (++cache->unused_count <= cache->unused_max)
        return;
    struct ffs_cbuf *victim = TAILQ_FIRST(&cache->unused);
    cache_unused_remove(cache, victim);
    ffs_table_remove(&cache->table, &victim->item);
    cache_free_cbuf(victim);
}

void ffs_cache_ref(struct ffs_cbuf *cb)
{
    struct ffs_cache *cache = &cb->fs->cache;

    pthread_mutex_lock(&cache->lock);
    cache_ref_locked(cache, cb);
    pthread_mutex_unlock(&cache->lock);
}

void ffs_buf_put(struct ffs_buf *buf)
{
    struct ffs_cache *cache = &ffs_cbuf(buf)->fs->cache;

    pthread_mutex_lock(&cache->lock);
    cache_put_locked(cache, ffs_cbuf(buf));
    pthread_mutex_unlock(&cache->lock);
}

struct ffs_cbuf *ffs_cache_find(struct ffs *fs, uint64_t block)
{
    struct ffs_cache *cache = &fs->cache;

    pthread_mutex_lock(&cache->lock);
    struct ffs_cbuf *cb = cache_find(cache, block);
    if (cb)
        cache_ref_locked(cache, cb);
    pthread_mutex_unlock(&cache->lock);
    return cb;
}

bool ffs_cache_settled(struct ffs *fs, uint64_t block)
{
    struct ffs_cache *cache = &fs->cache;

    pthread_mutex_lock(&cache->lock);
    const struct ffs_cbuf *cb = cache_find(cache, block);
    bool used = cb && cb->refs > 0;
    pthread_mutex_unlock(&cache->lock);
    /* A commit adds the image before it drops its reference, so this order misses neither. */
    return !used && !ffs_home_has(&fs->home, block);
}

void ffs_cache_forget(struct ffs_cbuf *cb)
{
    struct ffs_cache *cache = &cb->fs->cache;

    pthread_mutex_lock(&cache->lock);
    ffs_table_remove(&cache->table, &cb->item);
    pthread_mutex_unlock(&cache->lock);
}

static struct ffs_cbuf *cache_new_cbuf(struct ffs *fs, uint64_t block)
{
    struct ffs_cbuf *cb = calloc(1, sizeof(*cb));

    if (!cb)
        return NULL;
    cb->pub.data = ffs_slab_take(&fs->cache.contents);
    if (!cb->pub.data) {
        free(cb);
        return NULL;
    }
    cb->fs = fs;
    cb->pub.block = block;
    cb->refs = 1;
    return cb;
}

int ffs_cache_create(struct ffs *fs, uint64_t block, struct ffs_cbuf **out)
{
    struct ffs_cache *cache = &fs->cache;
    struct ffs_cbuf *cb = cache_new_cbuf(fs, block);

    if (!cb)
        return -ENOMEM;
    memset(cb->pub.data, 0, LAY_BLOCK_SIZE);
    cb->load = FFS_LOADED;

    pthread_mutex_lock(&cache->lock);
    bool exists = cache_find(cache, block) != NULL;
    if (!exists)
        ffs_table_add(&cache->table, &cb->item, block);
    pthread_mutex_unlock(&cache->lock);
    if (exists) {
        cache_free_cbuf(cb);
        return -EEXIST;
    }
    *out = cb;
    return 0;
}

/*
 * Returns true if a tree node is at the place that it was checked for. The
 * ranges of a level do not overlap and only a root is empty, so the first key
 * identifies the place, and no node has two parents.
 */
static bool cache_is_in_place(const struct lay_node *node, const struct lay_expect *want)
{
    if (lay_get16(node->level) != want->level)
        return false;
    if (lay_get16(node->count) == 0)
        return want->lo == 0 && want->hi == UINT64_MAX;
    uint64_t first = lay_get64(node->u.branches[0].key); /* records also begin with their key */
    return want->level > 0 ? first == want->lo : first >= want->lo && first <= want->hi;
}

/*
 * Checks a block again that a corrupt image uses in two places, since it was
 * checked for the other one only.
 */
static int cache_check_again(const struct ffs_cbuf *cb, const struct lay_expect *want,
                             const char **why)
{
    const struct lay_head *head = cb->pub.data;

    *why = "block in use for something else";
    if (lay_get32(head->magic) != want->magic || lay_get64(head->owner) != want->owner)
        return -EUCLEAN;
    bool is_node = want->magic == LAY_MAGIC_EXTENTS || want->magic == LAY_MAGIC_DIR;
    return is_node && !cache_is_in_place(cb->pub.data, want) ? -EUCLEAN : 0;
}

int ffs_age_of(struct ffs *fs, uint64_t addr, uint32_t *age)
{
    struct ffs_buf *name;
    unsigned index;
    int err = ffs_cache_get_name(fs, addr, &name, &index);

    if (err)
        return err;
    assert(name);
    *age = lay_named_age(name->data, addr, index);
    err = name == fs->super && fs->super_is_old ? -EUCLEAN : 0;
    ffs_buf_put(name);
    return err;
}

/*
 * Reads a block from the log or from its place. A block in its place must have
 * the age that its naming block has for it. The age is not checked if the
 * naming block is damaged.
 */
static int cache_read_block(struct ffs *fs, struct ffs_cbuf *cb, const struct lay_expect *want,
                            const char **why)
{
    uint64_t at = cb->pub.block;
    uint32_t age;

    if (ffs_home_read(&fs->home, at, cb->pub.data))
        return lay_check_block(&fs->geo, at, cb->pub.data, want, why);
    int err = ffs_age_of(fs, at, &age);
    if (err && err != -EUCLEAN)
        return err;
    return ffs_checked_read(fs, at, err ? NULL : &age, cb->pub.data, want, why);
}

/* Reads the block without the lock, then wakes its waiters. */
static int cache_load(struct ffs *fs, struct ffs_cbuf *cb, const struct lay_expect *want,
                      const char **why)
{
    struct ffs_cache *cache = &fs->cache;
    int err = cache_read_block(fs, cb, want, why);

    pthread_mutex_lock(&cache->lock);
    cb->load = err ? FFS_LOAD_FAILED : FFS_LOADED;
    cb->error = err;
    if (err)
        ffs_table_remove(&cache->table, &cb->item);
    pthread_cond_broadcast(&cache->loaded);
    pthread_mutex_unlock(&cache->lock);
    return err;
}

/* Waits for the thread that reads the block; its read is bounded by the device's deadline. */
static int cache_wait_loaded(struct ffs_cache *cache, struct ffs_cbuf *cb)
{
    while (cb->load == FFS_LOADING)
        pthread_cond_wait(&cache->loaded, &cache->lock);
    return cb->load == FFS_LOADED ? 0 : cb->error;
}

/*
 * Returns the cached block after waiting for it, or a new one that the caller
 * has to load (*fresh).
 */
static int cache_find_or_insert(struct ffs *fs, uint64_t block, struct ffs_cbuf **out, bool *fresh)
{
    struct ffs_cache *cache = &fs->cache;
    int err = 0;

    pthread_mutex_lock(&cache->lock);
    struct ffs_cbuf *cb = cache_find(cache, block);
    *fresh = !cb;
    if (cb) {
        cache_ref_locked(cache, cb);
        err = cache_wait_loaded(cache, cb);
        if (err)
            cache_put_locked(cache, cb);
    } else {
        cb = cache_new_cbuf(fs, block);
        if (cb)
            ffs_table_add(&cache->table, &cb->item, block);
        else
            err = -ENOMEM;
    }
    pthread_mutex_unlock(&cache->lock);
    *out = cb;
    return err;
}

int ffs_buf_get(struct ffs *fs, uint64_t block, const struct lay_expect *expect,
                struct ffs_buf **out)
{
    const char *why = "";
    uint64_t places[FFS_PLACES];
    struct ffs_cbuf *cb;
    bool fresh;

    if (ffs_places_of(fs, block, places) == 0)
        return ffs_checked_damaged(fs, block, expect->owner, "address that does not exist");
    int err = cache_find_or_insert(fs, block, &cb, &fresh);
    if (err)
        return err;
    err = fresh ? cache_load(fs, cb, expect, &why) : cache_check_again(cb, expect, &why);
    if (!err) {
        *out = &cb->pub;
        return 0;
    }
    ffs_buf_put(&cb->pub);
    if (err != -EUCLEAN)
        return err;
    /* If a block is in use for two purposes, the changes for one purpose may be lost. */
    return fresh ? ffs_checked_damaged(fs, block, expect->owner, why)
                 : ffs_corrupt(fs, block, expect->owner, why);
}

int ffs_cache_get_name(struct ffs *fs, uint64_t addr, struct ffs_buf **name, unsigned *index)
{
    uint64_t at = lay_name_of(&fs->geo, addr, index);
    const struct lay_expect expect = {.magic = lay_magic_of(at)};

    *name = NULL;
    if (at == LAY_NONE)
        return 0;
    if (at == LAY_ADDR_SUPER) {
        ffs_cache_ref(ffs_cbuf(fs->super));
        *name = fs->super;
        return 0;
    }
    return ffs_buf_get(fs, at, &expect, name);
}

/* --- Homes ----------------------------------------------------------------------------------- */

int ffs_home_init(struct ffs_home *home, uint64_t log_blocks)
{
    int err = cache_table_init(&home->table, 256, log_blocks);

    if (!err)
        pthread_mutex_init(&home->lock, NULL);
    return err;
}

static void home_remove(struct ffs_home *home, struct ffs_image *image)
{
    ffs_table_remove(&home->table, &image->item);
    free(image);
}

static struct ffs_image *home_find(const struct ffs_home *home, uint64_t block)
{
    return (struct ffs_image *)ffs_table_find(&home->table, block); /* item is the first member */
}

static void home_drop(struct ffs_home *home, uint64_t block)
{
    struct ffs_image *image = home_find(home, block);

    if (image)
        home_remove(home, image);
}

void ffs_home_destroy(struct ffs_home *home)
{
    if (!home->table.buckets)
        return;
    ffs_home_filter(home, NULL, NULL);
    ffs_table_destroy(&home->table);
    pthread_mutex_destroy(&home->lock);
}

struct ffs_image *ffs_image_new(uint64_t block, const void *data)
{
    struct ffs_image *image = malloc(sizeof(*image) + LAY_BLOCK_SIZE);

    if (!image)
        return NULL;
    image->item = (struct ffs_item){.number = block};
    memcpy(image->data, data, LAY_BLOCK_SIZE);
    return image;
}

void ffs_home_put(struct ffs_home *home, struct ffs_image *image)
{
    pthread_mutex_lock(&home->lock);
    home_drop(home, image->item.number);
    ffs_table_add(&home->table, &image->item, image->item.number);
    pthread_mutex_unlock(&home->lock);
}

void ffs_home_drop(struct ffs_home *home, uint64_t block)
{
    pthread_mutex_lock(&home->lock);
    home_drop(home, block);
    pthread_mutex_unlock(&home->lock);
}

void ffs_home_filter(struct ffs_home *home, bool (*keep)(const struct ffs *fs, uint64_t block),
                     const struct ffs *fs)
{
    struct ffs_image *next;

    pthread_mutex_lock(&home->lock);
    for (struct ffs_image *image = ffs_home_next(home, NULL); image; image = next) {
        next = ffs_home_next(home, image);
        if (!keep || !keep(fs, image->item.number))
            home_remove(home, image);
    }
    pthread_mutex_unlock(&home->lock);
}

bool ffs_home_has(struct ffs_home *home, uint64_t block)
{
    pthread_mutex_lock(&home->lock);
    bool has = home_find(home, block) != NULL;
    pthread_mutex_unlock(&home->lock);
    return has;
}

bool ffs_home_read(struct ffs_home *home, uint64_t block, void *data)
{
    pthread_mutex_lock(&home->lock);
    const struct ffs_image *image = home_find(home, block);
    if (image)
        memcpy(data, image->data, LAY_BLOCK_SIZE);
    pthread_mutex_unlock(&home->lock);
    return image != NULL;
}

uint32_t ffs_home_age(struct ffs_home *home, uint64_t block)
{
    pthread_mutex_lock(&home->lock);
    const struct ffs_image *image = home_find(home, block);
    uint32_t age = image ? lay_age(image->data) : 0;
    pthread_mutex_unlock(&home->lock);
    return age;
}

struct ffs_aged *ffs_home_ages(struct ffs_home *home, size_t *n)
{
    pthread_mutex_lock(&home->lock);
    struct ffs_aged *ages = malloc((home->table.n + 1) * sizeof(*ages));
    const struct ffs_image *image = NULL;
    *n = 0;
    while (ages && (image = ffs_home_next(home, image)))
        ages[(*n)++] = (struct ffs_aged){image->item.number, lay_age(image->data)};
    pthread_mutex_unlock(&home->lock);
    return ages;
}

/* --- Slabs ----------------------------------------------------------------------------------- */

#define SLAB_BYTES ((size_t)256 << 10)

struct place {
    struct place *next_free;
};

struct ffs_slab {
    LIST_ENTRY(ffs_slab) entry; /* in the list of slabs with room */
    size_t used;
    size_t begun; /* places from here on have never been used */
    struct place *free;
};

/* Returns the offset of the first place in a slab. */
static size_t slab_first(const struct ffs_slabs *slabs)
{
    return (sizeof(struct ffs_slab) + slabs->align - 1) & ~(slabs->align - 1);
}

static size_t slab_places(const struct ffs_slabs *slabs)
{
    return (SLAB_BYTES - slab_first(slabs)) / slabs->bytes;
}

void ffs_slabs_init(struct ffs_slabs *slabs, size_t bytes, size_t align)
{
    assert(bytes % align == 0 && align >= sizeof(struct place));
    *slabs = (struct ffs_slabs){.bytes = bytes, .align = align};
    pthread_mutex_init(&slabs->lock, NULL);
}

static void slab_unmap(struct ffs_slabs *slabs, struct ffs_slab *s)
{
    LIST_REMOVE(s, entry);
    slabs->count--;
    munmap(s, SLAB_BYTES);
}

/* A slab that still contains objects stays mapped. */
void ffs_slabs_destroy(struct ffs_slabs *slabs)
{
    struct ffs_slab *next;

    for (struct ffs_slab *s = LIST_FIRST(&slabs->partial); s; s = next) {
        next = LIST_NEXT(s, entry);
        if (s->used == 0)
            slab_unmap(slabs, s);
    }
    pthread_mutex_destroy(&slabs->lock);
}

/* Maps twice the size and keeps the aligned half. */
static struct ffs_slab *slab_map(void)
{
    uint8_t *at =
        mmap(NULL, 2 * SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    size_t before = (SLAB_BYTES - (uintptr_t)at % SLAB_BYTES) % SLAB_BYTES;
    if (before > 0)
        munmap(at, before);
    munmap(at + before + SLAB_BYTES, SLAB_BYTES - before);
    return (struct ffs_slab *)(void *)(at + before);
}

static struct ffs_slab *slab_with_room(struct ffs_slabs *slabs)
{
    if (!LIST_EMPTY(&slabs->partial))
        return LIST_FIRST(&slabs->partial);
    struct ffs_slab *s = slab_map();
    if (!s)
        return NULL;
    LIST_INSERT_HEAD(&slabs->partial, s, entry);
    slabs->count++;
    return s;
}

#ifdef __SANITIZE_ADDRESS__

/* AddressSanitizer detects accesses to freed objects. */
void *ffs_slab_take(struct ffs_slabs *slabs)
{
    (void)slab_with_room;
    (void)slab_places;
    return aligned_alloc(slabs->align, slabs->bytes);
}

void ffs_slab_give(struct ffs_slabs *slabs, void *object)
{
    (void)slabs;
    free(object);
}

#else

static void *slab_take_from(const struct ffs_slabs *slabs, struct ffs_slab *s)
{
    struct place *p = s->free;

    s->used++;
    if (!p)
        return (uint8_t *)s + slab_first(slabs) + s->begun++ * slabs->bytes;
    s->free = p->next_free;
    return p;
}

void *ffs_slab_take(struct ffs_slabs *slabs)
{
    pthread_mutex_lock(&slabs->lock);
    struct ffs_slab *s = slab_with_room(slabs);
    void *object = s ? slab_take_from(slabs, s) : NULL;
    if (s && s->used == slab_places(slabs))
        LIST_REMOVE(s, entry);
    pthread_mutex_unlock(&slabs->lock);
    return object;
}

/*
 * The last slab is kept, so that a small number of objects does not map and
 * unmap it repeatedly.
 */
void ffs_slab_give(struct ffs_slabs *slabs, void *object)
{
    struct ffs_slab *s = (struct ffs_slab *)((uintptr_t)object & ~(uintptr_t)(SLAB_BYTES - 1));
    struct place *p = object;

    pthread_mutex_lock(&slabs->lock);
    if (s->used-- == slab_places(slabs))
        LIST_INSERT_HEAD(&slabs->partial, s, entry);
    p->next_free = s->free;
    s->free = p;
    if (s->used == 0 && slabs->count > 1)
        slab_unmap(slabs, s);
    pthread_mutex_unlock(&slabs->lock);
}

#endif
