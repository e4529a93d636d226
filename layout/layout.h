/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares pure functions that seal, check, hash and walk blocks of the on-disk
 * format. The functions do no I/O, logging or allocation and have no global
 * state.
 *
 * Everything read from a device is untrusted. A lay_check_* function accepts a
 * block only if every field is within the limits of FORMAT.md. It returns 0, or
 * -EUCLEAN with *why set to a string literal that names the field. `why` may be
 * NULL. After a check has accepted a block, its fields may be used without
 * further range checks, except for the contents of other blocks.
 */
#ifndef LAYOUT_LAYOUT_H
#define LAYOUT_LAYOUT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/cdefs.h>

#include "layout/format.h"

__BEGIN_DECLS

#define LAY_ANY_OWNER    UINT64_MAX
#define LAY_NSEC_PER_SEC 1000000000u

/* Holds any metadata block, aligned for its structs. */
union lay_block {
    uint8_t bytes[LAY_BLOCK_SIZE];
    struct lay_head head;
    struct lay_label label;
    struct lay_mmp mmp;
    struct lay_super super;
    struct lay_bitmap bitmap;
    struct lay_sums sums;
    struct lay_map_block map;
    struct lay_entries entries;
    struct lay_ages ages;
    struct lay_inode_block inodes;
    struct lay_node node;
    struct lay_xattr_block xattr;
    struct lay_symlink_block symlink;
    struct lay_log_descriptor desc;
    struct lay_log_commit commit;
};

/*
 * Describes what a file system looks like. lay_label_geometry() fills the first
 * part from the label. lay_check_super() fills the second part from a
 * superblock. Until then the fields of the second part are 0, and `blocks` is
 * the size of the member, which is at least the size of the file system.
 */
struct lay_geometry {
    uint8_t uuid[16]; /* the sealing UUID */
    uint64_t log_id;
    uint64_t log_start, log_copy, log_blocks; /* log_copy: of the second log, or 0 */
    uint64_t supers[LAY_SUPER_COPIES];        /* blocks of the superblock's copies */
    uint64_t compat, ro_compat, incompat;
    uint64_t blocks;
    /* From the superblock. */
    uint8_t hash_seed[16];
    /*
     * These fields are, for each area, the first block, the first block of the
     * copy, the number of blocks of level 0, and that of all levels. A field is
     * 0 if there is no copy, or for `sums` if data has no checksums.
     */
    uint64_t bitmap_start, bitmap_copy, bitmap_blocks, bitmap_len;
    uint64_t sums_start, sums_copy, sums_blocks, sums_len;
    uint64_t map_start, map_copy, map_blocks, map_len;
    uint32_t chunk_shift, reserve; /* as in lay_super */
};

/* Describes a range of blocks. */
struct lay_range {
    uint64_t start, len;
};

#define LAY_AREAS 12u /* maximum number in a file system */
/*
 * Stores the areas of FORMAT.md 1 that the geometry has, including the blocks
 * of labels and multi-mount protection, and returns their number.
 */
unsigned lay_areas(const struct lay_geometry *geo, struct lay_range areas[LAY_AREAS]);

/* Returns true if map, bitmaps, checksums and chunks have two places. */
static inline bool lay_has_copies(const struct lay_geometry *geo)
{
    return geo->incompat & LAY_INCOMPAT_META_COPIES;
}

/* --- Addresses ------------------------------------------------------------------------------- */

/* Return the kind (enum lay_kind) and the number of a logical address. */
static inline unsigned lay_addr_kind(uint64_t addr)
{
    return (unsigned)(addr >> LAY_KIND_SHIFT);
}
static inline uint64_t lay_addr_number(uint64_t addr)
{
    return addr & (((uint64_t)1 << LAY_LEVEL_SHIFT) - 1);
}
/*
 * Returns the level of an address. The value includes the bits of the member,
 * which are 0 in a valid address. An address with such a bit set therefore
 * matches no block.
 */
static inline unsigned lay_addr_level(uint64_t addr)
{
    return (unsigned)(addr >> LAY_LEVEL_SHIFT) & 0xff;
}

