/* SPDX-License-Identifier: BSD-2-Clause */
/* Hashing of block addresses. */
#include "fusefs/core/base/hash.h"
#include "support/clock.h"

#include <assert.h>
#include <sys/random.h>
#include <time.h>

void ffs_hash_init(struct ffs_hash *hash, unsigned bits)
{
    assert(bits >= 1 && bits <= 63);
    hash->shift = 64 - bits;
    /* Early in the boot of a machine there may be no random bytes yet; a mount does not wait. */
    if (getrandom(&hash->key, sizeof(hash->key), GRND_NONBLOCK) != sizeof(hash->key))
        hash->key = now_ns() * 0x9e3779b97f4a7c15ull;
    hash->key |= 1;
}
