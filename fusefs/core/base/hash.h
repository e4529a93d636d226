/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Hashing of block addresses.
 *
 * The addresses come from the image, so the function must not be known when the image is made:
 * multiply-shift with a random odd key is 2-universal, which bounds the expected length of a chain
 * for every set of addresses.
 */
#ifndef FUSEFS_CORE_BASE_HASH_H
#define FUSEFS_CORE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct ffs_hash {
    uint64_t key;
    unsigned shift;
};

/* For 2^bits buckets, 1 to 63 bits. */
void ffs_hash_init(struct ffs_hash *hash, unsigned bits);

static inline size_t ffs_hash_of(const struct ffs_hash *hash, uint64_t block)
{
    return (size_t)(block * hash->key >> hash->shift);
}

#endif