/* Return the segment, and the block in it, of an address of kind LAY_KIND_CHUNK. */
static inline uint64_t lay_addr_segment(uint64_t addr)
{
    return lay_addr_number(addr) / LAY_SEGMENT_BLOCKS;
}
static inline uint32_t lay_addr_index(uint64_t addr)
{
    return (uint32_t)(lay_addr_number(addr) % LAY_SEGMENT_BLOCKS);
}

/*
 * Stores the one or two blocks that hold the metadata of a logical address, and
 * returns how many there are. Returns 0 if the file system has no such address,
 * and for blocks in chunks, which lay_slot_places() translates.
 */
unsigned lay_places(const struct lay_geometry *geo, uint64_t addr, uint64_t places[2]);

/*
 * Returns true if the log may hold an image for this address. The log holds
 * images of the superblock, the map, bitmaps, checksums, and blocks in chunks.
 * If the geometry is only that of the label, the function checks only limits
 * that all file systems have. A block in a chunk has a home only if the final
 * map has a place for its segment.
 */
bool lay_home_ok(const struct lay_geometry *geo, uint64_t addr);

/*
 * Returns the address of the block that names the age of another one, and sets
 * *index to the place of the age there. Returns LAY_NONE for the superblock,
 * labels and records of the log, whose ages no block names. The address must be
 * valid (lay_home_ok()).
 */
uint64_t lay_name_of(const struct lay_geometry *geo, uint64_t addr, unsigned *index);
/* Return and set the age of a block in the block that names it, from lay_name_of(). */
uint32_t lay_named_age(const void *name, uint64_t addr, unsigned index);
void lay_set_named_age(void *name, uint64_t addr, unsigned index, uint32_t age);
/*
 * Returns true if the block is in a chunk and the entries in `name` do not mark
 * it as used. Such a block's age is not named.
 */
bool lay_is_unnamed(const void *name, uint64_t addr);
/*
 * Returns the rank of a block. Blocks are sealed in ascending order of rank. A
 * block has a higher rank than the blocks whose ages it names.
 */
unsigned lay_rank(uint64_t addr);
#define LAY_RANK_SUPER (2u + LAY_MAX_LEVELS)
/*
 * Makes the contents of a block that was never written, which age 0 stands for.
 * Returns false if a block at this address must have been written.
 */
bool lay_new_block(const struct lay_geometry *geo, uint64_t addr, void *block);
/*
 * Returns the magic that follows from the address of a superblock, a block of
 * an area, or the entries of a segment.
 */
uint32_t lay_magic_of(uint64_t addr);

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
 * Returns the checksum of a metadata block at a logical address: FORMAT.md 2.1.
 */
uint32_t lay_block_crc(const uint8_t uuid[16], uint64_t addr, const void *data);
/*
 * Returns the age of a sealed block, which is its head.crc, or 2^32 - 1 if that
 * is 0: FORMAT.md 2.1.
 */
uint32_t lay_age(const void *block);
/*
 * Sets head.magic, block, owner and uuid of a zeroed or old block; lay_seal()
 * sets tid and crc.
 */
void lay_head_init(struct lay_head *head, uint32_t magic, const uint8_t uuid[16], uint64_t addr,
                   uint64_t owner);
/*
 * Sets head.tid and the checksum. This is the last step before a block is
 * written.
 */
void lay_seal(void *block, uint64_t tid);
/* Checks magic, address, UUID, checksum and owner (unless LAY_ANY_OWNER). */
int lay_check_head(const void *block, uint32_t magic, const uint8_t uuid[16], uint64_t addr,
                   uint64_t owner, const char **why);

/* --- Label and superblock -------------------------------------------------------------------- */

/*
 * Checks a label; label.h reads, judges and writes both copies. Returns
 * -EUCLEAN if it is damaged, -EINVAL if it is not this format (magic), and
 * -ENOTSUP for an unknown version or incompat features. *why is then a phrase
 * for the user, and *features (may be NULL) holds the unknown incompat bits.
 */
