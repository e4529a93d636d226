/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The on-disk format as structs, in the order and with the section numbers of
 * FORMAT.md.
 *
 * Every metadata block has 4096 bytes: a 48-byte head, 16 bytes that depend on
 * the kind of block, and 4032 bytes of payload.
 */
#ifndef LAYOUT_FORMAT_H
#define LAYOUT_FORMAT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/endian.h"

#define LAY_BLOCK_SIZE  4096u
#define LAY_BLOCK_SHIFT 12
#define LAY_PAYLOAD     4032u
#define LAY_NONE        UINT64_MAX /* "no block", "no inode", "end of list" */
#define LAY_MAX_TID     (1ull << 62)

/* Every struct is followed by asserts of its size and offsets. */
#define LAY_SIZE(s, n)      static_assert(sizeof(struct s) == (n), #s " size")
#define LAY_OFFSET(s, f, n) static_assert(offsetof(struct s, f) == (n), #s "." #f " offset")

/* --- 2. Block head --------------------------------------------------------------------------- */

#define LAY_MAGIC(a, b) \
    ((uint32_t)'G' | (uint32_t)'N' << 8 | (uint32_t)(a) << 16 | (uint32_t)(b) << 24)
#define LAY_MAGIC_SUPER   LAY_MAGIC('s', 'b')
#define LAY_MAGIC_BITMAP  LAY_MAGIC('b', 'm')
#define LAY_MAGIC_INODES  LAY_MAGIC('i', 'n')
#define LAY_MAGIC_EXTENTS LAY_MAGIC('e', 'x')
#define LAY_MAGIC_DIR     LAY_MAGIC('d', 'r')
#define LAY_MAGIC_XATTR   LAY_MAGIC('x', 'a')
#define LAY_MAGIC_SYMLINK LAY_MAGIC('s', 'l')
#define LAY_MAGIC_JOURNAL LAY_MAGIC('j', 'h')
#define LAY_MAGIC_JDESC   LAY_MAGIC('j', 'd')
#define LAY_MAGIC_JREVOKE LAY_MAGIC('j', 'r')
#define LAY_MAGIC_JCOMMIT LAY_MAGIC('j', 'c')
#define LAY_MAGIC_JUNUSED LAY_MAGIC('j', 'u')
#define LAY_MAGIC_SUMS    LAY_MAGIC('c', 's')

struct lay_head {
    le32 magic;
    le32 crc;   /* CRC32C, seeded, with this field zero: FORMAT.md 2.1 */
    le64 block; /* the block's own address */
    le64 owner; /* inode that owns it, first inode of an inode block, or 0: FORMAT.md 2 */
    le64 tid;   /* transaction that last wrote it; 0 from mkfs */
    uint8_t uuid[16];
};
LAY_SIZE(lay_head, 48);
LAY_OFFSET(lay_head, uuid, 32);

/* --- 3. Times, extents, inodes --------------------------------------------------------------- */

struct lay_time {
    le32 nsec;   /* < 1,000,000,000 */
    le32 sec_lo; /* low and high half of a signed 64-bit count of seconds since 1970 */
    le32 sec_hi;
};
LAY_SIZE(lay_time, 12);

/* A range of file blocks that are adjacent on the device. len > 0. */
struct lay_extent {
    le64 file_block;
    le64 block;  /* on the device */
    le32 len;    /* blocks */
    le16 flags;  /* LAY_EXTENT_* */
    le16 device; /* index in the device table */
};
LAY_SIZE(lay_extent, 24);
#define LAY_EXTENT_UNWRITTEN 0x1u /* reads as zeros */
#define LAY_EXTENT_FLAGS     LAY_EXTENT_UNWRITTEN
#define LAY_MAX_FILE_BLOCKS  (1ull << 51) /* the largest off_t, in blocks */

