/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Builds trees from ordered records, and with them the extents of a file from its
 * valid nodes. New nodes are in new blocks, because the old ones remain valid
 * until the inode is written.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/salvage.h"
#include "mkfs/fsck/store.h"

static void begin_node(struct build *b, unsigned level)
{
    memset(&b->node, 0, sizeof(b->node));
    lay_head_init(&b->node.head, b->magic, b->f->img.geo.uuid, 0, b->owner);
    b->node.node.level = lay_put16((uint16_t)level);
}

/* Describes a block that a node can be written to. */
struct build_block {
    uint64_t addr;
    bool old; /* node of the replaced tree; written in a transaction */
};

static int build_space(struct fsck *f, uint64_t need, const struct fsck_list *old,
                       struct fsck_list *space)
{
    const uint64_t *nodes = old->items;
    size_t reused = 0;

    while (space->count < need) {
        uint64_t addr;
        int err = fsck_alloc_meta(f, &addr);
        if (err || (!addr && reused == old->count))
            return err ? err : -ENOSPC;
        const struct build_block item = {addr ? addr : nodes[reused++], !addr};
        if (fsck_append(space, &item, sizeof(item)) != 0)
            return -ENOMEM;
    }
    return 0;
}

static void build_begin(struct build *b, struct fsck *f, uint32_t magic, uint64_t owner,
                        const struct fsck_list *space)
{
    memset(b, 0, sizeof(*b));
    b->f = f;
    b->magic = magic;
    b->owner = owner;
    b->space = space;
    begin_node(b, 0);
}

/* Writes the node and appends the branch that its parent will hold. */
static int end_node(struct build *b, struct fsck_list *branches)
{
    struct lay_branch *branch = fsck_grow(branches, sizeof(*branch));

    if (!branch)
        return -ENOMEM;
    /* The first node of a level starts the range of all keys. */
    branch->key = lay_put64(branches->count == 1 ? 0 : b->first);
    b->nodes++;
    if (!b->space)
        return 0;
    assert(b->nodes <= b->space->count);
    const struct build_block *to = (const struct build_block *)b->space->items + b->nodes - 1;
    branch->child = lay_put64(to->addr);
    return to->old ? store_put(b->f, to->addr, &b->node) : store_put_new(b->f, to->addr, &b->node);
}

/* Appends a record to the node; writes a full node first. */
static int build_append(struct build *b, struct fsck_list *done, unsigned level, uint64_t key,
                        const void *record, size_t len)
{
    struct lay_node *node = &b->node.node;

    if (lay_get32(node->used) + len > LAY_PAYLOAD) {
        int err = end_node(b, done);
        if (err)
            return err;
        begin_node(b, level);
    }
    uint32_t used = lay_get32(node->used);
    if (used == 0)
        b->first = key;
    memcpy(node->u.bytes + used, record, len);
    node->used = lay_put32((uint32_t)(used + len));
    node->count = lay_put16((uint16_t)(lay_get16(node->count) + 1));
    return 0;
}

int build_add(struct build *b, uint64_t key, const void *record, size_t len)
{
    b->entries++;
    return build_append(b, &b->branches, 0, key, record, len);
}

/* Builds the nodes of the level above those in `branches`. */
static int build_level(struct build *b, unsigned level)
{
    struct fsck_list below = b->branches;
    const struct lay_branch *branch = below.items;
    int err = 0;

    memset(&b->branches, 0, sizeof(b->branches));
    begin_node(b, level);
    for (size_t i = 0; i < below.count && !err; i++)
        err = build_append(b, &b->branches, level, lay_get64(branch[i].key), &branch[i],
                           sizeof(*branch));
    free(below.items);
    return err ? err : end_node(b, &b->branches);
}

static int build_end(struct build *b, int err)
{
    if (!err)
        err = end_node(b, &b->branches);
    for (b->height = 1; !err && b->branches.count > 1; b->height++)
        err = build_level(b, b->height);
    if (!err)
        b->root = lay_get64(((const struct lay_branch *)b->branches.items)->child);
    free(b->branches.items);
    return err;
}

int build_tree(struct build *b, struct fsck *f, uint32_t magic, uint64_t owner,
               const struct fsck_list *old, int (*fill)(struct build *b, void *arg), void *arg)
{
    struct fsck_list space = {0};

    build_begin(b, f, magic, owner, NULL);
    int err = build_end(b, fill(b, arg));
    if (!err)
        err = build_space(f, b->nodes, old, &space);
    if (!err) {
        build_begin(b, f, magic, owner, &space);
        err = build_end(b, fill(b, arg));
    }
    free(space.items);
    return err;
}

