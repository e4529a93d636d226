/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Chooses the extents of maps to be rebuilt.
 *
 * Records of a block with a right checksum are used. A record of any other
 * block only nominates device blocks and yields to every sound owner. If a
 * nominated block is not in use, belongs to another object, or is nominated
 * twice, the range of the record becomes damaged. The ranges between the
 * records of a lost or unsound block become damaged too, unless the inode's
 * count of blocks proves that no record is missing.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/salvage.h"

struct plan {
    struct fsck *f;
    uint64_t ino;
    struct salvaged s;
    struct fsck_list out; /* struct lay_extent */
    uint64_t blocks;      /* of all records that were found */
    /* The checksum block that was read last; valid only if sound. */
    uint64_t index;
    union lay_block sums;
    bool sums_sound;
};

static bool plan_is_unproven(const struct lay_extent *e)
{
    return lay_get16(e->flags) & SALVAGED_UNPROVEN;
}

/* --- Proof ------------------------------------------------------------------------------------ */

/* Returns the checksum of a block's data, or LAY_NO_SUM if it has none. */
static uint32_t plan_sum_of(struct plan *p, uint64_t block)
{
    const struct lay_geometry *geo = &p->f->img.geo;
    uint64_t index = block / LAY_SUMS_ENTRIES;

    if (geo->sums_blocks == 0)
        return LAY_NO_SUM;
    if (index != p->index) {
        p->index = index;
        p->sums_sound = image_read(&p->f->img, LAY_ADDR(LAY_KIND_SUMS, index), &p->sums) == 0 &&
                        p->f->img.age != IMAGE_AGE_STALE &&
                        lay_check_sums(geo, &p->sums.sums, index, NULL) == 0;
    }
    return p->sums_sound ? lay_get32(p->sums.sums.sums[block % LAY_SUMS_ENTRIES]) : LAY_NO_SUM;
}

static bool plan_data_matches(struct plan *p, uint64_t block)
{
    union lay_block data;

    return image_read_raw(&p->f->img, block, &data) == 0 &&
           lay_data_sum(&data) == plan_sum_of(p, block);
}

/*
 * Returns true if the blocks of a record are in use, no sound owner has claimed
 * one, and no other record nominates one. Of a wrong record some may be the
 * file's, but at another place in it. A checksum that matches stands in for a
 * bitmap that is not sound.
 */
static bool plan_is_own(struct plan *p, const struct lay_extent *e)
{
    uint64_t block = lay_get64(e->block), end = block + lay_get32(e->len);

    for (; block < end; block++) {
        if (fsck_is_claimed(p->f, block) || fsck_is_contested(p->f, block))
            return false;
        const struct lay_bitmap *bm = fsck_bitmap_of(p->f, block);
        if (bm ? !fsck_is_marked(bm, block)
               : plan_sum_of(p, block) == LAY_NO_SUM || !plan_data_matches(p, block))
            return false;
    }
    return true;
}

/* Returns true if the block's data must not be read: it differs from its checksum. */
static bool plan_differs(struct plan *p, const struct lay_extent *e, uint64_t block)
{
    return !(lay_get16(e->flags) & LAY_EXTENT_UNWRITTEN) && plan_sum_of(p, block) != LAY_NO_SUM &&
           !plan_data_matches(p, block);
}

/* Adds a record whose blocks are the file's. Data that differs is damaged where it is. */
static int plan_add_own(struct plan *p, const struct lay_extent *e)
{
    uint64_t first = lay_get64(e->file_block), block = lay_get64(e->block);
    uint64_t len = lay_get32(e->len);
    const le16 differing = lay_put16(LAY_EXTENT_DAMAGED);
    int err = 0;

    fsck_claim_fixed(p->f, block, len);
    for (uint64_t i = 0, n; i < len && !err; i += n) {
        bool differs = plan_differs(p, e, block + i);
        for (n = 1; i + n < len && plan_differs(p, e, block + i + n) == differs;)
            n++;
        err = fsck_add_extent(&p->out, first + i, block + i, n, differs ? differing : e->flags);
    }
    return err;
}

static int plan_add_unproven(struct plan *p, const struct lay_extent *e)
{
    if (lay_extent_has_blocks(e) && plan_is_own(p, e))
        return plan_add_own(p, e);
    p->f->gave_up = true;
    return fsck_add_damage(&p->out, lay_get64(e->file_block), lay_get32(e->len));
}

