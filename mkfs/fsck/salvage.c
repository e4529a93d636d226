/* SPDX-License-Identifier: BSD-2-Clause */
/* Collects valid records from the nodes of a damaged tree. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/salvage.h"

struct salvage {
    struct fsck *f;
    uint64_t ino;
    uint32_t magic;
    uint64_t *seen; /* one bit per block of the mapped segments */
    bool missing;   /* a node that the tree refers to is not part of it */
    struct salvaged *out;
};

int salvage_add(struct salvaged *s, const struct salvaged_name *n, const void *bytes)
{
    struct salvaged_name name = *n;

    name.at = (uint32_t)s->bytes.count;
    for (size_t i = 0; i < n->len; i += 8) {
        uint8_t *to = fsck_grow(&s->bytes, 8);
        if (!to)
            return -ENOMEM;
        memcpy(to, (const uint8_t *)bytes + i, n->len - i < 8 ? n->len - i : 8);
    }
    return fsck_append(&s->names, &name, sizeof(name));
}

int salvage_add_extent(struct salvaged *s, const struct lay_extent *e, bool proven)
{
    struct lay_extent extent = *e;

    if (!proven)
        extent.flags = lay_put16(lay_get16(e->flags) | SALVAGED_UNPROVEN);
    return fsck_append(&s->extents, &extent, sizeof(extent));
}

int salvage_add_range(struct salvaged *s, uint64_t first, uint64_t last)
{
    const struct salvaged_range range = {first, last};

    return first <= last ? fsck_append(&s->lost, &range, sizeof(range)) : 0;
}

void salvage_free(struct salvaged *s)
{
    free(s->extents.items);
    free(s->lost.items);
    free(s->names.items);
    free(s->bytes.items);
    free(s->nodes.items);
}

static const struct salvaged_range salvage_no_keys = {1, 0};

static int take_extents(struct salvage *s, const struct lay_node *leaf, bool sealed)
{
    unsigned count = lay_get16(leaf->count);
    int err = 0;

    for (unsigned i = 0; i < count && i < LAY_NODE_EXTENTS && !err; i++) {
        const struct lay_extent *e = &leaf->u.extents[i];
        if ((s->ino ? lay_check_extent : lay_check_inode_extent)(&s->f->img.geo, e, NULL) == 0)
            err = salvage_add_extent(s->out, e, sealed);
    }
    return err;
}

/* Takes bytes and inodes of names; the rest is derived from these. */
static int take_names(struct salvage *s, const struct lay_node *leaf, bool sealed)
{
    const size_t head = offsetof(struct lay_dirent, name);
    size_t pos = 0;
    int err = 0;

    while (pos + sizeof(struct lay_dirent) <= LAY_PAYLOAD && !err) {
        const struct lay_dirent *d = (const struct lay_dirent *)(leaf->u.bytes + pos);
        const char *bytes = (const char *)leaf->u.bytes + pos + head;
        size_t len = LAY_DIRENT_LEN(d->name_len);
        if (d->name_len == 0 || pos + len > LAY_PAYLOAD)
            break;
        struct salvaged_name n = {.key = lay_get64(d->key),
                                  .ino = lay_get64(d->ino),
                                  .type = d->type,
                                  .len = d->name_len};
        if (lay_name_ok(bytes, n.len) && n.ino > LAY_INO_ROOT)
            err = salvage_add(s->out, &n, bytes);
        if (!sealed && n.ino < fsck_inode_limit(s->f))
            fsck_lose(s->f, n.ino, LOSS_ENTRY);
        pos += len;
    }
    return err;
}

static bool is_mine(const struct salvage *s, const struct lay_head *head, uint64_t addr)
{
    return lay_get32(head->magic) == s->magic && lay_get64(head->block) == addr &&
           lay_get64(head->owner) == s->ino &&
           memcmp(head->uuid, s->f->img.geo.uuid, sizeof(head->uuid)) == 0;
}

