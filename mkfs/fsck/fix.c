/* SPDX-License-Identifier: BSD-2-Clause */
/* Repairs what the passes have marked. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "mkfs/fsck/store.h"

struct attributes {
    union lay_block blocks[LAY_XATTR_BLOCKS_MAX];
    unsigned count;
    uint64_t old[LAY_XATTR_BLOCKS_MAX]; /* addresses of the chain to be replaced, each once */
    unsigned old_count;
};

static bool has_attribute(const struct attributes *a, const struct lay_xattr *x)
{
    for (unsigned i = 0; i < a->count; i++) {
        const struct lay_xattr *y = NULL;
        while ((y = lay_xattr_next(&a->blocks[i].xattr, y))) {
            if (y->name_len == x->name_len &&
                memcmp(lay_xattr_name(y), lay_xattr_name(x), x->name_len) == 0)
                return true;
        }
    }
    return false;
}

/* Returns the record if it is valid by itself, or NULL; `room` bytes are left. */
static const struct lay_xattr *valid_record(const uint8_t *bytes, size_t room)
{
    const struct lay_xattr *x = (const struct lay_xattr *)bytes;

    if (room < sizeof(*x) || x->name_len == 0 || lay_get32(x->value_len) > LAY_PAYLOAD)
        return NULL;
    size_t len = LAY_XATTR_LEN(x->name_len, lay_get32(x->value_len));
    if (len > room || lay_get16(x->len) != len || memchr(lay_xattr_name(x), 0, x->name_len))
        return NULL;
    return x;
}

static void take_records(struct attributes *a, const struct lay_xattr_block *from)
{
    struct lay_xattr_block *to = &a->blocks[a->count].xattr;
    const struct lay_xattr *x;
    uint32_t used = 0;

    memset(to, 0, sizeof(*to));
    a->count++;
    for (size_t pos = 0; (x = valid_record(from->bytes + pos, LAY_PAYLOAD - pos));
         pos += lay_get16(x->len)) {
        if (has_attribute(a, x))
            continue;
        struct lay_xattr *copy = (struct lay_xattr *)(to->bytes + used);
        memcpy(copy, x, sizeof(*x) + x->name_len + lay_get32(x->value_len));
        copy->reserved = 0;
        used += lay_get16(x->len);
        to->used = lay_put16((uint16_t)used);
        to->count = lay_put16((uint16_t)(lay_get16(to->count) + 1));
    }
    if (used == 0)
        a->count--;
}

static void attributes_note_old(struct attributes *a, uint64_t addr)
{
    for (unsigned i = 0; i < a->old_count; i++) {
        if (a->old[i] == addr)
            return;
    }
    a->old[a->old_count++] = addr;
}

static int collect_attributes(struct fsck *f, uint64_t ino, uint64_t addr, struct attributes *a)
{
    union lay_block b;

    for (unsigned i = 0; i < LAY_XATTR_BLOCKS_MAX && lay_chunk_addr_ok(&f->img.geo, addr); i++) {
        int err = image_read(&f->img, addr, &b);
        if (err)
            return err;
        if (lay_get32(b.head.magic) != LAY_MAGIC_XATTR || lay_get64(b.head.block) != addr ||
            lay_get64(b.head.owner) != ino)
            break;
        attributes_note_old(a, addr);
        take_records(a, &b.xattr);
        addr = lay_get64(b.xattr.next);
    }
    return 0;
}

static int attributes_add_parts(struct fsck_list *parts, const struct attributes *a)
{
    int err = 0;

    for (unsigned i = 0; i < a->count && !err; i++) {
        const struct lay_xattr *x = NULL;
        while (!err && (x = lay_xattr_next(&a->blocks[i].xattr, x)))
            err = fsck_add_part(parts, x);
    }
    return err;
}

/* Removes the records of large values that lack a part from a block. */
static void attributes_keep_whole(const struct fsck_list *parts, union lay_block *b)
{
    union lay_block from = *b;
    const struct lay_xattr *x = NULL;
    uint32_t used = 0, count = 0;

    memset(b->xattr.bytes, 0, sizeof(b->xattr.bytes));
    while ((x = lay_xattr_next(&from.xattr, x))) {
        if (fsck_part_is_broken(parts, x))
            continue;
        memcpy(b->xattr.bytes + used, x, lay_get16(x->len));
        used += lay_get16(x->len);
        count++;
    }
    b->xattr.used = lay_put16((uint16_t)used);
    b->xattr.count = lay_put16((uint16_t)count);
}

static int attributes_drop_broken(struct attributes *a)
{
    struct fsck_list parts = {0};
    int err = attributes_add_parts(&parts, a);

    if (!err)
        fsck_judge_parts(&parts);
    for (unsigned i = 0; i < a->count && !err; i++)
        attributes_keep_whole(&parts, &a->blocks[i]);
    free(parts.items);
    return err;
}