/* The encoding of an inode's `map` area. */
enum lay_map_kind {
    LAY_MAP_EMPTY = 0,  /* devices, FIFOs, sockets */
    LAY_MAP_INLINE = 1, /* map_count extents, sorted */
    LAY_MAP_TREE = 2,   /* B+tree of extents: lay_map_tree */
    LAY_MAP_TARGET = 3, /* symbolic link, target in the map area */
    LAY_MAP_LINK = 4,   /* symbolic link, target in a block: lay_map_link */
    LAY_MAP_DIR = 5,    /* B+tree of names: lay_map_tree */
};

#define LAY_MAP_BYTES      368u
#define LAY_INLINE_EXTENTS 15u
#define LAY_LINK_TAIL      64u
#define LAY_SYMLINK_MAX    4095u

struct lay_map_tree {
    le64 root;
    le64 blocks;  /* nodes in the tree, the root included */
    le64 entries; /* extents, or names */
};
LAY_SIZE(lay_map_tree, 24);

struct lay_map_link {
    le64 block;                  /* block with LAY_MAGIC_SYMLINK; holds the first 4032 bytes */
    uint8_t tail[LAY_LINK_TAIL]; /* the rest of the target */
};
LAY_SIZE(lay_map_link, 72);

struct lay_inode {
    le32 mode; /* file type and permissions as in stat(2); 0 in a free slot */
    le32 flags;
    le32 uid;
    le32 gid;
    le32 nlink;
    le32 generation; /* incremented each time the slot is reused */
    le64 size;       /* bytes; length of a symbolic link's target; 4096 * nodes of a directory */
    le64 blocks;     /* blocks charged to the inode: data, tree nodes, xattr, link target */
    struct lay_time atime, mtime, ctime, btime;
    le32 rdev; /* device nodes: major << 20 | minor */
    le32 reserved;
    le64 xattr;       /* first xattr block, or 0 */
    le64 next_orphan; /* next in the orphan list; LAY_NONE at its end; 0 outside the list */
    le64 parent;      /* inode of ".." of a directory */
    le64 version;     /* incremented by every change */
    le16 map_kind;    /* enum lay_map_kind */
    le16 map_count;   /* LAY_MAP_INLINE: extents in use */
    le16 map_height;  /* LAY_MAP_TREE, LAY_MAP_DIR: levels; 1 if the root is a leaf */
    le16 map_reserved;
    union {
        uint8_t bytes[LAY_MAP_BYTES];
        struct lay_extent extents[LAY_INLINE_EXTENTS];
        struct lay_map_tree tree;
        struct lay_map_link link;
    } map;
};
LAY_SIZE(lay_inode, 504);
LAY_OFFSET(lay_inode, size, 24);
LAY_OFFSET(lay_inode, atime, 40);
LAY_OFFSET(lay_inode, rdev, 88);
LAY_OFFSET(lay_inode, xattr, 96);
LAY_OFFSET(lay_inode, map_kind, 128);
LAY_OFFSET(lay_inode, map, 136);

#define LAY_INODE_GPU_BOUND 0x1u /* extents >= 2 MiB, aligned to 2 MiB in file and on device */
#define LAY_INODE_IMMUTABLE 0x2u /* LAY_INCOMPAT_INODE_FLAGS, like the next two */
#define LAY_INODE_APPEND    0x4u
#define LAY_INODE_NOATIME   0x8u
#define LAY_INODE_FLAGS \
    (LAY_INODE_GPU_BOUND | LAY_INODE_IMMUTABLE | LAY_INODE_APPEND | LAY_INODE_NOATIME)
#define LAY_GPU_ALIGN 512u /* blocks: 2 MiB */

#define LAY_INO_ROOT         1u /* inode 0 does not exist */
#define LAY_INODES_PER_BLOCK 8u

/* Inode i is in slot i % 8 of block i / 8 of the inode file. */
struct lay_inode_block {
    struct lay_head head;
    /*
     * Next inode-file block with a free slot, as a file block. LAY_NONE if this is
     * the last one or full.
     */
    le64 next_free;
    uint8_t used; /* one bit per slot */
    uint8_t reserved[7];
    struct lay_inode inodes[LAY_INODES_PER_BLOCK];
};
LAY_SIZE(lay_inode_block, 4096);
LAY_OFFSET(lay_inode_block, inodes, 64);

