/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the on-disk format as structs, in the order and with the section
 * numbers of FORMAT.md.
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
#define LAY_MAX_COUNTER (1ull << 62) /* of an incarnation */

/* Every struct is followed by asserts of its size and offsets. */
#define LAY_SIZE(s, n)      static_assert(sizeof(struct s) == (n), #s " size")
#define LAY_OFFSET(s, f, n) static_assert(offsetof(struct s, f) == (n), #s "." #f " offset")

/* --- 2. Addresses and heads ------------------------------------------------------------------ */

/* Names the kinds of logical addresses, which are in bits 60 to 63. */
enum lay_kind {
    LAY_KIND_LABEL = 0,
    LAY_KIND_MMP = 1,
    LAY_KIND_SUPER = 2,
    LAY_KIND_MAP = 3,   /* block of the chunk map */
    LAY_KIND_CHUNK = 4, /* block in a chunk */
    LAY_KIND_BITMAP = 5,
    LAY_KIND_SUMS = 6,
    LAY_KIND_LOG = 7,
};

#define LAY_KIND_SHIFT         60
#define LAY_ADDR(kind, number) ((uint64_t)(kind) << LAY_KIND_SHIFT | (number))
#define LAY_LEVEL_SHIFT        52
#define LAY_ADDR_LEVEL(kind, level, number) \
    (LAY_ADDR(kind, number) | (uint64_t)(level) << LAY_LEVEL_SHIFT)
#define LAY_ADDR_LABEL LAY_ADDR(LAY_KIND_LABEL, 0)
#define LAY_ADDR_MMP   LAY_ADDR(LAY_KIND_MMP, 0)
#define LAY_ADDR_SUPER LAY_ADDR(LAY_KIND_SUPER, 0)
#define LAY_ADDR_CHUNK(segment, block) \
    LAY_ADDR(LAY_KIND_CHUNK, (uint64_t)(segment)*LAY_SEGMENT_BLOCKS + (block))

#define LAY_MAGIC(a, b) \
    ((uint32_t)'G' | (uint32_t)'N' << 8 | (uint32_t)(a) << 16 | (uint32_t)(b) << 24)
#define LAY_MAGIC_LABEL   LAY_MAGIC('s', 'b')
#define LAY_MAGIC_MMP     LAY_MAGIC('m', 'm')
#define LAY_MAGIC_SUPER   LAY_MAGIC('f', 's')
#define LAY_MAGIC_BITMAP  LAY_MAGIC('b', 'm')
#define LAY_MAGIC_INODES  LAY_MAGIC('i', 'n')
#define LAY_MAGIC_EXTENTS LAY_MAGIC('e', 'x')
#define LAY_MAGIC_DIR     LAY_MAGIC('d', 'r')
#define LAY_MAGIC_XATTR   LAY_MAGIC('x', 'a')
#define LAY_MAGIC_SYMLINK LAY_MAGIC('s', 'l')
#define LAY_MAGIC_JDESC   LAY_MAGIC('j', 'd')
#define LAY_MAGIC_JCOMMIT LAY_MAGIC('j', 'c')
#define LAY_MAGIC_JUNUSED LAY_MAGIC('j', 'u')
#define LAY_MAGIC_SUMS    LAY_MAGIC('c', 's')
#define LAY_MAGIC_MAP     LAY_MAGIC('c', 'm')
#define LAY_MAGIC_ENTRIES LAY_MAGIC('e', 'n')
#define LAY_MAGIC_AGES    LAY_MAGIC('a', 'g')