int lay_check_label(const struct lay_label *label, uint64_t *features, const char **why);

/*
 * Returns true if a block has the magic of a label, or differs from it in one
 * bit (FORMAT.md 4.1).
 */
bool lay_label_magic(const void *block);

/* Fills the first part of a geometry from a checked label and zeroes the rest. */
void lay_label_geometry(const struct lay_label *label, struct lay_geometry *geo);
/* Sets the size, the log and the places of the superblock in a label. */
void lay_label_set_geometry(struct lay_label *label, const struct lay_geometry *geo);
/* Sets the size and the areas in a superblock. */
void lay_super_set_geometry(struct lay_super *sb, const struct lay_geometry *geo);

/* Checks the block of multi-mount protection. */
int lay_check_mmp(const struct lay_geometry *geo, const struct lay_mmp *mmp, const char **why);

/*
 * Checks a superblock with the geometry of the label (its second part is
 * ignored). On success *geo has the complete geometry. geo may be equal to
 * of_label, or NULL.
 */
int lay_check_super(const struct lay_super *sb, const struct lay_geometry *of_label,
                    struct lay_geometry *geo, const char **why);

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
 * Returns the groups per section of lay_super.section_free; the last section
 * may have fewer.
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
 * Returns true if [block, block + len) is inside the file system and outside
 * its fixed areas (FORMAT.md 1).
 */
bool lay_range_ok(const struct lay_geometry *geo, uint64_t block, uint64_t len);
/*
 * Returns the blocks of a group: LAY_GROUP_BLOCKS, or fewer in the last group.
 */
uint32_t lay_group_blocks(const struct lay_geometry *geo, uint64_t group);
/* Returns true if the text is UTF-8 without control characters. */
bool lay_text_ok(const char *text, size_t len);
/* Like lay_text_ok(), for at most LAY_LABEL_MAX bytes. */
bool lay_label_ok(const char *label, size_t len);

/* --- Chunks ---------------------------------------------------------------------------------- */

/* Returns the blocks of level l of an area whose level 0 has n blocks; 0 above its top. */
uint64_t lay_level_blocks(uint64_t n, unsigned level);
/* Returns the blocks of all levels of an area whose level 0 has n blocks. */
uint64_t lay_area_blocks(uint64_t n);
/* Sets the sizes of the areas for the sizes of the file system and of the map's level 0. */
void lay_size_areas(struct lay_geometry *geo);
/*
 * Return the size of chunks, the reserve, and the slots of the map that mkfs
 * chooses for a file system of `blocks` blocks. A change of the file system's
 * size keeps chunk_shift and sets the reserve and the slots again.
 */
uint32_t lay_chunk_shift(uint64_t blocks);
uint32_t lay_reserve(uint64_t blocks);
uint64_t lay_map_slots(uint64_t blocks, uint32_t chunk_shift);
/* Returns the blocks of level 0 of a map with this many slots. */
static inline uint64_t lay_map_blocks(uint64_t slots)
{
    return (slots + LAY_MAP_SLOTS - 1) / LAY_MAP_SLOTS;
}

/* Returns the segments of a chunk. */
static inline uint32_t lay_chunk_segments(const struct lay_geometry *geo)
{
    return 1u << geo->chunk_shift;
}
/*
 * Returns how many segments can be mapped. Only slots of whole chunks count. If
 * the geometry is only that of the label, returns LAY_MAX_SEGMENTS.
 */
uint64_t lay_segments(const struct lay_geometry *geo);
/*
 * Returns true if this is the address of a block in a chunk that an inode, node
 * or xattr block may name, which excludes blocks of entries. The caller checks
 * whether the segment is mapped.
 */
bool lay_chunk_addr_ok(const struct lay_geometry *geo, uint64_t addr);

/* Returns true if the segment of a slot has a place. */
static inline bool lay_slot_mapped(const struct lay_slot *slot)
{
    return lay_get64(slot->places[0]) != LAY_NONE;
}
/*
 * Sets a slot to a segment at this block and its copy at `copy`, which may be
 * LAY_NONE. If both are LAY_NONE, the slot is not mapped.
 */