/* --- Records ---------------------------------------------------------------------------------- */

static uint64_t plan_end_of(const struct lay_extent *e)
{
    return lay_get64(e->file_block) + lay_get32(e->len);
}

/* Removes overlaps. Records of sound blocks stay; of the others the earlier one stays. */
static void plan_drop_overlaps(struct plan *p)
{
    struct lay_extent *e = p->s.extents.items;
    size_t kept = 0;

    fsck_sort_extents(&p->s.extents);
    for (size_t i = 0; e && i < p->s.extents.count; i++) {
        bool unproven = plan_is_unproven(&e[i]);
        while (kept > 0 && plan_end_of(&e[kept - 1]) > lay_get64(e[i].file_block) && !unproven &&
               plan_is_unproven(&e[kept - 1]))
            kept--;
        if (kept == 0 || plan_end_of(&e[kept - 1]) <= lay_get64(e[i].file_block))
            e[kept++] = e[i];
    }
    p->s.extents.count = kept;
}

static int plan_add_records(struct plan *p)
{
    const struct lay_extent *e = p->s.extents.items;
    int err = 0;

    plan_drop_overlaps(p);
    for (size_t i = 0; e && i < p->s.extents.count && !err; i++) {
        p->blocks += lay_extent_has_blocks(&e[i]) ? lay_get32(e[i].len) : 0;
        err = plan_is_unproven(&e[i]) ? plan_add_unproven(p, &e[i])
                                      : fsck_append(&p->out, &e[i], sizeof(e[i]));
    }
    return err;
}

/* --- Lost ranges ------------------------------------------------------------------------------ */

/* Returns the inode's count of blocks as it was before its fields were corrected. */
static uint64_t plan_stated_blocks(const struct fsck *f, uint64_t ino,
                                   const struct lay_inode *inode)
{
    const struct fsck_doubt *doubts = f->doubts.items;

    for (size_t i = 0; i < f->doubts.count; i++) {
        if (doubts[i].ino == ino)
            return doubts[i].blocks;
    }
    return lay_get64(inode->blocks);
}

/* Adds damage where no extent is in [at, end). The first `count` extents are sorted. */
static int plan_fill(struct plan *p, uint64_t at, uint64_t end, size_t count)
{
    int err = 0;

    p->f->gave_up = true;
    for (size_t i = 0; i < count && at < end && !err; i++) {
        struct lay_extent e = ((const struct lay_extent *)p->out.items)[i];
        uint64_t first = lay_get64(e.file_block);
        if (plan_end_of(&e) <= at)
            continue;
        if (first > at)
            err = fsck_add_damage(&p->out, at, (first < end ? first : end) - at);
        at = plan_end_of(&e);
    }
    return err || at >= end ? err : fsck_add_damage(&p->out, at, end - at);
}

/* Returns true if the inode's count of blocks proves that no record is missing. */
static bool plan_is_whole(const struct plan *p, const struct lay_inode *inode)
{
    return p->blocks == plan_stated_blocks(p->f, p->ino, inode);
}

/* A file whose size is not known ends with its last extent. */
static uint64_t plan_file_end(const struct plan *p, const struct lay_inode *inode)
{
    const struct lay_extent *e = p->out.items;
    uint64_t size = lay_get64(inode->size);

    if (!(p->f->inodes[p->ino].fix & FIX_SIZE))
        return size / LAY_BLOCK_SIZE + (size % LAY_BLOCK_SIZE != 0);
    return p->out.count ? plan_end_of(&e[p->out.count - 1]) : 0;
}

static int plan_compare_range(const void *key, const void *element)
{
    uint64_t block = *(const uint64_t *)key;
    const struct salvaged_range *r = element;

    return block < r->first ? -1 : block > r->last;
}

/*
 * Returns true if a record of [first, end) may be missing; only file blocks
 * before `limit` matter.
 */
static bool plan_is_gap(const struct plan *p, uint64_t first, uint64_t end, uint64_t limit)
{
    return first < end && first < limit &&
           bsearch(&first, p->s.lost.items, p->s.lost.count, sizeof(struct salvaged_range),
                   plan_compare_range);
}

