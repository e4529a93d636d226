/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Pure functions on blocks of the on-disk format: seal, check, hash, walk. They
 * do no I/O, logging or allocation and have no global state.
 *
 * Everything read from a device is untrusted. A lay_check_* function accepts a
 * block only if every field is within the limits of FORMAT.md. It returns 0, or
 * -EUCLEAN with *why set to a string literal that names the field. `why` may be
 * NULL. After a check has accepted a block, its fields may be used without
 * further range checks, except for the contents of other blocks.
 */
#ifndef LAYOUT_LAYOUT_H
#define LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/format.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LAY_ANY_OWNER UINT64_MAX

/* A buffer for any metadata block, aligned for its structs. */
union lay_block {
    uint8_t bytes[LAY_BLOCK_SIZE];
    struct lay_head head;
    struct lay_super super;
    struct lay_bitmap bitmap;
    struct lay_sums sums;
    struct lay_inode_block inodes;
    struct lay_node node;
    struct lay_xattr_block xattr;
    struct lay_symlink_block symlink;
    struct lay_journal journal;
    struct lay_journal_desc desc;
    struct lay_journal_revoke revoke;
    struct lay_journal_commit commit;
};

/*
 * The shape of a file system from its superblock, which only a resize changes.
 */
struct lay_geometry {
    uint8_t uuid[16];
    uint8_t hash_seed[16];
    uint64_t blocks;
    uint64_t bitmap_start, bitmap_blocks;
    uint64_t journal_start, journal_blocks;
    uint64_t copies[LAY_SUPER_COPIES];
    uint64_t sums_start, sums_blocks; /* 0 if data has no checksums */
    /*
     * The following fields are not part of the shape: transactions may change them.
     */
    uint64_t compat, ro_compat, incompat;
    char label[LAY_LABEL_MAX + 1];
};

/* --- Checksums and seals --------------------------------------------------------------------- */

/*
 * Returns the CRC32C (Castagnoli) of len bytes, continued from crc; start with
 * 0.
 */
uint32_t lay_crc32c(uint32_t crc, const void *data, size_t len);
/*
 * Returns the checksum entry of one data block (FORMAT.md 5.4): its CRC32C, but
 * never LAY_NO_SUM.
 */
uint32_t lay_data_sum(const void *data);
/* Returns the checksum entry of a block whose CRC32C is known. */
uint32_t lay_sum_of(uint32_t crc);
#define LAY_ZEROS_SUM 0x98f94189u /* entry of a block of zeros */
/*
 * Returns the checksum of a metadata block at address `block`: FORMAT.md 2.1.
 */
uint32_t lay_block_crc(const uint8_t uuid[16], uint64_t block, const void *data);
/*
 * Sets head.magic, block, owner and uuid of a zeroed or old block; lay_seal()
 * sets tid and crc.
 */
void lay_head_init(struct lay_head *head, uint32_t magic, const uint8_t uuid[16], uint64_t block,
                   uint64_t owner);
/*
 * Sets head.tid and the checksum. This is the last step before a block is
 * written.
 */
void lay_seal(void *block, uint64_t tid);
/* Checks magic, address, UUID, checksum and owner (unless LAY_ANY_OWNER). */
int lay_check_head(const void *block, uint32_t magic, const uint8_t uuid[16], uint64_t addr,
                   uint64_t owner, const char **why);

/* --- Superblock ------------------------------------------------------------------------------ */

/*
 * Checks a superblock read from address `addr` of a device of device_blocks
 * blocks (0: unknown). Returns -EUCLEAN if it is damaged, -EINVAL if it is not
 * this format (magic), and -ENOTSUP for an unknown version or incompat
 * features; then *why says which, and *features holds the unknown bits. *geo
 * changes only on success.
 */
int lay_check_super(const struct lay_super *sb, uint64_t addr, uint64_t device_blocks,
                    struct lay_geometry *geo, uint64_t *features, const char **why);

/*
 * True if a block has the magic of a superblock, or differs from it in one bit
 * (FORMAT.md 4.1).
 */
bool lay_super_magic(const struct lay_super *sb);

/*
 * True if two superblocks describe one file system. Features and label may
 * differ (FORMAT.md 4.1).
 */