/* --- 4. Superblock --------------------------------------------------------------------------- */

#define LAY_VERSION_MAJOR   2u
#define LAY_VERSION_MINOR   3u
#define LAY_LABEL_MAX       63u
#define LAY_MAX_DEVICES     16u
#define LAY_SUPER_COPIES    2u
#define LAY_BITMAP_SECTIONS 256u
#define LAY_MIN_BLOCKS      4096u /* 16 MiB */
#define LAY_MAX_BLOCKS      (1ull << 46)
#define LAY_MIN_JOURNAL     256u
#define LAY_MAX_JOURNAL     (1u << 20)

/*
 * Features that this version supports. A file system with other incompat bits
 * is refused; one with other ro-compat bits is mounted read-only.
 */
#define LAY_FEATURE_COMPAT    LAY_COMPAT_SECTION_FREE
#define LAY_FEATURE_RO_COMPAT 0ull
#define LAY_FEATURE_INCOMPAT                                                   \
    (LAY_INCOMPAT_INODE_FLAGS | LAY_INCOMPAT_ACL | LAY_INCOMPAT_LARGE_XATTRS | \
     LAY_INCOMPAT_DATA_CSUM | LAY_INCOMPAT_ZERO_BITMAPS)

#define LAY_COMPAT_SECTION_FREE 0x1ull /* the superblock has hints on free space */

#define LAY_INCOMPAT_INODE_FLAGS  0x1ull  /* inodes may be immutable, append-only or noatime */
#define LAY_INCOMPAT_ACL          0x2ull  /* inodes may have POSIX ACLs among their attributes */
#define LAY_INCOMPAT_LARGE_XATTRS 0x4ull  /* long chains of attributes, and values in parts */
#define LAY_INCOMPAT_DATA_CSUM    0x8ull  /* data blocks have checksums: FORMAT.md 5.4 */
#define LAY_INCOMPAT_ZERO_BITMAPS 0x10ull /* bitmaps of free groups may be zero: FORMAT.md 5.5 */

#define LAY_STATE_CLEAN 0x1u /* cleanly unmounted: the journal is empty */
#define LAY_STATE_ERROR 0x2u /* an inconsistency was found: fsck is required */

struct lay_device {
    uint8_t uuid[16];
    le64 blocks;
    le64 reserved;
};
LAY_SIZE(lay_device, 32);

struct lay_super {
    struct lay_head head;
    le16 version_major;
    le16 version_minor;
    le32 block_size; /* 4096 */
    le32 state;      /* LAY_STATE_* */
    le32 device_count;
    le64 compat;
    le64 ro_compat;
    le64 incompat;
    le64 blocks; /* size of the file system, including this block */
    le64 free_blocks;
    le64 inodes;       /* number of inodes in use */
    le64 bitmap_start; /* contiguous bitmap blocks, one per group */
    le64 bitmap_blocks;
    le64 journal_start;
    le64 journal_blocks;
    le64 copies[LAY_SUPER_COPIES]; /* addresses of the copies of this block */
    le64 free_inode_block;         /* first inode-file block with a free slot, or LAY_NONE */
    le64 orphan;                   /* first inode of the orphan list, or LAY_NONE */
    le64 mounts;
    struct lay_time created, mounted;
    uint8_t hash_seed[16];
    char label[LAY_LABEL_MAX + 1]; /* UTF-8, zero-padded */
    struct lay_inode inode_file;
    struct lay_device devices[LAY_MAX_DEVICES];
    /* Sum of the head.tid of all bitmaps in each section: FORMAT.md 5.1. */
    le64 bitmap_tids[LAY_BITMAP_SECTIONS];
    uint8_t section_free[LAY_BITMAP_SECTIONS]; /* feature LAY_COMPAT_SECTION_FREE: FORMAT.md 5.2 */
    le64 sums_start; /* start of the contiguous checksum blocks; 0 without LAY_INCOMPAT_DATA_CSUM */
    le64 sums_blocks;
    uint8_t reserved[472];
};
LAY_SIZE(lay_super, 4096);
LAY_OFFSET(lay_super, sums_start, 3608);

