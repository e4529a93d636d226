/* SPDX-License-Identifier: BSD-2-Clause */
/* Caches metadata blocks. */
#include "fusefs/core/base/cache.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/state.h"

#define DEFAULT_BYTES (64u << 20)
#define MIN_BLOCKS    16u

int ffs_cache_init(struct ffs_cache *cache, size_t bytes)
{
    size_t blocks = (bytes ? bytes : DEFAULT_BYTES) >> LAY_BLOCK_SHIFT;
    unsigned bits = 10;

    while ((size_t)1 << bits < blocks)
        bits++;
    cache->bucket_count = (size_t)1 << bits;
    cache->buckets = calloc(cache->bucket_count, sizeof(*cache->buckets));
    if (!cache->buckets)
        return -ENOMEM;
    ffs_hash_init(&cache->hash, bits);
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
    if (!cache->buckets)
        return;
    for (size_t i = 0; i < cache->bucket_count; i++) {
        struct ffs_cbuf *next;
        for (struct ffs_cbuf *cb = cache->buckets[i]; cb; cb = next) {
            next = cb->hash_next;
            cache_free_cbuf(cb);
        }
    }
    free(cache->buckets);
    cache->buckets = NULL;
    ffs_slabs_destroy(&cache->contents);
    pthread_mutex_destroy(&cache->lock);
    pthread_cond_destroy(&cache->loaded);
}

static struct ffs_cbuf **cache_bucket(struct ffs_cache *cache, uint64_t block)
{
    return &cache->buckets[ffs_hash_of(&cache->hash, block)];
}

static struct ffs_cbuf *cache_find(struct ffs_cache *cache, uint64_t block)
{
    struct ffs_cbuf *cb = *cache_bucket(cache, block);

    while (cb && cb->pub.block != block)
        cb = cb->hash_next;
    return cb;
}

