/* SPDX-License-Identifier: BSD-2-Clause */
/* Salvages the valid records of a tree, and builds new trees. */
#ifndef MKFS_FSCK_SALVAGE_H
#define MKFS_FSCK_SALVAGE_H

#include "mkfs/fsck/fsck.h"

/* Describes a name that was found. */
struct salvaged_name {
    uint64_t key, ino;
    uint32_t at; /* index of its bytes in salvaged.bytes */
    uint8_t type, len;
};

/* File blocks whose records may be missing: a node is lost or not sound. */
struct salvaged_range {
    uint64_t first, last;
};

/*
 * This flag of an extent exists only in memory. The flag means that the
 * checksum of the record's block is wrong, so that the extent may have any
 * value.
 */
#define SALVAGED_UNPROVEN 0x8000u

struct salvaged {
    struct fsck_list extents; /* struct lay_extent, each valid by itself */
    struct fsck_list lost;    /* struct salvaged_range, disjoint */
    struct fsck_list names;   /* struct salvaged_name */
    struct fsck_list bytes;   /* bytes of the names, 8 per item */
    struct fsck_list nodes;   /* uint64_t: nodes that were read */
};

/*
 * Takes every record that is valid by itself from this inode's nodes below
 * `root`, whatever their checksums and order. If a node is missing, also takes
 * the inode's lost leaves. Returns 0, -ENOMEM or a device error. salvage_free()
 * frees the result.
 */
int salvage_tree(struct fsck *f, uint64_t ino, uint32_t magic, uint64_t root, struct salvaged *out);
/*
 * Takes the extents of a regular file in the same way, from its inode or its
 * tree.
 */
int fsck_collect_extents(struct fsck *f, uint64_t ino, const struct lay_inode *inode,
                         struct salvaged *s);
/* Adds an extent, and marks it as unproven unless `proven` is true. Returns 0 or -ENOMEM. */
int salvage_add_extent(struct salvaged *s, const struct lay_extent *e, bool proven);
/* Adds a range to `lost`, unless it is empty. Returns 0 or -ENOMEM. */
int salvage_add_range(struct salvaged *s, uint64_t first, uint64_t last);
/* Adds a copy of a name. Returns 0 or -ENOMEM. */
int salvage_add(struct salvaged *s, const struct salvaged_name *n, const void *bytes);
static inline const uint8_t *salvaged_bytes(const struct salvaged *s, const struct salvaged_name *n)
{
    return (const uint8_t *)s->bytes.items + 8u * n->at;
}
void salvage_free(struct salvaged *s);

/*
 * Holds a tree under construction. Records are added in ascending order of
 * their keys.
 */
struct build {
    struct fsck *f;
    uint32_t magic;
    uint64_t owner;
    const struct fsck_list *space; /* struct build_block; NULL if nodes are only counted */
    struct fsck_list branches;     /* struct lay_branch: the nodes of the last complete level */
    uint64_t nodes, entries;
    unsigned height;
    uint64_t root;
    union lay_block node; /* the node being filled */
    uint64_t first;       /* key of its first record */
};

/* Adds a record to a tree under construction. Returns 0, -ENOMEM or a device error. */
int build_add(struct build *b, uint64_t key, const void *record, size_t len);
/*
 * Builds a tree of the records that fill() adds, and sets root, height, nodes
 * and entries. fill() is called twice: first the nodes are only counted. Nodes
 * go to free blocks, and to those of the old tree (uint64_t) if there are too
 * few. Returns -ENOSPC, with nothing written, if both together do not suffice.
 */
int build_tree(struct build *b, struct fsck *f, uint32_t magic, uint64_t owner,
               const struct fsck_list *old, int (*fill)(struct build *b, void *arg), void *arg);

#endif