/* --- 5. Bitmap ------------------------------------------------------------------------------- */

#define LAY_GROUP_BLOCKS 32256u /* 63 * 512: whole 2 MiB units */

/*
 * Bit b of group g represents block g * 32256 + b; 1 means used. Bits past the
 * end are 1.
 */
struct lay_bitmap {
    struct lay_head head;
    le32 group;
    le32 free; /* zero bits */
    le64 reserved;
    uint8_t bits[LAY_PAYLOAD];
};
LAY_SIZE(lay_bitmap, 4096);

#define LAY_SUMS_ENTRIES 1008u /* a 32nd of a group */
#define LAY_NO_SUM       0u    /* the data block has no checksum */

/*
 * Entry e of checksum block i belongs to block i * 1008 + e. A block of zeros
 * has no entries.
 */
struct lay_sums {
    struct lay_head head;
    le64 index; /* number of this block in the area */
    le64 reserved;
    le32 sums[LAY_SUMS_ENTRIES];
};
LAY_SIZE(lay_sums, 4096);
LAY_OFFSET(lay_sums, sums, 64);

/* --- 6. B+trees ------------------------------------------------------------------------------ */

struct lay_branch {
    le64 key; /* lowest key below child; first branch: the parent's key, or 0 in the root */
    le64 child;
};
LAY_SIZE(lay_branch, 16);
#define LAY_NODE_BRANCHES 252u
#define LAY_NODE_EXTENTS  168u
#define LAY_MAX_HEIGHT    10u

/* Level 0 holds records (extents or names), other levels hold branches. */
struct lay_node {
    struct lay_head head;
    le16 level;
    le16 count;
    le32 used; /* bytes of payload in use, contiguous from its start */
    le64 reserved;
    union {
        uint8_t bytes[LAY_PAYLOAD];
        struct lay_branch branches[LAY_NODE_BRANCHES];
        struct lay_extent extents[LAY_NODE_EXTENTS];
    } u;
};
LAY_SIZE(lay_node, 4096);
LAY_OFFSET(lay_node, u, 64);

/* --- 7. Directories -------------------------------------------------------------------------- */

/*
 * A name. key is the hash of the name (55 bits) << 8 | a number that
 * distinguishes equal hashes. It is unique in a directory and serves as the
 * entry's d_off. Records follow each other in key order, each padded with zeros
 * to 8 bytes.
 */
struct lay_dirent {
    le64 key;
    le64 ino;
    le16 len;         /* length of the record, a multiple of 8 */
    uint8_t type;     /* DT_* of dirent.h */
    uint8_t name_len; /* 1 to 255 */
    uint8_t name[4];  /* name_len bytes; this struct is the smallest record */
};
LAY_SIZE(lay_dirent, 24);
LAY_OFFSET(lay_dirent, name, 20);
#define LAY_NAME_MAX             255u
#define LAY_DIRENT_LEN(name_len) ((20u + (name_len) + 7u) & ~7u)
#define LAY_DIR_KEY_MIN          256u /* smaller keys are the d_off of "." (1) and ".." (2) */

/* --- 8. Extended attributes ------------------------------------------------------------------ */

struct lay_xattr_block {
    struct lay_head head;
    le64 next; /* next block of the inode's chain, or 0 */
    le16 used; /* bytes of payload */
    le16 count;
    le32 reserved;
    uint8_t bytes[LAY_PAYLOAD];
};
LAY_SIZE(lay_xattr_block, 4096);

