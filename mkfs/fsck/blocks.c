/* SPDX-License-Identifier: BSD-2-Clause */
/* Records which blocks belong to an object. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"

/* LAY_GROUP_BLOCKS is a multiple of 64, so no word belongs to two groups. */
static struct fsck_group *group_of(const struct fsck *f, uint64_t block)
{
    return f->groups[block / LAY_GROUP_BLOCKS];
}

/* Returns the group for a change, or NULL without memory, which the round notices. */
static struct fsck_group *make_group(struct fsck *f, uint64_t block)
{
    struct fsck_group **g = &f->groups[block / LAY_GROUP_BLOCKS];

    if (!*g)
        *g = calloc(1, sizeof(**g));
    if (!*g)
        f->no_memory = true;
    return *g;
}

static bool is_set(const uint64_t *bits, uint64_t block)
{
    return bits[block % LAY_GROUP_BLOCKS / 64] >> block % 64 & 1;
}

static void blocks_set(uint64_t *bits, uint64_t block)
{
    bits[block % LAY_GROUP_BLOCKS / 64] |= UINT64_C(1) << block % 64;
}

static void claim_block(struct fsck *f, uint64_t block, bool metadata)
{
    struct fsck_group *g = make_group(f, block);

    if (!g)
        return;
    blocks_set(g->claimed, block);
    if (metadata)
        blocks_set(g->metadata, block);
}

static void blocks_free_nominees(struct fsck *f)
{
    for (uint64_t i = 0; f->nominees && i < lay_groups(&f->img.geo); i++)
        free(f->nominees[i]);
    free(f->nominees);
    f->nominees = NULL;
}

void fsck_free_claims(struct fsck *f)
{
    blocks_free_nominees(f);
    for (uint64_t i = 0; f->groups && i < lay_groups(&f->img.geo); i++)
        free(f->groups[i]);
    free(f->groups);
    f->groups = NULL;
}

bool fsck_is_claimed(const struct fsck *f, uint64_t block)
{
    const struct fsck_group *g = group_of(f, block);

    return g && is_set(g->claimed, block);
}

bool fsck_any_claimed(const struct fsck *f, uint64_t block, uint64_t len)
{
    for (uint64_t end = block + len; block < end; block++) {
        if (fsck_is_claimed(f, block))
            return true;
    }
    return false;
}

bool fsck_is_metadata(const struct fsck *f, uint64_t block)
{
    const struct fsck_group *g = group_of(f, block);

    return g && is_set(g->metadata, block);
}

void fsck_claim_fixed(struct fsck *f, uint64_t block, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++)
        claim_block(f, block + i, true);
}

int fsck_claim_areas(struct fsck *f)
{
    const struct lay_geometry *geo = &f->img.geo;
    struct lay_range areas[LAY_AREAS];
    unsigned n = lay_areas(geo, areas);
    uint64_t groups = lay_groups(geo);

    assert(groups > 0);
    fsck_free_claims(f);
    f->groups = calloc(groups, sizeof(struct fsck_group *));
    if (!f->groups)
        return -ENOMEM;
    for (unsigned i = 0; i < n; i++)
        fsck_claim_fixed(f, areas[i].start, areas[i].len);
    return 0;
}

/* --- Nominations ------------------------------------------------------------------------------ */

int fsck_nominate(struct fsck *f, uint64_t block, uint64_t len)
{
    if (!f->nominees)
        f->nominees = calloc(lay_groups(&f->img.geo), sizeof(*f->nominees));
    if (!f->nominees)
        return -ENOMEM;
    for (uint64_t end = block + len; block < end; block++) {
        struct fsck_nominees **n = &f->nominees[block / LAY_GROUP_BLOCKS];
        if (!*n)
            *n = calloc(1, sizeof(**n));
        if (!*n)
            return -ENOMEM;
        blocks_set(is_set((*n)->once, block) ? (*n)->twice : (*n)->once, block);
    }
    return 0;
}

static const struct fsck_nominees *blocks_nominees(const struct fsck *f, uint64_t block)
{
    return f->nominees ? f->nominees[block / LAY_GROUP_BLOCKS] : NULL;
}

bool fsck_is_contested(const struct fsck *f, uint64_t block)
{
    const struct fsck_nominees *n = blocks_nominees(f, block);

    return n && is_set(n->twice, block);
}

/* --- Data ------------------------------------------------------------------------------------- */

static int report_conflict(struct fsck *f, const struct fsck_conflict *c)
{
    enum problem problem = c->metadata ? PROBLEM_BLOCK_METADATA : PROBLEM_BLOCK_TWICE;

    if (c->len == 0 ||
        !fsck_report(f, problem, NULL, "inode %" PRIu64 " block %" PRIu64, c->ino, c->block))
        return 0;
    fsck_mark(f, c->ino, FIX_MAP);
    return fsck_append(&f->conflicts, c, sizeof(*c));
}

/*
 * Sets all bits of the word that the range from `block` on needs. Returns
 * false, and sets none, if one was set already.
 */
static bool claim_word(struct fsck *f, uint64_t block, uint64_t len, uint64_t *n)
{
    uint64_t room = 64 - block % 64;

    *n = len < room ? len : room;
    uint64_t ones = *n == 64 ? UINT64_MAX : (UINT64_C(1) << *n) - 1;
    struct fsck_group *g = make_group(f, block);
    if (!g)
        return true;
    uint64_t *word = &g->claimed[block % LAY_GROUP_BLOCKS / 64];
    if (*word & ones << block % 64)
        return false;
    *word |= ones << block % 64;
    return true;
}

/* Adds a block to the open conflict, or reports that and opens another. */
static int take_block(struct fsck *f, struct fsck_conflict *c, uint64_t file_block, uint64_t block)
{
    bool metadata = fsck_is_metadata(f, block);
    int err = 0;

    if (c->len > 0 && c->block + c->len == block && c->metadata == metadata) {
        c->len++;
        return 0;
    }
    err = report_conflict(f, c);
    *c = (struct fsck_conflict){
        .ino = c->ino, .file_block = file_block, .block = block, .len = 1, .metadata = metadata};
    return err;
}

int fsck_claim_data(struct fsck *f, uint64_t ino, uint64_t file_block, uint64_t block, uint64_t len)
{
    struct fsck_conflict c = {.ino = ino};
    int err = 0;

    while (len > 0 && !err) {
        uint64_t n;
        bool all_free = claim_word(f, block, len, &n);
        for (uint64_t i = 0; i < n && !all_free && !err; i++) {
            if (fsck_is_claimed(f, block + i))
                err = take_block(f, &c, file_block + i, block + i);
            claim_block(f, block + i, false);
        }
        block += n;
        file_block += n;
        len -= n;
    }
    return err ? err : report_conflict(f, &c);
}