void lay_slot_set(struct lay_slot *slot, uint64_t block, uint64_t copy);
/*
 * Stores the blocks that hold the metadata of an address of kind
 * LAY_KIND_CHUNK, according to the slot of its segment, and returns how many
 * there are. Returns 0 if the segment is not mapped.
 */
unsigned lay_slot_places(const struct lay_slot *slot, uint64_t addr, uint64_t places[2]);
/*
 * Returns true if `next` is exactly one segment behind `slot`, or if neither
 * slot is mapped. Consecutive segments of a chunk must satisfy this.
 */
bool lay_slots_follow(const struct lay_slot *slot, const struct lay_slot *next);

/* --- Blocks of the file system --------------------------------------------------------------- */

/* Checks the bitmap of a group and its count of free blocks. */
int lay_check_bitmap(const struct lay_geometry *geo, const struct lay_bitmap *bm, uint64_t group,
                     const char **why);
/* Checks a checksum block. */
int lay_check_sums(const struct lay_geometry *geo, const struct lay_sums *sums, uint64_t index,
                   const char **why);
/*
 * Checks a block of the map: each mapped segment is inside the file system and
 * outside the fixed areas, and the slots of a chunk follow each other. The
 * caller checks whether segments overlap, and whether a chunk whose slots are
 * in two blocks (of 16 segments) continues in the next block.
 */
int lay_check_map_block(const struct lay_geometry *geo, const struct lay_map_block *mb,
                        uint64_t index, const char **why);
/* Checks a block of ages. */
int lay_check_ages(const struct lay_geometry *geo, const struct lay_ages *ages, uint64_t addr,
                   const char **why);
/* Checks the entries of a segment. */
int lay_check_entries(const struct lay_geometry *geo, const struct lay_entries *entries,
                      uint64_t segment, const char **why);
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
 * Check a single extent of a file or of the inode file, a block of attributes,
 * and the block of a symbolic link's target. The caller checks whether an
 * extent of a file lies outside every chunk.
 */
int lay_check_extent(const struct lay_geometry *geo, const struct lay_extent *e, const char **why);
int lay_check_inode_extent(const struct lay_geometry *geo, const struct lay_extent *e,
                           const char **why);
/* Returns true if the extent has blocks; a damaged one need not (FORMAT.md 3.2). */
static inline bool lay_extent_has_blocks(const struct lay_extent *e)
{
    return lay_get64(e->block) != LAY_NONE;
}
int lay_check_xattr_block(const struct lay_geometry *geo, const struct lay_xattr_block *xb,
                          uint64_t addr, uint64_t owner, const char **why);
int lay_check_symlink_block(const struct lay_geometry *geo, const struct lay_symlink_block *sl,
                            uint64_t addr, uint64_t owner, const char **why);

/* Describes what the reader of a block already knows of the block. */
struct lay_expect {
    uint32_t magic; /* LAY_MAGIC_*; 0: any, of which only head and checksum are checked */
    uint64_t owner;
    unsigned level;  /* level of a tree node */
    uint64_t lo, hi; /* range of keys of a tree node */
};
/*
 * Checks a block of an area or a chunk by the function for its magic, which may
 * differ from the magic that the address implies. The address must be one of the
 * file system. Returns 0, or -EUCLEAN with *why.
 */
int lay_check_block(const struct lay_geometry *geo, uint64_t addr, const void *block,
                    const struct lay_expect *want, const char **why);

/* --- Log ------------------------------------------------------------------------------------- */

