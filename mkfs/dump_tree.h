/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Converts objects of the file system to JSON trees. Each function returns 0,
 * -EUCLEAN (damaged; the tree holds the readable parts), -ENOENT, -ENOTDIR or a
 * device error.
 */
#ifndef MKFS_DUMP_TREE_H
#define MKFS_DUMP_TREE_H

#include "mkfs/dump_print.h"
#include "mkfs/image.h"
#include "mkfs/replay.h"

void dump_super(const struct lay_super *sb, struct json_object *to);
void dump_journal(const struct lay_journal *header, const struct log *log, struct json_object *to);
int dump_inode(struct image *img, const struct lay_super *sb, uint64_t ino, struct json_object *to);
int dump_extents(struct image *img, const struct lay_super *sb, uint64_t ino,
                 struct json_object *to);
int dump_directory(struct image *img, const struct lay_super *sb, uint64_t ino,
                   struct json_object *to);

#endif