struct lay_head {
    le32 magic;
    le32 crc;         /* CRC32C, seeded, with this field zero: FORMAT.md 2.1 */
    le64 block;       /* logical address */
    le64 owner;       /* inode that owns it, first inode of an inode block, or 0: FORMAT.md 2 */
    le64 tid;         /* transaction that last wrote it; 0 from mkfs */
    uint8_t uuid[16]; /* the sealing UUID */
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

/* Describes a range of file blocks that are adjacent on the device. len is at least 1. */
struct lay_extent {
    le64 file_block;
    le64 block;  /* on the device; in the inode file the address of a block in a chunk */
    le32 len;    /* blocks */
    le16 flags;  /* LAY_EXTENT_* */
    le16 device; /* index in the device table */
};
LAY_SIZE(lay_extent, 24);
#define LAY_EXTENT_UNWRITTEN 0x1u       /* reads as zeros */
#define LAY_EXTENT_DAMAGED   0x2u       /* reads fail; block may be LAY_NONE; excludes unwritten */
#define LAY_DAMAGED_MAX      (1u << 30) /* blocks of a damaged extent without blocks */
#define LAY_EXTENT_FLAGS     (LAY_EXTENT_UNWRITTEN | LAY_EXTENT_DAMAGED)
#define LAY_MAX_FILE_BLOCKS  (1ull << 51) /* the largest off_t, in blocks */

/* Names the encodings of an inode's `map` area. */
enum lay_map_kind {
    LAY_MAP_EMPTY = 0,  /* devices, FIFOs, sockets */
    LAY_MAP_INLINE = 1, /* map_count extents, sorted */
    LAY_MAP_TREE = 2,   /* B+tree of extents: lay_map_tree */
    LAY_MAP_TARGET = 3, /* symbolic link, target in the map area */
    LAY_MAP_LINK = 4,   /* symbolic link, target in a block: lay_map_link */
    LAY_MAP_DIR = 5,    /* B+tree of names: lay_map_tree */
};

#define LAY_MAP_BYTES      336u
#define LAY_INLINE_EXTENTS 14u
#define LAY_LINK_TAIL      64u
#define LAY_SYMLINK_MAX    4095u

struct lay_map_tree {
    le64 root;    /* address */
    le64 blocks;  /* nodes in the tree, the root included */
    le64 entries; /* extents, or names */
};
LAY_SIZE(lay_map_tree, 24);

struct lay_map_link {
    le64 block;                  /* address of the block that holds the first 4032 bytes */
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
    le64 blocks;     /* of data */
    struct lay_time atime, mtime, ctime, btime;
    le32 rdev;        /* device nodes: major << 20 | minor */
    uint8_t policy;   /* 0: placement of data, kept for several members */
    uint8_t unit;     /* 0 */
    le16 set;         /* 0 */
    le64 xattr;       /* address of the first xattr block, or 0 */
    le64 next_orphan; /* next in the orphan list; LAY_NONE at its end; 0 outside the list */
    le64 parent;      /* inode of ".." of a directory */
    le64 version;     /* incremented by every change */
    le16 map_kind;    /* enum lay_map_kind */
    le16 map_count;   /* LAY_MAP_INLINE: extents in use */
    le16 map_height;  /* LAY_MAP_TREE, LAY_MAP_DIR: levels; 1 if the root is a leaf */
    le16 map_reserved;
    le32 project; /* 0: kept for quotas */
    le32 key;     /* 0: kept for encryption */
    uint8_t reserved[24];
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
LAY_OFFSET(lay_inode, project, 136);
LAY_OFFSET(lay_inode, map, 168);

#define LAY_INODE_GPU_BOUND 0x1u /* extents >= 2 MiB, aligned to 2 MiB in file and on device */
#define LAY_INODE_IMMUTABLE 0x2u
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

/* --- 4. Labels and superblock ---------------------------------------------------------------- */

#define LAY_VERSION_MAJOR 3u
#define LAY_VERSION_MINOR 3u
#define LAY_LABEL_MAX     63u
#define LAY_LABEL_COPIES  2u
#define LAY_LABEL_SECOND  2048u /* block of the second copy; the first one is block 0 */
#define LAY_MMP_BLOCK     1u
#define LAY_MAX_MEMBERS   16u
#define LAY_SUPER_COPIES  2u
#define LAY_MIN_BLOCKS    4096u /* 16 MiB */
#define LAY_MAX_BLOCKS    (1ull << 46)
#define LAY_MIN_LOG       256u
#define LAY_MAX_LOG       (1u << 20)

/*
 * Features that this version supports. A file system with other incompat bits
 * is refused; one with other ro-compat bits is mounted read-only.
 */
#define LAY_FEATURE_COMPAT    0ull
#define LAY_FEATURE_RO_COMPAT 0ull
#define LAY_FEATURE_INCOMPAT \
    (LAY_INCOMPAT_DATA_CSUM | LAY_INCOMPAT_META_COPIES | LAY_INCOMPAT_TWO_LOGS | LAY_INCOMPAT_DRAFT)

#define LAY_INCOMPAT_DATA_CSUM   0x1ull /* data blocks have checksums: FORMAT.md 5.4 */
#define LAY_INCOMPAT_META_COPIES 0x2ull /* metadata has two places: FORMAT.md 2.3 */
#define LAY_INCOMPAT_TWO_LOGS    0x4ull /* the log has a second place: FORMAT.md 10 */
/* The format is not final: version_minor must be LAY_VERSION_MINOR. */
#define LAY_INCOMPAT_DRAFT (1ull << 63)

struct lay_incarnation {
    le64 counter; /* incremented by each writer, at most LAY_MAX_COUNTER; 0: none */
    le64 id;      /* random, not 0 */
};
LAY_SIZE(lay_incarnation, 16);

enum lay_member_state {
    LAY_MEMBER_NONE = 0,
    LAY_MEMBER_LIVE = 1,
    LAY_MEMBER_ABSENT = 2,
    LAY_MEMBER_LATE = 3,
};

struct lay_member {
    uint8_t uuid[16];
    le64 blocks;
    le32 lba_size; /* 512 or 4096 */
    le16 state;    /* enum lay_member_state */
    le16 flags;
    struct lay_incarnation seen;  /* durable on the member before this label */
    struct lay_incarnation maybe; /* later one that may be durable on an absent member */
};
LAY_SIZE(lay_member, 64);
LAY_OFFSET(lay_member, seen, 32);

/* Magic, version and feature words have the same offsets in all versions. */
struct lay_label {
    struct lay_head head;
    le16 version_major;
    le16 version_minor;
    le32 block_size; /* 4096 */
    le16 index;      /* member whose label this is */
    le16 reserved;
    le32 flags;
    le64 compat;
    le64 ro_compat;
    le64 incompat;
    struct lay_incarnation incarnation;
    le64 log_id; /* records with another one do not exist */
    le64 log_blocks;
    uint8_t uuid[16];              /* the visible UUID */
    le64 logs[2];                  /* places; the second one with LAY_INCOMPAT_TWO_LOGS only */
    le64 supers[LAY_SUPER_COPIES]; /* places */
    struct lay_time created;
    le32 reserved2;
    char label[LAY_LABEL_MAX + 1]; /* UTF-8, zero-padded */
    struct lay_member members[LAY_MAX_MEMBERS];
    uint8_t reserved3[2824];
};
LAY_SIZE(lay_label, 4096);
LAY_OFFSET(lay_label, compat, 64);
LAY_OFFSET(lay_label, uuid, 120);
LAY_OFFSET(lay_label, label, 184);
LAY_OFFSET(lay_label, members, 248);

#define LAY_MMP_FREE         0u
#define LAY_MMP_MOUNTED      1u
#define LAY_MMP_CHECKED      2u /* by fsck or another tool that writes */
#define LAY_MMP_INTERVAL     5000u
#define LAY_MMP_INTERVAL_MIN 1000u
#define LAY_MMP_INTERVAL_MAX 60000u
#define LAY_MMP_HOST         64u

struct lay_mmp {
    struct lay_head head;
    le64 sequence;        /* incremented by each write */
    le32 interval;        /* milliseconds between writes */
    le32 state;           /* LAY_MMP_* */
    struct lay_time time; /* of the last write */
    le32 reserved;
    uint8_t boot_id[16];     /* of the host's kernel */
    uint8_t holder[16];      /* random, of this mount */
    char host[LAY_MMP_HOST]; /* zero-padded */
    le64 lock;               /* identifies the lock of the device on that host, or 0 */
    uint8_t reserved2[3912];
};
LAY_SIZE(lay_mmp, 4096);
LAY_OFFSET(lay_mmp, boot_id, 80);
LAY_OFFSET(lay_mmp, lock, 176);

#define LAY_BITMAP_SECTIONS 256u

#define LAY_STATE_ERROR 0x1u /* an inconsistency was found: fsck is required */

struct lay_area {
    le64 bitmaps[2]; /* first blocks of the bitmap area and of its copy, or LAY_NONE */
    le64 sums[2];    /* like bitmaps, of the checksum area; 0 without LAY_INCOMPAT_DATA_CSUM */
    le32 bitmap_age; /* age of the top block of the bitmaps */
    le32 sums_age;   /* age of the top block of the checksums */
    le64 blocks;     /* size of the file system */
    le64 free_blocks;
    le64 reserved;
};
LAY_SIZE(lay_area, 64);
LAY_OFFSET(lay_area, blocks, 40);

struct lay_super {
    struct lay_head head;
    le32 state;       /* LAY_STATE_* */
    le32 chunk_shift; /* a chunk has 2^chunk_shift segments */
    le64 inodes;      /* number of inodes in use */
    struct lay_inode inode_file;
    uint8_t hash_seed[16];
    le64 free_inode_block; /* first inode-file block with a free slot, or LAY_NONE */
    le64 orphan;           /* first inode of the orphan list, or LAY_NONE */
    le64 mounts;
    struct lay_time mounted;
    le32 reserve; /* chunks' worth of free blocks that mapped chunks keep: FORMAT.md 5.7 */
    /* The last clean unmount: valid while the label has this incarnation. */
    struct lay_incarnation clean_incarnation;
    le64 clean_tid; /* commit of that unmount */
    le64 clean_pos;
    le64 map[2];     /* first blocks of the chunk map and of its copy, or LAY_NONE */
    le64 map_blocks; /* of its level 0 */
    le32 map_age;    /* age of the top block of the map */
    le32 reserved;
    le64 chunks; /* that are mapped */
    struct lay_area area;
    uint8_t section_free[LAY_BITMAP_SECTIONS]; /* hints: FORMAT.md 5.2 */
    uint8_t reserved2[3080];
};
LAY_SIZE(lay_super, 4096);
LAY_OFFSET(lay_super, hash_seed, 568);
LAY_OFFSET(lay_super, clean_incarnation, 624);
LAY_OFFSET(lay_super, map, 656);
LAY_OFFSET(lay_super, area, 696);
LAY_OFFSET(lay_super, section_free, 760);
LAY_OFFSET(lay_super, reserved2, 1016);

/* --- 5. Space -------------------------------------------------------------------------------- */

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
 * Entry e of checksum block i belongs to block i * 1008 + e.
 */
struct lay_sums {
    struct lay_head head;
    le64 index; /* number of this block in the area */
    le64 reserved;
    le32 sums[LAY_SUMS_ENTRIES];
};
LAY_SIZE(lay_sums, 4096);
LAY_OFFSET(lay_sums, sums, 64);

#define LAY_AGES       1008u /* in a block of ages */
#define LAY_MAX_LEVELS 5u    /* of an area */

/*
 * Lays out a block of ages. Age i is that of block 1008 * number + i of the
 * level below, as of the last checkpoint.
 */
struct lay_ages {
    struct lay_head head;
    le64 reserved[2];
    le32 ages[LAY_AGES];
};
LAY_SIZE(lay_ages, 4096);
LAY_OFFSET(lay_ages, ages, 64);

#define LAY_SEGMENT_BLOCKS  512u /* 2 MiB, aligned to its size */
#define LAY_MAX_CHUNK_SHIFT 4u
#define LAY_MAX_CHUNKS      (1u << 22)
#define LAY_MAX_SEGMENTS    (LAY_MAX_CHUNKS << LAY_MAX_CHUNK_SHIFT)
#define LAY_MAX_RESERVE     64u  /* chunks */
#define LAY_MAP_SLOTS       168u /* in a block of the map */

/* Describes where a segment is. */
struct lay_slot {
    le64 places[2]; /* first block of the segment and of its copy, or LAY_NONE */
    le32 age;       /* of the segment's block of entries, as of the last checkpoint */
    le32 reserved;
};
LAY_SIZE(lay_slot, 24);

/*
 * Slot i of block b belongs to segment b * 168 + i.
 */
struct lay_map_block {
    struct lay_head head;
    le64 index; /* number of this block in the map */
    le64 reserved;
    struct lay_slot slots[LAY_MAP_SLOTS];
};
LAY_SIZE(lay_map_block, 4096);
LAY_OFFSET(lay_map_block, slots, 64);

/* Lays out block 0 of each segment. */
struct lay_entries {
    struct lay_head head;
    le32 free; /* zero bits in `used` */
    le32 reserved;
    le64 reserved2;
    uint8_t used[LAY_SEGMENT_BLOCKS / 8]; /* one bit per block of the segment */
    le32 ages[LAY_SEGMENT_BLOCKS];        /* of its blocks, as of the last checkpoint */
    uint8_t reserved3[1920];
};
LAY_SIZE(lay_entries, 4096);
LAY_OFFSET(lay_entries, used, 64);
LAY_OFFSET(lay_entries, ages, 128);

/* --- 6. B+trees ------------------------------------------------------------------------------ */

struct lay_branch {
    le64 key;   /* lowest key below child; first branch: the parent's key, or 0 in the root */
    le64 child; /* address */
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
 * Lays out a name. key is the hash of the name (55 bits) << 8 | a number that
 * distinguishes equal hashes. The key is unique in a directory and serves as
 * the entry's d_off. Records follow each other in key order, each padded with
 * zeros to 8 bytes.
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
    le64 next; /* address of the next block of the inode's chain, or 0 */
    le16 used; /* bytes of payload */
    le16 count;
    le32 reserved;
    uint8_t bytes[LAY_PAYLOAD];
};
LAY_SIZE(lay_xattr_block, 4096);

/*
 * Lays out the start of an attribute. The name (with its "user." prefix, not
 * terminated), the value, and zeros up to a multiple of 8 bytes follow.
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

/* --- 10. Log --------------------------------------------------------------------------------- */

/*
 * The first 80 bytes of descriptors and commits have the same layout, except
 * for the meaning of the words at 48 and 52.
 */

struct lay_tag {
    le64 block; /* logical address of the image */
    le32 age;   /* lay_age() of the image */
    le32 reserved;
};
LAY_SIZE(lay_tag, 16);
#define LAY_LOG_TAGS 251u

/*
 * Lays out a descriptor. In the log, `count` block images follow the
 * descriptor. head.tid is the number of the transaction.
 */
struct lay_log_descriptor {
    struct lay_head head;
    le32 count;
    le32 reserved;
    le64 log_id;
    struct lay_incarnation incarnation; /* of the writer */
    struct lay_tag tags[LAY_LOG_TAGS];
};
LAY_SIZE(lay_log_descriptor, 4096);
LAY_OFFSET(lay_log_descriptor, log_id, 56);
LAY_OFFSET(lay_log_descriptor, incarnation, 64);
LAY_OFFSET(lay_log_descriptor, tags, 80);

/*
 * Lays out a commit, which ends a transaction. The transaction is valid only if
 * the commit is present and matches.
 */
struct lay_log_commit {
    struct lay_head head;
    le32 blocks; /* log blocks of the transaction, including this one */
    le32 crc;    /* CRC32C over the head.crc of its descriptors, in order */
    le64 log_id;
    struct lay_incarnation incarnation;
    le64 tail_tid;  /* first transaction that may not be in place */
    le64 tail_pos;  /* log position of its first block */
    le32 super_age; /* age of the superblock as of the tail */
    le32 reserved;
    struct lay_time time;
    uint8_t reserved2[3980];
};
LAY_SIZE(lay_log_commit, 4096);
LAY_OFFSET(lay_log_commit, log_id, 56);
LAY_OFFSET(lay_log_commit, incarnation, 64);
LAY_OFFSET(lay_log_commit, super_age, 96);
LAY_OFFSET(lay_log_commit, reserved2, 116);

/*
 * Lays out an unused block in the log of a new file system. All words of the
 * block differ. Such a block is not a record, so the log ends there.
 */
#define LAY_UNUSED_WORDS ((4096u - 48u) / 8u)
#define LAY_UNUSED_LAST  1022u /* last position; a self-test reads up to it */
struct lay_log_unused {
    struct lay_head head;
    le64 words[LAY_UNUSED_WORDS];
};
LAY_SIZE(lay_log_unused, 4096);

#endif