static bool first_visit(struct salvage *s, uint64_t addr)
{
    uint64_t at = image_segment_index(&s->f->img, lay_addr_segment(addr)) * LAY_SEGMENT_BLOCKS +
                  lay_addr_index(addr);
    uint64_t bit = UINT64_C(1) << at % 64;
    bool first = !(s->seen[at / 64] & bit);

    s->seen[at / 64] |= bit;
    return first;
}

static int salvage_lose(struct salvage *s, struct salvaged_range keys)
{
    s->missing = true;
    return salvage_add_range(s->out, keys.first, keys.last);
}

static int salvage_take_node(struct salvage *s, uint64_t addr, unsigned below,
                             struct salvaged_range keys);

/*
 * Salvages the subtrees below a node. `keys` is empty if the node is not sound,
 * because its keys then do not show what the children cover.
 */
static int salvage_take_children(struct salvage *s, const struct lay_node *node,
                                 struct salvaged_range keys)
{
    unsigned count = lay_get16(node->count), level = lay_get16(node->level);
    const struct lay_branch *b = node->u.branches;
    int err = 0;

    for (unsigned i = 0; i < count && i < LAY_NODE_BRANCHES && !err; i++) {
        struct salvaged_range below = keys;
        if (keys.first <= keys.last) {
            below.first = lay_get64(b[i].key);
            below.last = i + 1 < count ? lay_get64(b[i + 1].key) - 1 : keys.last;
        }
        err = salvage_take_node(s, lay_get64(b[i].child), level, below);
    }
    return err;
}

/* Recursion is as deep as levels decrease: at most LAY_MAX_HEIGHT. */
static int salvage_take_node(struct salvage *s, uint64_t addr, unsigned below,
                             struct salvaged_range keys)
{
    const struct lay_geometry *geo = &s->f->img.geo;
    union lay_block b;

    if (!lay_chunk_addr_ok(geo, addr) ||
        image_segment_block(&s->f->img, lay_addr_segment(addr)) == LAY_NONE)
        return salvage_lose(s, keys);
    if (!first_visit(s, addr))
        return 0;
    int err = image_read(&s->f->img, addr, &b);
    unsigned level = lay_get16(b.node.level);
    bool stale = s->f->img.age == IMAGE_AGE_STALE;
    if (err)
        return err;
    if (!is_mine(s, &b.head, addr) || level >= below)
        return salvage_lose(s, keys);
    if (fsck_append(&s->out->nodes, &addr, sizeof(addr)) != 0)
        return -ENOMEM;
    if (stale ||
        lay_check_node(geo, &b.node, s->magic, addr, s->ino, level, keys.first, keys.last, NULL)) {
        err = salvage_add_range(s->out, keys.first, keys.last);
        keys = salvage_no_keys;
    }
    if (err || level > 0)
        return err ? err : salvage_take_children(s, &b.node, keys);
    bool sealed = !stale && lay_check_head(&b, s->magic, geo->uuid, addr, s->ino, NULL) == 0;
    return s->magic == LAY_MAGIC_DIR ? take_names(s, &b.node, sealed)
                                     : take_extents(s, &b.node, sealed);
}

/* Takes the leaves that were below a lost node. */
static int take_lost_leaves(struct salvage *s)
{
    const struct fsck_lost_leaf *leaf = s->f->lost_leaves.items;
    int err = 0;

    for (size_t i = 0; i < s->f->lost_leaves.count && s->missing && !err; i++) {
        if (leaf[i].ino == s->ino && leaf[i].magic == s->magic)
            err = salvage_take_node(s, leaf[i].addr, 1, salvage_no_keys);
    }
    return err;
}

int salvage_tree(struct fsck *f, uint64_t ino, uint32_t magic, uint64_t root, struct salvaged *out)
{
    struct salvage s = {.f = f, .ino = ino, .magic = magic, .out = out};

    s.seen = calloc(f->img.segment_count * LAY_SEGMENT_BLOCKS / 64 + 1, sizeof(*s.seen));
    if (!s.seen)
        return -ENOMEM;
    int err = salvage_take_node(&s, root, LAY_MAX_HEIGHT, (struct salvaged_range){0, UINT64_MAX});
    if (!err)
        err = take_lost_leaves(&s);
    free(s.seen);
    return err;
}
