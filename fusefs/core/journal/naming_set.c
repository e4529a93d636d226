/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The addresses of the naming blocks above the blocks in the log, for which the
 * log keeps room (R7d).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/state.h"

/* Returns the slot of an address, or the empty one where it would be. */
static size_t naming_set_find(const struct ffs_naming *s, uint64_t addr)
{
    size_t i = (size_t)(addr * 0x9e3779b97f4a7c15ull >> 32) & (s->cap - 1);

    while (s->addrs[i] != 0 && s->addrs[i] != addr)
        i = (i + 1) & (s->cap - 1);
    return i;
}

int ffs_naming_reserve(struct ffs *fs, unsigned blocks)
{
    struct ffs_naming *s = &fs->journal.naming, bigger = {.cap = s->cap ? s->cap : 256};

    while (bigger.cap < 2 * (s->n + (size_t)blocks * FFS_NAMING_DEPTH))
        bigger.cap *= 2;
    if (bigger.cap == s->cap)
        return 0;
    bigger.addrs = calloc(bigger.cap, sizeof(*bigger.addrs));
    if (!bigger.addrs)
        return -ENOMEM;
    bigger.n = s->n;
    for (size_t i = 0; i < s->cap; i++) {
        if (s->addrs[i] != 0)
            bigger.addrs[naming_set_find(&bigger, s->addrs[i])] = s->addrs[i];
    }
    free(s->addrs);
    *s = bigger;
    return 0;
}

void ffs_naming_add(struct ffs *fs, uint64_t addr)
{
    struct ffs_naming *s = &fs->journal.naming;
    unsigned index;

    while ((addr = lay_name_of(&fs->geo, addr, &index)) != LAY_NONE) {
        size_t i = naming_set_find(s, addr);
        if (s->addrs[i] == addr)
            return; /* those above it are in the set, too */
        assert(2 * s->n < s->cap);
        s->addrs[i] = addr;
        s->n++;
    }
}

void ffs_naming_note(struct ffs *fs)
{
    struct ffs_journal *j = &fs->journal;

    atomic_store(&j->owed, ffs_log_need(j->running.n + 1 + j->naming.n));
}

int ffs_naming_begin(struct ffs *fs)
{
    size_t n;
    struct ffs_aged *images = ffs_home_ages(&fs->home, &n);
    int err = images ? ffs_naming_reserve(fs, (unsigned)n) : -ENOMEM;

    for (size_t i = 0; i < n && !err; i++)
        ffs_naming_add(fs, images[i].block);
    free(images);
    ffs_naming_note(fs);
    return err;
}

void ffs_naming_clear(struct ffs *fs)
{
    struct ffs_naming *s = &fs->journal.naming;

    if (s->n > 0)
        memset(s->addrs, 0, s->cap * sizeof(*s->addrs));
    s->n = 0;
}

void ffs_naming_destroy(struct ffs *fs)
{
    free(fs->journal.naming.addrs);
    fs->journal.naming = (struct ffs_naming){.n = 0};
}