/* Returns the log position after `pos`. */
static inline uint64_t lay_log_after(const struct lay_geometry *geo, uint64_t pos)
{
    return pos + 1 >= geo->log_blocks ? 0 : pos + 1;
}
#define LAY_LOGS 2u /* maximum number */
/* Returns the number of logs. All logs have equal contents. */
static inline unsigned lay_logs(const struct lay_geometry *geo)
{
    return geo->log_copy ? 2 : 1;
}
/* Returns the device block at a position of a log. `log` is below lay_logs(). */
static inline uint64_t lay_log_block(const struct lay_geometry *geo, unsigned log, uint64_t pos)
{
    return (log ? geo->log_copy : geo->log_start) + pos;
}
/*
 * Zeroes a block and prepares it as a descriptor or commit at log position
 * `pos`. lay_seal() with the transaction's number completes it. The fields
 * log_id and incarnation have the same offsets in both records.
 */
static inline void lay_log_init(void *block, uint32_t magic, const struct lay_geometry *geo,
                                const struct lay_incarnation *incarnation, uint64_t pos)
{
    struct lay_log_commit *record = (struct lay_log_commit *)block;

    memset(block, 0, LAY_BLOCK_SIZE);
    lay_head_init(&record->head, magic, geo->uuid, LAY_ADDR(LAY_KIND_LOG, pos), 0);
    record->log_id = lay_put64(geo->log_id);
    record->incarnation = *incarnation;
}
/*
 * Continues a commit's checksum (start with 0) over a sealed descriptor, in log
 * order.
 */
static inline uint32_t lay_log_chain(uint32_t crc, const void *block)
{
    const struct lay_head *head = (const struct lay_head *)block;

    return lay_crc32c(crc, &head->crc, sizeof(head->crc));
}
/*
 * Check a record of transaction tid at log position `pos`. The geometry of the
 * label suffices. Return -EUCLEAN also if the position holds something else.
 */
int lay_check_descriptor(const struct lay_geometry *geo, const struct lay_log_descriptor *d,
                         uint64_t pos, uint64_t tid, const char **why);
int lay_check_commit(const struct lay_geometry *geo, const struct lay_log_commit *c, uint64_t pos,
                     uint64_t tid, const char **why);
/*
 * Checks the image of a tag of transaction tid: the tag's age, the image's
 * head, and that this kind of block belongs at the tag's address. The geometry
 * of the label suffices.
 */
int lay_check_image(const struct lay_geometry *geo, const struct lay_tag *tag, const void *image,
                    uint64_t tid, const char **why);

/*
 * Returns the last log position that holds an unused block in a new file
 * system; the first one is 1. The blocks behind it are zero.
 */
uint64_t lay_log_unused_last(const struct lay_geometry *geo);
/*
 * Fills the block at log position `pos` of a new file system, where no
 * transaction has been written. The UUID makes blocks of different file systems
 * differ.
 */
void lay_log_fill_unused(const struct lay_geometry *geo, uint64_t pos, struct lay_log_unused *out);

/* --- Names ----------------------------------------------------------------------------------- */

/* Returns the SipHash-2-4 of len bytes with a 16-byte key. */
uint64_t lay_siphash(const uint8_t key[16], const void *data, size_t len);
/*
 * Returns the hash part of a directory key: bits 62..8 come from the SipHash of
 * the name; the low 8 bits are 0.
 */
uint64_t lay_name_key(const uint8_t hash_seed[16], const char *name, size_t len);
/*
 * Returns true if the name has 1 to 255 bytes, contains neither '/' nor NUL,
 * and is neither "." nor "..".
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
 * These functions convert between a time and seconds since 1970. nsec is below
 * LAY_NSEC_PER_SEC.
 */
static inline struct lay_time lay_time_make(int64_t sec, uint32_t nsec)
{
    struct lay_time t;

    assert(nsec < LAY_NSEC_PER_SEC);
    t.nsec = lay_put32(nsec);
    t.sec_lo = lay_put32((uint32_t)sec);
    t.sec_hi = lay_put32((uint32_t)((uint64_t)sec >> 32));
    return t;
}
static inline int64_t lay_time_sec(struct lay_time t)
{
    return (int64_t)((uint64_t)lay_get32(t.sec_hi) << 32 | lay_get32(t.sec_lo));
}
/* Returns true if all len bytes are zero. */
bool lay_is_zero(const void *data, size_t len);

__END_DECLS

#endif