static void cache_unhash(struct ffs_cache *cache, struct ffs_cbuf *cb)
{
    struct ffs_cbuf **p = cache_bucket(cache, cb->pub.block);

    while (*p != cb)
        p = &(*p)->hash_next;
    *p = cb->hash_next;
    cb->hashed = false;
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
    if (!cb->hashed) {
        cache_free_cbuf(cb);
        return;
    }
    TAILQ_INSERT_TAIL(&cache->unused, cb, unused);
    if (++cache->unused_count <= cache->unused_max)
        return;
    struct ffs_cbuf *victim = TAILQ_FIRST(&cache->unused);
    cache_unused_remove(cache, victim);
    cache_unhash(cache, victim);
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

void ffs_cache_forget(struct ffs_cbuf *cb)
{
    struct ffs_cache *cache = &cb->fs->cache;

    pthread_mutex_lock(&cache->lock);
    if (cb->hashed)
        cache_unhash(cache, cb);
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

static void cache_insert(struct ffs_cache *cache, struct ffs_cbuf *cb)
{
    struct ffs_cbuf **p = cache_bucket(cache, cb->pub.block);

    cb->hash_next = *p;
    cb->hashed = true;
    *p = cb;
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
        cache_insert(cache, cb);
    pthread_mutex_unlock(&cache->lock);
    if (exists) {
        cache_free_cbuf(cb);
        return -EEXIST;
    }
    *out = cb;
    return 0;
}

/* Checks what the format requires of a block of this kind at this place. */
static int cache_check(struct ffs *fs, const struct ffs_cbuf *cb, const struct ffs_expect *want,
                       const char **why)
{
    const struct lay_geometry *geo = &fs->geo;
    const void *data = cb->pub.data;
    uint64_t at = cb->pub.block;

    switch (want->magic) {
    case LAY_MAGIC_BITMAP:
        return lay_check_bitmap(geo, data, want->index, why);
    case LAY_MAGIC_SUMS:
        return lay_check_sums(geo, data, want->index, why);
    case LAY_MAGIC_INODES:
        return lay_check_inode_block(geo, data, want->index, at, why);
    case LAY_MAGIC_EXTENTS:
    case LAY_MAGIC_DIR:
        return lay_check_node(geo, data, want->magic, at, want->owner, want->level, want->lo,
                              want->hi, why);
    case LAY_MAGIC_XATTR:
        return lay_check_xattr_block(geo, data, at, want->owner, why);
    case LAY_MAGIC_SYMLINK:
        return lay_check_symlink_block(geo, data, at, want->owner, why);
    case LAY_MAGIC_SUPER:
        return lay_check_super(data, at, fs->dev->info.bytes >> LAY_BLOCK_SHIFT,
                               &(struct lay_geometry){0}, NULL, why);
    default:
        assert(!"a kind of block that is never cached");
        return -EUCLEAN;
    }
}

/*
 * True if a tree node is at the place that it was checked for. The ranges of a
 * level do not overlap and only a root is empty, so the first key identifies
 * the place, and no node has two parents.
 */
static bool cache_is_in_place(const struct lay_node *node, const struct ffs_expect *want)
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
static int cache_check_again(const struct ffs_cbuf *cb, const struct ffs_expect *want,
                             const char **why)
{
    const struct lay_head *head = cb->pub.data;

    *why = "block in use for something else";
    if (lay_get32(head->magic) != want->magic || lay_get64(head->owner) != want->owner)
        return -EUCLEAN;
    bool is_node = want->magic == LAY_MAGIC_EXTENTS || want->magic == LAY_MAGIC_DIR;
    return is_node && !cache_is_in_place(cb->pub.data, want) ? -EUCLEAN : 0;
}

/*
 * Initialises the head of a checksum block in memory if the block on the device
 * is all zeros, which means that it was never written.
 */
static void cache_begin_sums(struct ffs *fs, struct ffs_cbuf *cb, uint64_t index)
{
    struct lay_sums *s = cb->pub.data;

    lay_head_init(&s->head, LAY_MAGIC_SUMS, fs->geo.uuid, cb->pub.block, 0);
    s->index = lay_put64(index);
}

static int cache_read_block(struct ffs *fs, struct ffs_cbuf *cb, const struct ffs_expect *want,
                            const char **why)
{
    int err = 0;

    if (!ffs_home_read(&fs->home, cb->pub.block, cb->pub.data))
        err = bd_read(fs->dev, ffs_bytes(cb->pub.block), cb->pub.data, LAY_BLOCK_SIZE);
    if (err) {
        ffs_log(fs, 3, "block %llu: read error %d", (unsigned long long)cb->pub.block, -err);
        return -EIO;
    }
    if (want->magic == LAY_MAGIC_BITMAP)
        lay_bitmap_complete(&fs->geo, cb->pub.data, want->index);
    err = cache_check(fs, cb, want, why);
    if (!err && want->magic == LAY_MAGIC_SUMS)
        cache_begin_sums(fs, cb, want->index);
    return err;
}

/* Reads the block without the lock, then wakes its waiters. */
static int cache_load(struct ffs *fs, struct ffs_cbuf *cb, const struct ffs_expect *want,
                      const char **why)
{
    struct ffs_cache *cache = &fs->cache;
    int err = cache_read_block(fs, cb, want, why);

    pthread_mutex_lock(&cache->lock);
    cb->load = err ? FFS_LOAD_FAILED : FFS_LOADED;
    cb->error = err;
    if (err && cb->hashed)
        cache_unhash(cache, cb);
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
            cache_insert(cache, cb);
        else
            err = -ENOMEM;
    }
    pthread_mutex_unlock(&cache->lock);
    *out = cb;
    return err;
}

int ffs_buf_get(struct ffs *fs, uint64_t block, const struct ffs_expect *expect,
                struct ffs_buf **out)
{
    const char *why = "";
    struct ffs_cbuf *cb;
    bool fresh;

    if (block >= fs->geo.blocks)
        return ffs_corrupt(fs, block, expect->owner, "address past the end");
    int err = cache_find_or_insert(fs, block, &cb, &fresh);
    if (err)
        return err;
    err = fresh ? cache_load(fs, cb, expect, &why) : cache_check_again(cb, expect, &why);
    if (err) {
        ffs_buf_put(&cb->pub);
        return err == -EUCLEAN ? ffs_corrupt(fs, block, expect->owner, why) : err;
    }
    *out = &cb->pub;
    return 0;
}