/*
 * Followed by the name (with its "user." prefix, not terminated), the value,
 * and zeros up to a multiple of 8 bytes.
 */
struct lay_xattr {
    le16 len; /* length of the record, a multiple of 8 */
    uint8_t name_len;
    uint8_t reserved;
    le32 value_len;
};
LAY_SIZE(lay_xattr, 8);
#define LAY_XATTR_LEN(name_len, value_len) ((8u + (name_len) + (value_len) + 7u) & ~7u)
#define LAY_XATTR_BLOCKS_MAX               272u /* per inode: 1 MiB */
#define LAY_XATTR_BLOCKS_FEW               17u  /* more need LAY_INCOMPAT_LARGE_XATTRS */
#define LAY_XATTR_NAME_MAX                 255u
/*
 * First byte of the names of a value in parts. LAY_XATTR_HEAD stores the
 * value's length. LAY_XATTR_PART stores one part, whose number is the next byte
 * of the name.
 */
#define LAY_XATTR_HEAD      '\2'
#define LAY_XATTR_PART      '\1'
#define LAY_XATTR_PART_BASE 32u

/* --- 9. Symbolic links ----------------------------------------------------------------------- */

struct lay_symlink_block {
    struct lay_head head;
    le32 len; /* bytes of payload in use */
    le32 reserved[3];
    uint8_t bytes[LAY_PAYLOAD];
};
LAY_SIZE(lay_symlink_block, 4096);

/* --- 10. Journal ----------------------------------------------------------------------------- */

/*
 * First block of the journal area. The rest is the log, a ring of positions 1
 * to blocks - 1.
 */
struct lay_journal {
    struct lay_head head;
    le64 tail_tid;  /* first transaction that may not have been checkpointed */
    le64 tail_pos;  /* log position of its first block, present or future */
    le64 super_tid; /* head.tid of the superblock in block 0 */
    uint8_t reserved[LAY_PAYLOAD - 8];
};
LAY_SIZE(lay_journal, 4096);

struct lay_journal_tag {
    le64 block; /* destination of the image */
    le32 crc;   /* lay_block_crc of the image at its log address */
    le32 reserved;
};
LAY_SIZE(lay_journal_tag, 16);
#define LAY_JDESC_TAGS 252u

/*
 * A descriptor; `count` block images follow it in the log. head.tid is the
 * transaction's.
 */
struct lay_journal_desc {
    struct lay_head head;
    le32 count;
    le32 reserved[3];
    struct lay_journal_tag tags[LAY_JDESC_TAGS];
};
LAY_SIZE(lay_journal_desc, 4096);

/*
 * Lists blocks whose images from this or an earlier transaction must not be
 * replayed.
 */
struct lay_journal_revoke {
    struct lay_head head;
    le32 count;
    le32 reserved[3];
    le64 blocks[LAY_PAYLOAD / 8];
};
LAY_SIZE(lay_journal_revoke, 4096);
#define LAY_JREVOKE_MAX (LAY_PAYLOAD / 8)

/*
 * Ends a transaction. The transaction is valid only if this block is present
 * and matches.
 */
struct lay_journal_commit {
    struct lay_head head;
    le32 blocks; /* log blocks of the transaction, including this one */
    /*
     * CRC32C over the crc fields of its descriptors, revokes and tags, in log order
     */
    le32 crc;
    le64 reserved;
    struct lay_time time;
    uint8_t reserved2[LAY_PAYLOAD - 12];
};
LAY_SIZE(lay_journal_commit, 4096);

/*
 * A block in the log of a new file system, in which all words differ. It is no
 * record and ends the log.
 */
struct lay_journal_unused {
    struct lay_head head;
    le64 words[(4096 - 48) / 8];
};
LAY_SIZE(lay_journal_unused, 4096);
#define LAY_JUNUSED_LAST  1023u /* last position; a self-test reads up to it, 4 MiB */
#define LAY_JUNUSED_WORDS ((4096u - 48u) / 8u)

#endif
