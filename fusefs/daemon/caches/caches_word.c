/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The bits of cache directories in an inode's word. Opening and removing each
 * use one atomic operation, which decides which of them came first.
 */
#include <errno.h>

#include "fusefs/daemon/caches/caches_internal.h"

void caches_word_set(struct ffs_inode *inode, uint32_t mask, uint32_t bits)
{
    uint32_t *word = ffs_user_word(inode);
    uint32_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST);

    while (!__atomic_compare_exchange_n(word, &old, (old & ~mask) | bits, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
        ;
}

bool caches_word_claim(struct ffs_inode *inode)
{
    uint32_t *word = ffs_user_word(inode);
    uint32_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST);

    do {
        if (old & WORD_OPENS)
            return false;
    } while (!__atomic_compare_exchange_n(word, &old, old | WORD_REMOVED, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    return true;
}

int caches_file_opened(struct ffs_inode *inode)
{
    uint32_t *word = ffs_user_word(inode);
    uint32_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    uint32_t more;

    do {
        if (old & WORD_REMOVED)
            return -ESTALE;
        more = (old & WORD_OPENS) == WORD_OPENS ? old : old + WORD_ONE_OPEN;
    } while (
        !__atomic_compare_exchange_n(word, &old, more, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return 0;
}

void caches_file_closed(struct ffs_inode *inode)
{
    uint32_t *word = ffs_user_word(inode);
    uint32_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    uint32_t less;

    do
        less = (old & WORD_OPENS) == WORD_OPENS ? old : old - WORD_ONE_OPEN;
    while (
        !__atomic_compare_exchange_n(word, &old, less, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}

bool caches_counts_use(struct ffs_inode *inode)
{
    return caches_word_cache(inode) >= 0;
}