/*
 * Writes the blocks from the last to the first, since each names the next. A
 * block for which no other is free keeps an old one, in a transaction. The new
 * chain is no longer than the old one.
 */
static int attributes_put_attributes(struct fsck *f, uint64_t ino, struct attributes *a,
                                     uint64_t *first)
{
    uint64_t next = 0, addr;

    for (unsigned i = a->count; i-- > 0;) {
        int err = fsck_alloc_meta(f, &addr);
        if (err)
            return err;
        bool old = addr == 0;
        assert(a->count <= a->old_count);
        addr = old ? a->old[i] : addr;
        lay_head_init(&a->blocks[i].head, LAY_MAGIC_XATTR, f->img.geo.uuid, addr, ino);
        a->blocks[i].xattr.next = lay_put64(next);
        err = old ? store_put(f, addr, &a->blocks[i]) : store_put_new(f, addr, &a->blocks[i]);
        if (err)
            return err;
        next = addr;
    }
    *first = next;
    return 0;
}

static int fsck_rebuild_xattrs(struct fsck *f, uint64_t ino, struct lay_inode *inode)
{
    struct attributes *a = calloc(1, sizeof(*a));
    uint64_t first = 0;

    if (!a)
        return -ENOMEM;
    int err = collect_attributes(f, ino, lay_get64(inode->xattr), a);
    if (!err)
        err = attributes_drop_broken(a);
    if (!err)
        err = attributes_put_attributes(f, ino, a, &first);
    if (!err)
        inode->xattr = lay_put64(first);
    free(a);
    return err;
}

/*
 * Holds the heads of the free list and the orphan list. Both lists are linked
 * from the last inode to the first.
 */
struct lists {
    uint64_t free_block, orphan;
};

static bool stays_orphan(const struct inode_info *info)
{
    if (info->type == 0 || info->fix & (FIX_LIVE | FIX_CLEAR | FIX_ATTACH))
        return false;
    return info->nlink == 0 || info->flags & INODE_ORPHAN;
}

/* Seals a target with a wrong checksum; the next round checks the rest. */
static int seal_target(struct fsck *f, const struct lay_inode *inode)
{
    uint64_t block = lay_get64(inode->map.link.block);
    union lay_block b;
    int err = image_read(&f->img, block, &b);

    return err ? err : store_put(f, block, &b);
}

/* Rebuilds map and attributes, which needs space. */
static int fix_contents(struct fsck *f, uint64_t ino, struct lay_inode *inode, uint16_t fix)
{
    bool is_dir = S_ISDIR(lay_get32(inode->mode));
    int err = 0;

    if (fix & FIX_MAP && is_dir)
        err = fsck_rebuild_dir(f, ino, inode);
    else if (fix & FIX_MAP && S_ISREG(lay_get32(inode->mode)))
        err = fsck_rebuild_map(f, ino, inode);
    else if (fix & FIX_MAP && lay_get16(inode->map_kind) == LAY_MAP_LINK)
        err = seal_target(f, inode);
    if (!err && fix & FIX_XATTR)
        err = fsck_rebuild_xattrs(f, ino, inode);
    if (err == -ENOSPC) {
        fsck_say(f, "inode %" PRIu64 ": no space to build its contents anew", ino);
        f->no_space = true;
        return 0;
    }
    if (!err && fix & (FIX_MAP | FIX_XATTR | FIX_COUNTS | FIX_SIZE))
        err = fsck_recount(f, ino, inode, fix & FIX_SIZE);
    return err;
}

static int fix_inode(struct fsck *f, uint64_t ino, struct lay_inode *inode)
{
    const struct inode_info *info = &f->inodes[ino];
    uint16_t fix = info->fix;

    if (fix & FIX_GPU)
        inode->flags = lay_put32(lay_get32(inode->flags) & ~LAY_INODE_GPU_BOUND);
    if (fix & FIX_LIVE)
        inode->next_orphan = lay_put64(0);
    if (fix & FIX_PARENT)
        inode->parent = lay_put64(info->parent);
    if (fix & FIX_NLINK)
        inode->nlink = lay_put32(info->found + (info->type == DT_DIR ? 2 : 0));
    inode->version = lay_put64(lay_get64(inode->version) + 1);
    return fix_contents(f, ino, inode, fix);
}

static void fix_orphan(struct fsck *f, uint64_t ino, struct lay_inode *inode, struct lists *l)
{
    if (stays_orphan(&f->inodes[ino])) {
        inode->next_orphan = lay_put64(l->orphan);
        l->orphan = ino;
    } else {
        inode->next_orphan = lay_put64(0);
    }
}

