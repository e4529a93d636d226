/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Salvage of the sound nodes of a tree, and construction of a new tree.
 */
#ifndef MKFS_FSCK_SALVAGE_H
#define MKFS_FSCK_SALVAGE_H

#include "mkfs/fsck/fsck.h"

/* A name that was found. */
struct salvaged_name {
    uint64_t key, ino;
    uint32_t at; /* of its bytes in salvaged.bytes */
    uint8_t type, len;
};

struct salvaged {
    struct fsck_list extents; /* struct lay_extent, each valid by itself */
    struct fsck_list names;   /* struct salvaged_name */
    struct fsck_list bytes;   /* of the names, 8 to an item */
    struct fsck_list nodes;   /* uint64_t: the nodes that were read */
};

/*
 * Takes every record that is valid by itself out of the nodes below `root` that are of this inode,
 * whatever their checksums and order; where one is missing, out of the lost leaves of the inode,
 * too. 0, -ENOMEM or a device error.
 */
int salvage_tree(struct fsck *f, uint64_t ino, uint32_t magic, uint64_t root, struct salvaged *out);
/* Keeps a copy of a name. */
int salvage_add(struct salvaged *s, const struct salvaged_name *n, const void *bytes);
static inline const uint8_t *salvaged_bytes(const struct salvaged *s, const struct salvaged_name *n)
{
    return (const uint8_t *)s->bytes.items + 8u * n->at;
}
void salvage_free(struct salvaged *s);

/* A tree under construction; records come in ascending order of their keys. */
struct build {
    struct fsck *f;
    uint32_t magic;
    uint64_t owner;
    const struct fsck_list *space; /* struct build_block; NULL: nodes are only counted */
    struct fsck_list branches;     /* struct lay_branch: the nodes of the level that is finished */
    uint64_t nodes, entries;
    unsigned height;
    uint64_t root;
    union lay_block node; /* the one that is being filled */
    uint64_t first;       /* key of its first record */
};

struct build_block {
    uint64_t block;
    bool old; /* a node of the tree that is replaced: written by a transaction */
};

/*
 * Blocks for `need` nodes: free ones and, where these do not suffice, those of the old tree.
 * -ENOSPC: both together do not, and nothing has been written.
 */
int build_space(struct fsck *f, uint64_t need, const struct fsck_list *old,
                struct fsck_list *space);
void build_begin(struct build *b, struct fsck *f, uint32_t magic, uint64_t owner,
                 const struct fsck_list *space);
/* -ENOMEM or a device error. */
int build_add(struct build *b, uint64_t key, const void *record, size_t len);
/* Sets root, height, nodes and entries. In any case after build_begin(). */
int build_end(struct build *b, int err);

#endif
