/* SPDX-License-Identifier: BSD-2-Clause */
/* One sound object of each kind, for tests to break. */
#ifndef TESTS_LAYOUT_OBJECTS_H
#define TESTS_LAYOUT_OBJECTS_H

#include <sys/cdefs.h>

#include "layout/layout.h"

__BEGIN_DECLS

enum object_kind {
    OBJECT_LABEL,
    OBJECT_MMP,
    OBJECT_SUPER,
    OBJECT_BITMAP,
    OBJECT_SUMS,
    OBJECT_MAP,
    OBJECT_ENTRIES,
    OBJECT_AGES,
    OBJECT_INODES,
    OBJECT_EXTENT_LEAF,
    OBJECT_EXTENT_BRANCH,
    OBJECT_DIR_LEAF,
    OBJECT_DIR_BRANCH,
    OBJECT_XATTR,
    OBJECT_SYMLINK,
    OBJECT_DESC,
    OBJECT_COMMIT,
    OBJECT_KINDS
};

#define OBJECT_BLOCKS 40000u /* of the file system they are of: two groups */
#define OBJECT_OWNER  2u
#define OBJECT_TID    5u

/* The slots of the inode block. */
#define SLOT_INLINE 0 /* a file */
#define SLOT_TREE   1
#define SLOT_DIR    2
#define SLOT_TARGET 3
#define SLOT_LINK   4
#define SLOT_DEVICE 5
#define SLOT_ORPHAN 6
#define SLOT_FREE   7

struct lay_geometry object_geometry(void);
/* Sealed. */
void object_make(enum object_kind kind, union lay_block *o);
/* The transaction number that an object of this kind has. */
uint64_t object_tid(enum object_kind kind);
uint64_t object_addr(enum object_kind kind);
uint32_t object_magic(enum object_kind kind);
/* Runs the check that belongs to the kind. */
int object_check(enum object_kind kind, const union lay_block *o, const char **why);
const char *object_name(enum object_kind kind);

__END_DECLS

#endif