/*
 * Takes back the records without proof that border on a gap, since one of them
 * may have been moved or cut. The others continue their neighbours.
 */
static void plan_drop_suspects(struct plan *p, uint64_t limit)
{
    struct lay_extent *e = p->out.items;
    uint64_t before = 0;

    for (size_t i = 0; i < p->out.count; i++) {
        uint64_t end = plan_end_of(&e[i]), first = lay_get64(e[i].file_block);
        uint64_t after = i + 1 < p->out.count ? lay_get64(e[i + 1].file_block) : UINT64_MAX;
        bool left = before < first && plan_is_gap(p, first - 1, first, limit);
        if (plan_is_unproven(&e[i]) && (left || plan_is_gap(p, end, after, limit))) {
            p->f->gave_up = true;
            e[i].block = lay_put64(LAY_NONE);
            e[i].flags = lay_put16(LAY_EXTENT_DAMAGED);
        }
        before = end;
    }
}

static void plan_clear_flags(struct plan *p)
{
    struct lay_extent *e = p->out.items;

    for (size_t i = 0; i < p->out.count; i++)
        e[i].flags = lay_put16(lay_get16(e[i].flags) & LAY_EXTENT_FLAGS);
}

static int plan_add_lost(struct plan *p, const struct lay_inode *inode)
{
    const struct salvaged_range *lost = p->s.lost.items;
    uint64_t end = plan_file_end(p, inode);
    size_t count = p->out.count;
    bool whole = p->s.lost.count == 0 || plan_is_whole(p, inode);
    int err = 0;

    if (!whole)
        plan_drop_suspects(p, end);
    plan_clear_flags(p);
    for (size_t i = 0; i < p->s.lost.count && !whole && !err; i++) {
        uint64_t hi = lost[i].last < end ? lost[i].last + 1 : end;
        err = plan_fill(p, lost[i].first, hi, count);
    }
    fsck_sort_extents(&p->out);
    return err;
}

/* --- Plans ------------------------------------------------------------------------------------ */

int fsck_collect_extents(struct fsck *f, uint64_t ino, const struct lay_inode *inode,
                         struct salvaged *s)
{
    bool doubted = f->inodes[ino].flags & INODE_DOUBTED;
    int err = 0;

    if (lay_get16(inode->map_kind) == LAY_MAP_TREE)
        return salvage_tree(f, ino, LAY_MAGIC_EXTENTS, lay_get64(inode->map.tree.root), s);
    for (unsigned i = 0; i < lay_get16(inode->map_count) && !err; i++)
        err = salvage_add_extent(s, &inode->map.extents[i], !doubted);
    return err || !doubted ? err : salvage_add_range(s, 0, UINT64_MAX);
}

static int plan_make(void *arg, uint64_t ino, const struct lay_inode *inode)
{
    struct fsck *f = arg;

    if (f->inodes[ino].fix & FIX_CLEAR)
        return 0;
    struct plan *p = calloc(1, sizeof(*p));
    struct fsck_plan *plan = fsck_grow(&f->plans, sizeof(*plan));
    int err = p && plan ? 0 : -ENOMEM;
    if (!err) {
        p->f = f;
        p->ino = ino;
        p->index = UINT64_MAX;
        err = fsck_collect_extents(f, ino, inode, &p->s);
    }
    if (!err)
        err = plan_add_records(p);
    if (!err)
        err = plan_add_lost(p, inode);
    if (p && plan) {
        *plan = (struct fsck_plan){.ino = ino, .extents = p->out, .nodes = p->s.nodes};
        memset(&p->s.nodes, 0, sizeof(p->s.nodes));
        salvage_free(&p->s);
    }
    free(p);
    return err;
}

int fsck_plan_maps(struct fsck *f)
{
    return fsck_each_inode(f, NULL, DT_REG, FIX_MAP, plan_make, f);
}

const struct fsck_plan *fsck_find_plan(const struct fsck *f, uint64_t ino)
{
    return fsck_find(&f->plans, ino, sizeof(struct fsck_plan));
}

void fsck_forget_plans(struct fsck *f)
{
    struct fsck_plan *plans = f->plans.items;

    for (size_t i = 0; i < f->plans.count; i++) {
        free(plans[i].extents.items);
        free(plans[i].nodes.items);
    }
    f->plans.count = f->doubts.count = 0;
}