bool lay_same_shape(const struct lay_geometry *a, const struct lay_geometry *b);

/*
 * Stores the addresses where superblock copies may be on a device of
 * device_blocks blocks whose block 0 is lost, if the file system fills the
 * device: FORMAT.md 4.1. Every address is below device_blocks.
 */
void lay_super_places(uint64_t device_blocks, uint64_t places[LAY_SUPER_COPIES]);

/*
 * Returns the number of groups, and so of bitmap blocks, of a file system of
 * `blocks` blocks.
 */
static inline uint64_t lay_groups_of(uint64_t blocks)
{
    return (blocks + LAY_GROUP_BLOCKS - 1) / LAY_GROUP_BLOCKS;
}

/* Returns the number of groups. */
static inline uint64_t lay_groups(const struct lay_geometry *geo)
{
    return geo->bitmap_blocks;
}

/*
 * Returns the groups per section of lay_super.bitmap_tids; the last section may
 * have fewer.
 */
static inline uint64_t lay_section_groups(const struct lay_geometry *geo)
{
    return (lay_groups(geo) + LAY_BITMAP_SECTIONS - 1) / LAY_BITMAP_SECTIONS;
}

/*
 * Returns the number of checksum blocks that a file system of `blocks` blocks
 * needs.
 */
static inline uint64_t lay_sums_blocks(uint64_t blocks)
{
    return (blocks + LAY_SUMS_ENTRIES - 1) / LAY_SUMS_ENTRIES;
}

/*
 * True if [block, block + len) is inside the file system and outside its fixed
 * areas (FORMAT.md 1).
 */
bool lay_range_ok(const struct lay_geometry *geo, uint64_t block, uint64_t len);
/*
 * Returns the blocks of a group: LAY_GROUP_BLOCKS, or fewer in the last group.
 */
uint32_t lay_group_blocks(const struct lay_geometry *geo, uint64_t group);
/* True if the text is UTF-8 without control characters. */
bool lay_text_ok(const char *text, size_t len);
/* Like lay_text_ok(), for at most LAY_LABEL_MAX bytes. */
bool lay_label_ok(const char *label, size_t len);

/* --- Blocks of the file system --------------------------------------------------------------- */

/* True if the group's bitmap may be a block of zeros (FORMAT.md 5.5). */
bool lay_may_be_zeros(const struct lay_geometry *geo, uint64_t group);
/*
 * Expands a bitmap that was read, before it is checked: a block of zeros, where
 * that is allowed, becomes the bitmap that it represents.
 */
void lay_bitmap_complete(const struct lay_geometry *geo, struct lay_bitmap *bm, uint64_t group);
/* Checks the bitmap of a group and its count of free blocks. */
int lay_check_bitmap(const struct lay_geometry *geo, const struct lay_bitmap *bm, uint64_t group,
                     const char **why);
/* Checks a checksum block. A block of zeros is valid and has no head. */
int lay_check_sums(const struct lay_geometry *geo, const struct lay_sums *sums, uint64_t index,
                   const char **why);
/*
 * Checks an inode block with all its slots. `index` is its file block in the
 * inode file, `addr` its address.
 */
int lay_check_inode_block(const struct lay_geometry *geo, const struct lay_inode_block *ib,
                          uint64_t index, uint64_t addr, const char **why);
/* Checks a single inode. ino 0 is the inode file's inode in the superblock. */
int lay_check_inode(const struct lay_geometry *geo, const struct lay_inode *inode, uint64_t ino,
                    const char **why);
/*
 * Checks a node of an extent tree (LAY_MAGIC_EXTENTS) or directory
 * (LAY_MAGIC_DIR): head, level, count, order of keys, all keys in [lo, hi], and
 * every record. Only a root may be empty.
 */
int lay_check_node(const struct lay_geometry *geo, const struct lay_node *node, uint32_t magic,
                   uint64_t addr, uint64_t owner, unsigned level, uint64_t lo, uint64_t hi,
                   const char **why);
/*
 * Check a single extent, a block of attributes, and the block of a symbolic
 * link's target.
 */
