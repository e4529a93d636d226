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

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/random.h>

#include "support/clock.h"

struct ffs_hash {
    uint64_t key;
    unsigned shift;
};

/* Sets up a function for 2^bits buckets, 1 to 63 bits. */
static inline void ffs_hash_init(struct ffs_hash *hash, unsigned bits)
{
    assert(bits >= 1 && bits <= 63);
    hash->shift = 64 - bits;
    /* Early in the boot of a machine there may be no random bytes yet; a mount does not wait. */
    if (getrandom(&hash->key, sizeof(hash->key), GRND_NONBLOCK) != sizeof(hash->key))
        hash->key = now_ns() * 0x9e3779b97f4a7c15ull;
    hash->key |= 1;
}

static inline size_t ffs_hash_of(const struct ffs_hash *hash, uint64_t block)
{
    return (size_t)(block * hash->key >> hash->shift);
}

#endif
