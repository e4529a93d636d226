/* SPDX-License-Identifier: BSD-2-Clause */
/* Builds trees from ordered records. */
#include <assert.h>
#include <errno.h>
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

/* A block for a node. */
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
