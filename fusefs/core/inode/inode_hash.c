/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Linear hashing. There are n buckets, and 2^k is the largest power of two up
 * to n. Bucket b, from 2^k on, was split off bucket b - 2^k.
 */
#include "fusefs/core/inode/inode_hash.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "support/page.h"

#define BUCKET_BYTES (FFS_INODE_BUCKETS_MAX * sizeof(struct ffs_inode *))

int ffs_inode_hash_init(struct ffs_inode_hash *hash)
{
    void *room = mmap(NULL, BUCKET_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (room == MAP_FAILED)
        return -ENOMEM;
    *hash = (struct ffs_inode_hash){.buckets = room, .count = FFS_INODE_BUCKETS_MIN};
    return 0;
}

void ffs_inode_hash_destroy(struct ffs_inode_hash *hash)
{
    munmap(hash->buckets, BUCKET_BYTES);
    hash->buckets = NULL;
}

/* Returns the bucket from which b was, or would be, split off. */
static size_t hash_origin(size_t b)
{
    return b - ((size_t)1 << (63 - __builtin_clzll(b)));
}

static struct ffs_inode **hash_bucket(const struct ffs_inode_hash *hash, uint64_t ino)
{
    uint64_t mask = ~0ull >> __builtin_clzll(hash->count); /* 2^(k+1) - 1 */
    size_t b = (ino * 0x9e3779b97f4a7c15ull >> 32) & mask;

    return &hash->buckets[b < hash->count ? b : hash_origin(b)];
}

/* Distributes a chain to the buckets that its inodes now have. */
static void hash_redistribute(struct ffs_inode_hash *hash, struct ffs_inode *chain)
{
    while (chain) {
        struct ffs_inode *inode = chain;
        struct ffs_inode **p = hash_bucket(hash, inode->ino);
        chain = inode->hash_next;
        inode->hash_next = *p;
        *p = inode;
    }
}

static void hash_grow(struct ffs_inode_hash *hash)
{
    struct ffs_inode **from = &hash->buckets[hash_origin(hash->count)], *chain = *from;

    *from = NULL;
    hash->count++;
    hash_redistribute(hash, chain);
}

static void hash_shrink(struct ffs_inode_hash *hash)
{
    struct ffs_inode **last = &hash->buckets[--hash->count], *chain = *last;

    *last = NULL;
    hash_redistribute(hash, chain);
    /*
     * The page contains no bucket any more; it will be zero when it is used
     * again.
     */
    if (hash->count * sizeof(*last) % PAGE_BYTES == 0)
        madvise(last, PAGE_BYTES, MADV_DONTNEED);
}

struct ffs_inode *ffs_inode_hash_find(const struct ffs_inode_hash *hash, uint64_t ino)
{
    struct ffs_inode *inode = *hash_bucket(hash, ino);

    while (inode && inode->ino != ino)
        inode = inode->hash_next;
    return inode;
}

void ffs_inode_hash_add(struct ffs_inode_hash *hash, struct ffs_inode *inode)
{
    assert(!inode->hashed);
    if (++hash->inodes > hash->count && hash->count < FFS_INODE_BUCKETS_MAX)
        hash_grow(hash);
    struct ffs_inode **p = hash_bucket(hash, inode->ino);
    inode->hash_next = *p;
    inode->hashed = true;
    *p = inode;
}

void ffs_inode_hash_remove(struct ffs_inode_hash *hash, struct ffs_inode *inode)
{
    struct ffs_inode **p = hash_bucket(hash, inode->ino);

    if (!inode->hashed)
        return;
    while (*p != inode)
        p = &(*p)->hash_next;
    *p = inode->hash_next;
    inode->hashed = false;
    hash->inodes--;
    /*
     * Up to two buckets are removed for one inode, so that their number keeps
     * up with that of the inodes.
     */
    for (unsigned i = 0; i < 2; i++) {
        if (hash->inodes < hash->count / 2 && hash->count > FFS_INODE_BUCKETS_MIN)
            hash_shrink(hash);
    }
}
