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
    uint64_t *seen; /* one bit per block */
    bool missing;   /* a node that the tree refers to is not part of it */
    struct salvaged *out;
};

int salvage_add(struct salvaged *s, const struct salvaged_name *n, const void *bytes)
{
    size_t at = s->bytes.count;

    for (size_t i = 0; i < n->len; i += 8) {
        uint8_t *to = fsck_grow(&s->bytes, 8);
        if (!to)
            return -ENOMEM;
        memcpy(to, (const uint8_t *)bytes + i, n->len - i < 8 ? n->len - i : 8);
    }
    struct salvaged_name *name = fsck_grow(&s->names, sizeof(*name));
    if (!name)
        return -ENOMEM;
    *name = *n;
    name->at = (uint32_t)at;
    return 0;
}

void salvage_free(struct salvaged *s)
{
    free(s->extents.items);
    free(s->names.items);
    free(s->bytes.items);
    free(s->nodes.items);
}

/* True if bitmaps confirm the extent, whose leaf's checksum is wrong. */
static bool known_to_bitmaps(struct fsck *f, const struct lay_extent *e)
{
    uint64_t block = lay_get64(e->block), end = block + lay_get32(e->len);
    uint64_t loaded = UINT64_MAX;
    union lay_block b;

    for (; block < end; block++) {
        uint64_t group = block / LAY_GROUP_BLOCKS, bit = block % LAY_GROUP_BLOCKS;
        if (group != loaded && image_read(&f->img, LAY_ADDR(LAY_KIND_BITMAP, group), &b) != 0)
            return false;
        loaded = group;
        if (!(b.bitmap.bits[bit / 8] >> bit % 8 & 1))
            return false;
    }
    return true;
}

static int take_extents(struct salvage *s, const struct lay_node *leaf, bool sealed)
{
    unsigned count = lay_get16(leaf->count);

    for (unsigned i = 0; i < count && i < LAY_NODE_EXTENTS; i++) {
        const struct lay_extent *e = &leaf->u.extents[i];
        if (lay_check_extent(&s->f->img.geo, e, NULL) != 0 ||
            (!sealed && !known_to_bitmaps(s->f, e)))
            continue;
        struct lay_extent *to = fsck_grow(&s->out->extents, sizeof(*to));
        if (!to)
            return -ENOMEM;
        *to = *e;
    }
    return 0;
}

/* Takes bytes and inodes of names; the rest is derived from these. */
static int take_names(struct salvage *s, const struct lay_node *leaf)
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
        pos += len;
    }
    return err;
}

static bool is_mine(const struct salvage *s, const struct lay_head *head, uint64_t block)
{
    return lay_get32(head->magic) == s->magic && lay_get64(head->block) == block &&
           lay_get64(head->owner) == s->ino &&
           memcmp(head->uuid, s->f->img.geo.uuid, sizeof(head->uuid)) == 0;
}

static bool first_visit(struct salvage *s, uint64_t block)
{
    uint64_t bit = UINT64_C(1) << block % 64;
    bool first = !(s->seen[block / 64] & bit);

    s->seen[block / 64] |= bit;
    return first;
}

/* Recursion is as deep as levels decrease: at most LAY_MAX_HEIGHT. */
static int salvage_take_node(struct salvage *s, uint64_t block, unsigned below)
{
    union lay_block b;

    if (!lay_range_ok(&s->f->img.geo, block, 1)) {
        s->missing = true;
        return 0;
    }
    if (!first_visit(s, block))
        return 0;
    int err = image_read(&s->f->img, block, &b);
    unsigned level = lay_get16(b.node.level);
    if (err || !is_mine(s, &b.head, block) || level >= below) {
        s->missing = true;
        return err;
    }
    uint64_t *node = fsck_grow(&s->out->nodes, sizeof(*node));
    if (!node)
        return -ENOMEM;
    *node = block;
    if (level == 0) {
        bool sealed = lay_check_head(&b, s->magic, s->f->img.geo.uuid, block, s->ino, NULL) == 0;
        return s->magic == LAY_MAGIC_DIR ? take_names(s, &b.node)
                                         : take_extents(s, &b.node, sealed);
    }
    unsigned count = lay_get16(b.node.count);
    for (unsigned i = 0; i < count && i < LAY_NODE_BRANCHES && !err; i++)
        err = salvage_take_node(s, lay_get64(b.node.u.branches[i].child), level);
    return err;
}

/* Takes the leaves that were below a lost node. */
static int take_lost_leaves(struct salvage *s)
{
    const struct fsck_lost_leaf *leaf = s->f->lost_leaves.items;
    int err = 0;

    for (size_t i = 0; i < s->f->lost_leaves.count && s->missing && !err; i++) {
        if (leaf[i].ino == s->ino && leaf[i].magic == s->magic)
            err = salvage_take_node(s, leaf[i].block, 1);
    }
    return err;
}

int salvage_tree(struct fsck *f, uint64_t ino, uint32_t magic, uint64_t root, struct salvaged *out)
{
    struct salvage s = {.f = f, .ino = ino, .magic = magic, .out = out};

    s.seen = calloc(f->img.geo.blocks / 64 + 1, sizeof(*s.seen));
    if (!s.seen)
        return -ENOMEM;
    int err = salvage_take_node(&s, root, LAY_MAX_HEIGHT);
    if (!err)
        err = take_lost_leaves(&s);
    free(s.seen);
    return err;
}