int lay_check_extent(const struct lay_geometry *geo, const struct lay_extent *e, const char **why);
int lay_check_xattr_block(const struct lay_geometry *geo, const struct lay_xattr_block *xb,
                          uint64_t addr, uint64_t owner, const char **why);
int lay_check_symlink_block(const struct lay_geometry *geo, const struct lay_symlink_block *sl,
                            uint64_t addr, uint64_t owner, const char **why);

/* --- Journal --------------------------------------------------------------------------------- */

/* Returns the log position after `pos`. */
uint64_t lay_journal_next(const struct lay_geometry *geo, uint64_t pos);
/*
 * Continues a commit's checksum (start with 0) over a sealed descriptor or
 * revoke block, in log order: the block's head.crc, then the crc of each tag. A
 * tag's own crc is lay_block_crc(uuid, address of the image in the log, image).
 */
uint32_t lay_journal_chain(uint32_t crc, const void *block);
/* Checks the first block of the journal area. */
int lay_check_journal(const struct lay_geometry *geo, const struct lay_journal *j,
                      const char **why);
/*
 * Checks a descriptor at device address `addr`. While scanning, -EUCLEAN also
 * means that the log ends there.
 */
int lay_check_journal_desc(const struct lay_geometry *geo, const struct lay_journal_desc *d,
                           uint64_t addr, uint64_t tid, const char **why);
/*
 * Checks the image of a tag of transaction tid, found at log address `addr`:
 * the tag's checksum, the image's head, and that this kind of block belongs at
 * the tag's address. A superblock must have this geometry.
 */
int lay_check_journal_image(const struct lay_geometry *geo, const struct lay_journal_tag *tag,
                            const void *image, uint64_t addr, uint64_t tid, const char **why);
/*
 * Check a revoke block and a commit block of transaction tid at device address
 * `addr`.
 */
int lay_check_journal_revoke(const struct lay_geometry *geo, const struct lay_journal_revoke *r,
                             uint64_t addr, uint64_t tid, const char **why);
int lay_check_journal_commit(const struct lay_geometry *geo, const struct lay_journal_commit *c,
                             uint64_t addr, uint64_t tid, const char **why);

/*
 * Returns the last log position that holds an unused block in a new file
 * system. The blocks behind it are zero.
 */
uint64_t lay_journal_unused_last(const struct lay_geometry *geo);
/*
 * Fills the block at log address `addr` of a new file system, where no
 * transaction has been written. UUID and hash seed from `geo` make blocks of
 * different file systems differ.
 */
void lay_journal_fill_unused(const struct lay_geometry *geo, uint64_t addr,
                             struct lay_journal_unused *out);

/* --- Names ----------------------------------------------------------------------------------- */

/* Returns the SipHash-2-4 of len bytes with a 16-byte key. */
uint64_t lay_siphash(const uint8_t key[16], const void *data, size_t len);
/*
 * Returns the hash part of a directory key: bits 62..8 come from the SipHash of
 * the name; the low 8 bits are 0.
 */
uint64_t lay_name_key(const uint8_t hash_seed[16], const char *name, size_t len);
/*
 * True for a name of 1 to 255 bytes without '/' and NUL, other than "." and
 * "..".
 */
bool lay_name_ok(const char *name, size_t len);

/* --- Walking records of checked blocks ------------------------------------------------------- */

/* Return the record after `prev` (NULL for the first), or NULL at the end. */
const struct lay_dirent *lay_dirent_next(const struct lay_node *leaf,
                                         const struct lay_dirent *prev);
const struct lay_xattr *lay_xattr_next(const struct lay_xattr_block *xb,
                                       const struct lay_xattr *prev);
/* Return an attribute's name (name_len bytes, not terminated) and its value. */
static inline const char *lay_xattr_name(const struct lay_xattr *x)
{
    return (const char *)(x + 1);
}
static inline const uint8_t *lay_xattr_value(const struct lay_xattr *x)
{
    return (const uint8_t *)(x + 1) + x->name_len;
}

/*
 * Convert between a time and seconds since 1970; nsec is below 1,000,000,000.
 */
struct lay_time lay_time_make(int64_t sec, uint32_t nsec);
int64_t lay_time_sec(struct lay_time t);

#ifdef __cplusplus
}
#endif

#endif