static int fix_slots(struct fsck *f, uint64_t index, struct lay_inode_block *ib, struct lists *l)
{
    int err = 0;

    for (unsigned slot = LAY_INODES_PER_BLOCK; slot-- > 0 && !err;) {
        uint64_t ino = index * LAY_INODES_PER_BLOCK + slot;
        struct inode_info *info = &f->inodes[ino];
        if (info->type == 0)
            continue;
        if (info->fix & FIX_CLEAR) {
            fsck_free_slot(ib, slot);
            f->sb.inodes = lay_put64(lay_get64(f->sb.inodes) - 1);
            f->inode_blocks[index].has_free = true;
            continue;
        }
        if (info->fix)
            err = fix_inode(f, ino, &ib->inodes[slot]);
        if (f->fix_orphans)
            fix_orphan(f, ino, &ib->inodes[slot], l);
    }
    return err;
}

static void fix_free_link(struct fsck *f, uint64_t index, struct lay_inode_block *ib,
                          struct lists *l)
{
    struct inode_block_info *info = &f->inode_blocks[index];

    ib->next_free = lay_put64(info->has_free ? l->free_block : LAY_NONE);
    info->next_free = lay_get64(ib->next_free);
    if (info->has_free)
        l->free_block = index;
}

/* Returns true if the block holds anything that must change. */
static bool concerned(struct fsck *f, uint64_t index, const struct lists *l)
{
    const struct inode_block_info *block = &f->inode_blocks[index];
    uint64_t next = block->has_free ? l->free_block : LAY_NONE;

    if (block->reseal || (f->fix_free_list && block->next_free != next))
        return true;
    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK; slot++) {
        const struct inode_info *info = &f->inodes[index * LAY_INODES_PER_BLOCK + slot];
        if (info->fix || (f->fix_orphans && (info->flags & INODE_ORPHAN || stays_orphan(info))))
            return true;
    }
    return false;
}

static int fix_block(struct fsck *f, uint64_t index, struct lists *l)
{
    union lay_block b;

    if (f->inode_blocks[index].damaged || !f->inode_blocks[index].addr)
        return 0;
    if (!concerned(f, index, l)) {
        if (f->fix_free_list && f->inode_blocks[index].has_free)
            l->free_block = index;
        return 0;
    }
    int err = fsck_load_block(f, index, &b);
    if (!err)
        err = fix_slots(f, index, &b.inodes, l);
    if (!err && f->fix_free_list)
        fix_free_link(f, index, &b.inodes, l);
    return err ? err : store_put(f, f->inode_blocks[index].addr, &b);
}

static void choose_lists(struct fsck *f)
{
    for (uint64_t ino = 0; ino < fsck_inode_limit(f); ino++) {
        if (f->inodes[ino].fix & FIX_CLEAR)
            f->fix_free_list = true;
        if (f->inodes[ino].fix & (FIX_CLEAR | FIX_LIVE | FIX_ATTACH) &&
            (f->inodes[ino].flags & INODE_ORPHAN || f->inodes[ino].nlink == 0))
            f->fix_orphans = true;
    }
}

static int fix_blocks(struct fsck *f)
{
    struct lists l = {.free_block = LAY_NONE, .orphan = LAY_NONE};
    int err = 0;

    choose_lists(f);
    for (uint64_t index = f->inode_block_count; index-- > 0 && !err;) {
        err = fix_block(f, index, &l);
        fsck_progress(f, "repairs", f->inode_block_count - index, f->inode_block_count);
    }
    if (err)
        return err;
    if (f->fix_free_list)
        f->sb.free_inode_block = lay_put64(l.free_block);
    if (f->fix_orphans)
        f->sb.orphan = lay_put64(l.orphan);
    return 0;
}

int fsck_fix(struct fsck *f)
{
    int err = fsck_reserve(f);

    /* All that was in it is lost, but a map without it is not valid. */
    if (!err && image_segment_block(&f->img, 0) == LAY_NONE)
        err = fsck_new_chunk(f);
    if (!err)
        err = fsck_attach(f);
    if (!err)
        err = fsck_keep_log(f);
    if (!err)
        err = fsck_keep_report(f);
    if (!err && f->fix_inode_file)
        err = fsck_rebuild_inode_file(f);
    if (err == -ENOSPC) {
        fsck_say(f, "inode 0: no space to build its contents anew");
        f->no_space = true;
        return 0;
    }
    if (!err)
        err = fix_blocks(f);
    /*
     * The mark keeps other programs from trusting the file system until
     * everything is repaired.
     */
    f->sb.state = lay_put32(lay_get32(f->sb.state) | LAY_STATE_ERROR);
    return err ? err : store_commit(f);
}