/* Copies another object's blocks and adds the copy; adds damage if there is no space. */
static int rebuild_add_copy(struct fsck *f, struct fsck_list *list, const struct fsck_conflict *c)
{
    for (uint64_t done = 0, n; done < c->len; done += n) {
        uint64_t to = fsck_alloc(f, c->len - done, &n);
        if (n == 0) {
            fsck_say(f,
                     "inode %" PRIu64 ": no space for a copy, file blocks %" PRIu64 " to %" PRIu64
                     " are damaged",
                     c->ino, c->file_block + done, c->file_block + c->len - 1);
            f->gave_up = true;
            return fsck_add_damage(list, c->file_block + done, c->len - done);
        }
        int err = store_copy(f, c->block + done, to, n, false);
        if (!err)
            err = fsck_forget_sums(f, to, n);
        if (!err)
            err = fsck_add_extent(list, c->file_block + done, to, n, lay_put16(0));
        if (err)
            return err;
    }
    return 0;
}

/* Finds the first conflict of an extent in [file_block, end). */
static bool next_conflict(const struct fsck *f, uint64_t ino, uint64_t shift, uint64_t file_block,
                          uint64_t end, struct fsck_conflict *out)
{
    const struct fsck_conflict *c = f->conflicts.items;
    bool any = false;

    for (size_t i = 0; i < f->conflicts.count; i++) {
        uint64_t first = c[i].file_block, last = first + c[i].len;
        if (c[i].ino != ino || c[i].block - first != shift || last <= file_block || first >= end ||
            (any && out->file_block <= first))
            continue;
        *out = c[i];
        any = true;
    }
    return any;
}

/* Adds one extent without the blocks of other objects. */
static int separate(struct fsck *f, uint64_t ino, const struct lay_extent *e,
                    struct fsck_list *list)
{
    uint64_t at = lay_get64(e->file_block), end = at + lay_get32(e->len);
    uint64_t shift = lay_get64(e->block) - at;
    struct fsck_conflict c = {0};
    int err = 0;

    while (!err && next_conflict(f, ino, shift, at, end, &c)) {
        uint64_t skip = c.file_block < at ? at - c.file_block : 0;
        c.file_block += skip;
        c.block += skip;
        c.len -= skip;
        if (c.len > end - c.file_block)
            c.len = end - c.file_block;
        err = fsck_add_extent(list, at, at + shift, c.file_block - at, e->flags);
        f->gave_up |= c.metadata;
        if (!err && !(lay_get16(e->flags) & LAY_EXTENT_UNWRITTEN))
            err = c.metadata ? fsck_add_damage(list, c.file_block, c.len)
                             : rebuild_add_copy(f, list, &c);
        at = c.file_block + c.len;
    }
    return err ? err : fsck_add_extent(list, at, at + shift, end - at, e->flags);
}

static int build_extents(struct build *b, void *arg)
{
    const struct fsck_list *list = arg;
    const struct lay_extent *e = list->items;
    int err = 0;

    for (size_t i = 0; i < list->count && !err; i++)
        err = build_add(b, lay_get64(e[i].file_block), &e[i], sizeof(*e));
    return err;
}

int fsck_put_map(struct fsck *f, uint64_t ino, struct lay_inode *inode, struct fsck_list *list,
                 const struct fsck_list *old)
{
    struct build b = {0};
    bool is_tree = list->count > LAY_INLINE_EXTENTS;
    int err = is_tree ? build_tree(&b, f, LAY_MAGIC_EXTENTS, ino, old, build_extents, list) : 0;

    if (err)
        return err;
    memset(&inode->map, 0, sizeof(inode->map));
    inode->map_kind = lay_put16(is_tree ? LAY_MAP_TREE : LAY_MAP_INLINE);
    inode->map_height = lay_put16(is_tree ? (uint16_t)b.height : 0);
    inode->map_count = lay_put16(is_tree ? 0 : (uint16_t)list->count);
    if (is_tree) {
        inode->map.tree.root = lay_put64(b.root);
        inode->map.tree.blocks = lay_put64(b.nodes);
        inode->map.tree.entries = lay_put64(b.entries);
    } else if (list->count > 0) {
        memcpy(inode->map.extents, list->items, list->count * sizeof(struct lay_extent));
    }
    return 0;
}

int fsck_rebuild_map(struct fsck *f, uint64_t ino, struct lay_inode *inode)
{
    const struct fsck_plan *plan = fsck_find_plan(f, ino);
    struct fsck_list list = {0};
    int err = plan ? 0 : -ENOSPC;

    for (size_t i = 0; !err && i < plan->extents.count; i++) {
        const struct lay_extent *e = (const struct lay_extent *)plan->extents.items + i;
        err = lay_extent_has_blocks(e)
                  ? separate(f, ino, e, &list)
                  : fsck_add_damage(&list, lay_get64(e->file_block), lay_get32(e->len));
    }
    if (!err)
        err = fsck_put_map(f, ino, inode, &list, &plan->nodes);
    free(list.items);
    return err;
}
