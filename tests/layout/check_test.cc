/* SPDX-License-Identifier: BSD-2-Clause */
/* One field out of range at a time: each is refused, and the reason names the field. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/layout/objects.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace
{

struct Case {
    object_kind kind;
    const char *name;
    const char *why; /* the reason begins with this */
    std::function<void(lay_block &)> spoil;
};

lay_inode &slot(lay_block &o, unsigned s)
{
    return o.inodes.inodes[s];
}

lay_xattr &xattr(lay_block &o)
{
    return *reinterpret_cast<lay_xattr *>(o.xattr.bytes);
}

lay_dirent &dirent(lay_block &o)
{
    return *reinterpret_cast<lay_dirent *>(o.node.u.bytes);
}

lay_dirent &second_dirent(lay_block &o)
{
    return *reinterpret_cast<lay_dirent *>(o.node.u.bytes + lay_get16(dirent(o).len));
}

void set_second_log(lay_block &o, uint64_t block)
{
    o.label.incompat = lay_put64(lay_get64(o.label.incompat) | LAY_INCOMPAT_TWO_LOGS);
    o.label.logs[1] = lay_put64(block);
}

void make_empty(lay_block &o)
{
    o.node.count = lay_put16(0);
    o.node.used = lay_put32(0);
    std::memset(o.node.u.bytes, 0, LAY_PAYLOAD);
}

void put(le16 &field, uint64_t value)
{
    field = lay_put16(static_cast<uint16_t>(value));
}

void put(le32 &field, uint64_t value)
{
    field = lay_put32(static_cast<uint32_t>(value));
}

void put(le64 &field, uint64_t value)
{
    field = lay_put64(value);
}

/* A case that changes the object `o` by one assignment or call. */
#define SPOIL(kind, name, why, change)                         \
    {                                                          \
        OBJECT_##kind, name, why, [](lay_block &o) { change; } \
    }
#define SET(kind, name, why, field, value) SPOIL(kind, name, why, put(field, value))
#define INODE(which, name, why, field, value) \
    SET(INODES, name, why, slot(o, SLOT_##which).field, value)

const Case label_cases[] = {
    SET(LABEL, "tid", "tid", o.head.tid, 1),
    SET(LABEL, "block_size", "block_size", o.label.block_size, 512),
    SET(LABEL, "index", "index", o.label.index, 1),
    SET(LABEL, "reserved", "index", o.label.reserved, 1),
    SET(LABEL, "flags", "flags", o.label.flags, 1),
    SET(LABEL, "counter", "incarnation", o.label.incarnation.counter, 0),
    SET(LABEL, "counter_many", "incarnation", o.label.incarnation.counter, LAY_MAX_COUNTER + 1),
    SET(LABEL, "id", "incarnation", o.label.incarnation.id, 0),
    SET(LABEL, "log_id", "log_id", o.label.log_id, 0),
    SET(LABEL, "log_short", "log_blocks", o.label.log_blocks, LAY_MIN_LOG - 1),
    SET(LABEL, "log_long", "log_blocks", o.label.log_blocks, LAY_MAX_LOG + 1),
    SET(LABEL, "log_at_label", "logs", o.label.logs[0], 0),
    SET(LABEL, "log_over_label", "logs", o.label.logs[0], LAY_LABEL_SECOND - 1),
    SET(LABEL, "log_past_end", "logs", o.label.logs[0], OBJECT_BLOCKS - 1023),
    SET(LABEL, "log_far", "logs", o.label.logs[0], UINT64_MAX - 5),
    SET(LABEL, "second_log", "logs", o.label.logs[1], 3000),
    SPOIL(LABEL, "second_log_missing", "logs", set_second_log(o, LAY_NONE)),
    SPOIL(LABEL, "second_log_at_label", "logs", set_second_log(o, 0)),
    SPOIL(LABEL, "second_log_over_first", "logs",
          set_second_log(o, lay_get64(o.label.logs[0]) + 1023)),
    SPOIL(LABEL, "second_log_past_end", "logs", set_second_log(o, OBJECT_BLOCKS - 1023)),
    SET(LABEL, "super_at_mmp", "supers", o.label.supers[0], LAY_MMP_BLOCK),
    SET(LABEL, "super_in_log", "logs", o.label.supers[1], 47),
    SET(LABEL, "super_past_end", "supers", o.label.supers[1], OBJECT_BLOCKS),
    SPOIL(LABEL, "super_twice", "supers", o.label.supers[1] = o.label.supers[0]),
    SET(LABEL, "created", "created", o.label.created.nsec, 1000000000),
    SPOIL(LABEL, "label_unterminated", "label", std::memset(o.label.label, 'x', 64)),
    SPOIL(LABEL, "label_after_end", "label", o.label.label[63] = 'x'),
    SPOIL(LABEL, "label_not_utf8", "label", o.label.label[0] = '\xff'),
    SET(LABEL, "blocks_few", "members: blocks", o.label.members[0].blocks, LAY_MIN_BLOCKS - 1),
    SET(LABEL, "blocks_many", "members: blocks", o.label.members[0].blocks, LAY_MAX_BLOCKS + 1),
    SET(LABEL, "lba_size", "members: lba_size", o.label.members[0].lba_size, 1024),
    SET(LABEL, "member_state", "members: state", o.label.members[0].state, LAY_MEMBER_LATE),
    SET(LABEL, "member_maybe", "members: state", o.label.members[0].maybe.id, 1),
    SET(LABEL, "member_seen", "members: seen", o.label.members[0].seen.counter, 5),
    SPOIL(LABEL, "member_second", "members", o.label.members[15].uuid[0] = 1),
    SET(LABEL, "reserved2", "reserved", o.label.reserved2, 1),
    SPOIL(LABEL, "reserved3", "reserved", o.label.reserved3[2823] = 1),
    SET(MMP, "tid", "tid", o.head.tid, 1),
    SET(MMP, "interval_short", "interval", o.mmp.interval, LAY_MMP_INTERVAL_MIN - 1),
    SET(MMP, "interval_long", "interval", o.mmp.interval, LAY_MMP_INTERVAL_MAX + 1),
    SET(MMP, "state", "state", o.mmp.state, 3),
    SET(MMP, "time", "time", o.mmp.time.nsec, 1000000000),
    SET(MMP, "reserved", "reserved", o.mmp.reserved, 1),
    SPOIL(MMP, "reserved2", "reserved", o.mmp.reserved2[3911] = 1),
};

const Case super_cases[] = {
    SET(SUPER, "state", "state", o.super.state, 2),
    SET(SUPER, "chunk_shift", "chunk_shift", o.super.chunk_shift, LAY_MAX_CHUNK_SHIFT + 1),
    SET(SUPER, "reserve", "reserve", o.super.reserve, LAY_MAX_RESERVE + 1),
    SET(SUPER, "map_at_label", "map", o.super.map[0], 0),
    SET(SUPER, "map_none", "map", o.super.map[0], LAY_NONE),
    SET(SUPER, "map_in_log", "map", o.super.map[0], 1070),
    SET(SUPER, "map_levels_in_super", "map", o.super.map[0], OBJECT_BLOCKS / 2 - 2),
    SET(SUPER, "map_past_end", "map", o.super.map[0], OBJECT_BLOCKS - 2),
    SET(SUPER, "map_copied", "map", o.super.map[1], 3000),
    SET(SUPER, "map_blocks_none", "map_blocks", o.super.map_blocks, 0),
    SET(SUPER, "map_blocks_many", "map_blocks", o.super.map_blocks,
        lay_map_blocks(2 * uint64_t{LAY_MAX_CHUNKS}) + 1),
    SET(SUPER, "chunks_none", "chunks", o.super.chunks, 0),
    SET(SUPER, "chunks_many", "chunks", o.super.chunks, 169),
    SET(SUPER, "blocks_few", "blocks", o.super.area.blocks, LAY_MIN_BLOCKS - 1),
    SET(SUPER, "blocks_past_member", "blocks", o.super.area.blocks, OBJECT_BLOCKS + 1),
    {OBJECT_SUPER, "blocks_before_super", "blocks",
     [](lay_block &o) {
         o.super.area.blocks = lay_put64(OBJECT_BLOCKS / 2);
         o.super.area.free_blocks = lay_put64(1);
     }},
    SPOIL(SUPER, "free_blocks", "free_blocks", o.super.area.free_blocks = o.super.area.blocks),
    SET(SUPER, "inodes_none", "inodes", o.super.inodes, 0),
    SET(SUPER, "inodes_many", "inodes", o.super.inodes, 16),
    SET(SUPER, "bitmaps_at_label", "bitmaps", o.super.area.bitmaps[0], 0),
    SET(SUPER, "bitmaps_over_super", "bitmaps", o.super.area.bitmaps[0], OBJECT_BLOCKS / 2 - 1),
    SET(SUPER, "bitmap_levels_over_super", "bitmaps", o.super.area.bitmaps[0],
        OBJECT_BLOCKS / 2 - 2),
    SET(SUPER, "bitmaps_past_end", "bitmaps", o.super.area.bitmaps[0], OBJECT_BLOCKS - 1),
    SET(SUPER, "bitmaps_in_log", "bitmaps", o.super.area.bitmaps[0], 48),
    SET(SUPER, "bitmaps_copied", "area", o.super.area.bitmaps[1], 3000),
    SET(SUPER, "area_reserved", "area", o.super.area.reserved, 1),
    SET(SUPER, "free_inode_block", "free_inode_block", o.super.free_inode_block, 2),
    SET(SUPER, "orphan_root", "orphan", o.super.orphan, 1),
    SET(SUPER, "orphan_past", "orphan", o.super.orphan, 16),
    SET(SUPER, "clean_tid", "clean_tid", o.super.clean_tid, LAY_MAX_TID + 1),
    SET(SUPER, "mounted", "mounted", o.super.mounted.nsec, 1000000000),
    SET(SUPER, "reserved", "map", o.super.reserved, 1),
    SPOIL(SUPER, "reserved2", "reserved", o.super.reserved2[3079] = 1),
    SET(SUPER, "inode_file_mode", "inode_file", o.super.inode_file.mode, 0100644),
    SET(SUPER, "inode_file_uid", "inode_file", o.super.inode_file.uid, 1),
    SET(SUPER, "inode_file_blocks", "inode_file", o.super.inode_file.blocks, 2),
    SET(SUPER, "inode_file_hole", "inode.map", o.super.inode_file.map.extents[0].file_block, 1),
    SET(SUPER, "inode_file_unwritten", "extent.flags", o.super.inode_file.map.extents[0].flags, 1),
    SET(SUPER, "inode_file_of_data", "extent.block", o.super.inode_file.map.extents[0].block, 3000),
    SET(SUPER, "inode_file_entries", "extent.block", o.super.inode_file.map.extents[0].block,
        LAY_ADDR_CHUNK(5, 0)),
    SET(SUPER, "inode_file_two_segments", "extent.block", o.super.inode_file.map.extents[0].block,
        LAY_ADDR_CHUNK(5, 511)),
    SET(SUPER, "inode_file_past", "extent.block", o.super.inode_file.map.extents[0].block,
        LAY_ADDR_CHUNK(336, 1)),
    SET(SUPER, "inode_file_size", "inode.size", o.super.inode_file.size, 3 * LAY_BLOCK_SIZE),
};

const Case bitmap_cases[] = {
    SET(BITMAP, "group", "group", o.bitmap.group, 0),
    SET(BITMAP, "free", "free", o.bitmap.free, 7),
    SET(BITMAP, "reserved", "reserved", o.bitmap.reserved, 1),
    SPOIL(BITMAP, "past_end", "bits past the end", o.bitmap.bits[LAY_PAYLOAD - 1] = 0x7f),
};

lay_slot &map_slot(lay_block &o, unsigned s)
{
    return o.map.slots[s];
}

const Case chunk_cases[] = {
    SET(MAP, "index", "index", o.map.index, 1),
    SET(MAP, "owner", "owner", o.head.owner, 1),
    SET(MAP, "reserved", "reserved", o.map.reserved, 1),
    SET(MAP, "age_unmapped", "slot.age", map_slot(o, 2).age, 1),
    SET(MAP, "slot_reserved", "slot.reserved", map_slot(o, 167).reserved, 1),
    SET(MAP, "copy", "slot.places", map_slot(o, 6).places[1], 20480),
    SET(MAP, "copy_unmapped", "slot.places", map_slot(o, 2).places[1], 20480),
    SPOIL(MAP, "zeros", "slot.places", map_slot(o, 9) = lay_slot{}),
    SPOIL(MAP, "unaligned", "slot.places",
          lay_slot_set(&map_slot(o, 6), 21 * LAY_SEGMENT_BLOCKS - 1, LAY_NONE)),
    SPOIL(MAP, "in_map", "slot.places",
          lay_slot_set(&map_slot(o, 6), 2 * LAY_SEGMENT_BLOCKS, LAY_NONE)),
    SPOIL(MAP, "over_super", "slot.places",
          lay_slot_set(&map_slot(o, 6), 39 * LAY_SEGMENT_BLOCKS, LAY_NONE)),
    SPOIL(MAP, "past_end", "slot.places",
          lay_slot_set(&map_slot(o, 6), 78 * LAY_SEGMENT_BLOCKS, LAY_NONE)),
    SPOIL(MAP, "member", "slot.places", map_slot(o, 6).places[0].le |= uint64_t{1} << 52),
    SPOIL(MAP, "chunk_0", "slot: chunk 0", lay_slot_set(&map_slot(o, 0), LAY_NONE, LAY_NONE)),
    SPOIL(MAP, "chunk_apart", "slot: not behind",
          lay_slot_set(&map_slot(o, 7), 30 * LAY_SEGMENT_BLOCKS, LAY_NONE)),
    SPOIL(MAP, "chunk_half", "slot: not behind", lay_slot_set(&map_slot(o, 7), LAY_NONE, LAY_NONE)),
    SPOIL(MAP, "chunk_other_half", "slot: not behind",
          lay_slot_set(&map_slot(o, 6), LAY_NONE, LAY_NONE)),
    SET(ENTRIES, "address", "block address", o.head.block, LAY_ADDR_CHUNK(7, 0)),
    {OBJECT_ENTRIES, "block_0", "used: block 0",
     [](lay_block &o) {
         o.entries.used[0] = 2;
         o.entries.free = lay_put32(LAY_SEGMENT_BLOCKS - 2);
     }},
    SET(ENTRIES, "free", "free", o.entries.free, 510),
    SET(ENTRIES, "ages", "ages", o.entries.ages[511], 1),
    SET(ENTRIES, "ages_own", "ages", o.entries.ages[0], 1),
    SET(ENTRIES, "reserved", "reserved", o.entries.reserved, 1),
    SET(ENTRIES, "reserved2", "reserved", o.entries.reserved2, 1),
    SPOIL(ENTRIES, "reserved3", "reserved", o.entries.reserved3[1919] = 1),
    SET(AGES, "owner", "owner", o.head.owner, 1),
    SET(AGES, "reserved", "reserved", o.ages.reserved[1], 1),
    SET(AGES, "past_end", "ages past the end", o.ages.ages[40], 1),
    SET(AGES, "past_end_last", "ages past the end", o.ages.ages[LAY_AGES - 1], 1),
};

const Case inode_cases[] = {
    SET(INODES, "next_free_self", "next_free", o.inodes.next_free, 3),
    SET(INODES, "next_free_past", "next_free", o.inodes.next_free, OBJECT_BLOCKS),
    {OBJECT_INODES, "used_too_much", "used",
     [](lay_block &o) {
         o.inodes.used = 0xff;
         o.inodes.next_free = lay_put64(LAY_NONE);
     }},
    SPOIL(INODES, "used_too_little", "used", o.inodes.used = 0x7e),
    SET(INODES, "block_owner", "owner", o.head.owner, 8),
    SPOIL(INODES, "block_reserved", "reserved", o.inodes.reserved[6] = 1),
    INODE(FREE, "free_slot", "inode: free", size, 1),
    INODE(INLINE, "mode_bits", "inode.mode", mode, 0x18000 | 0600),
    INODE(INLINE, "mode_type", "inode.mode", mode, 0170600),
    INODE(INLINE, "flags", "inode.flags", flags, 16),
    INODE(DEVICE, "flags_device", "inode.flags", flags, 1),
    INODE(INLINE, "size", "inode.size", size, UINT64_MAX),
    INODE(DIR, "size_dir", "inode.size", size, 1),
    INODE(DEVICE, "size_device", "inode.size", size, 1),
    INODE(TARGET, "size_target", "inode.size", size, 0),
    INODE(TARGET, "size_target_long", "inode.size", size, 337),
    INODE(LINK, "size_link_short", "inode.size", size, 336),
    INODE(LINK, "size_link_long", "inode.size", size, 4096),
    INODE(INLINE, "blocks", "inode.blocks", blocks, 31),
    INODE(DEVICE, "blocks_device", "inode.blocks", blocks, 1),
    INODE(DIR, "blocks_dir", "inode.blocks", blocks, 1),
    INODE(LINK, "blocks_link", "inode.blocks", blocks, 1),
    INODE(TREE, "blocks_all", "inode.blocks", blocks, OBJECT_BLOCKS + 1),
    INODE(INLINE, "atime", "inode times", atime.nsec, 1000000000),
    INODE(INLINE, "mtime", "inode times", mtime.nsec, 1000000000),
    INODE(INLINE, "ctime", "inode times", ctime.nsec, 1000000000),
    INODE(INLINE, "btime", "inode times", btime.nsec, 1000000000),
    INODE(INLINE, "rdev", "inode.rdev", rdev, 1),
    SPOIL(INODES, "policy", "inode.policy", slot(o, SLOT_INLINE).policy = 1),
    SPOIL(INODES, "unit", "inode.policy", slot(o, SLOT_DIR).unit = 21),
    INODE(INLINE, "set", "inode.policy", set, 1),
    INODE(INLINE, "project", "inode.project", project, 1),
    INODE(INLINE, "key", "inode.project", key, 1),
    SPOIL(INODES, "inode_reserved", "inode.reserved", slot(o, SLOT_INLINE).reserved[23] = 1),
    INODE(TREE, "xattr", "inode.xattr", xattr, 1),
    INODE(TREE, "xattr_block", "inode.xattr", xattr, 3000),
    INODE(INLINE, "nlink_zero", "inode.nlink", nlink, 0),
    INODE(DIR, "nlink_dir", "inode.nlink", nlink, 1),
    INODE(ORPHAN, "next_orphan_self", "inode.next_orphan", next_orphan, 24 + SLOT_ORPHAN),
    INODE(ORPHAN, "next_orphan_root", "inode.next_orphan", next_orphan, 1),
    INODE(INLINE, "parent_file", "inode.parent", parent, 1),
    INODE(DIR, "parent_none", "inode.parent", parent, 0),
    INODE(DIR, "parent_past", "inode.parent", parent, UINT64_MAX),
    INODE(INLINE, "map_kind", "inode.map_kind", map_kind, 6),
    INODE(INLINE, "map_kind_other", "inode.map_kind", map_kind, LAY_MAP_DIR),
    INODE(INLINE, "map_count", "inode.map_count", map_count, 15),
    INODE(TREE, "map_count_tree", "inode.map_count", map_count, 1),
    INODE(TREE, "map_height", "inode.map_height", map_height, 11),
    INODE(DIR, "map_height_zero", "inode.map_height", map_height, 0),
    INODE(INLINE, "map_height_inline", "inode.map_height", map_height, 1),
    INODE(INLINE, "map_reserved", "inode.map_reserved", map_reserved, 1),
    SPOIL(INODES, "map_unused", "inode.map: unused", slot(o, SLOT_INLINE).map.bytes[335] = 1),
    SPOIL(INODES, "tree_unused", "inode.map: unused", slot(o, SLOT_TREE).map.bytes[24] = 1),
    SPOIL(INODES, "device_map", "inode.map: unused", slot(o, SLOT_DEVICE).map.bytes[0] = 1),
    INODE(TREE, "tree_root", "map.tree.root", map.tree.root, 0),
    INODE(TREE, "tree_root_entries", "map.tree.root", map.tree.root, LAY_ADDR_CHUNK(5, 0)),
    INODE(TREE, "tree_blocks", "map.tree.blocks", map.tree.blocks, 1),
    INODE(TREE, "tree_entries", "map.tree.entries", map.tree.entries, UINT64_MAX),
    SPOIL(INODES, "target_nul", "inode.map: target", slot(o, SLOT_TARGET).map.bytes[2] = 0),
    SPOIL(INODES, "target_rest", "inode.map: unused", slot(o, SLOT_TARGET).map.bytes[5] = 1),
    INODE(LINK, "link_block", "map.link.block", map.link.block, 3),
    SPOIL(INODES, "link_tail", "inode.map: unused", slot(o, SLOT_LINK).map.link.tail[3] = 1),
    INODE(INLINE, "extent_order", "extent.file_block", map.extents[1].file_block, 9),
};

const Case tree_cases[] = {
    SET(EXTENT_LEAF, "len", "extent.len", o.node.u.extents[1].len, 0),
    SET(EXTENT_LEAF, "flags", "extent.flags", o.node.u.extents[1].flags, 4),
    SET(EXTENT_LEAF, "unwritten_and_damaged", "extent.flags", o.node.u.extents[1].flags, 3),
    SET(EXTENT_LEAF, "no_block", "extent.block", o.node.u.extents[1].block, LAY_NONE),
    {OBJECT_EXTENT_LEAF, "unwritten_no_block", "extent.block",
     [](lay_block &o) {
         o.node.u.extents[1].flags = lay_put16(LAY_EXTENT_UNWRITTEN);
         o.node.u.extents[1].block = lay_put64(LAY_NONE);
     }},
    {OBJECT_EXTENT_LEAF, "damaged_len", "extent.len",
     [](lay_block &o) {
         o.node.u.extents[1].flags = lay_put16(LAY_EXTENT_DAMAGED);
         o.node.u.extents[1].block = lay_put64(LAY_NONE);
         o.node.u.extents[1].len = lay_put32(LAY_DAMAGED_MAX + 1);
     }},
    {OBJECT_EXTENT_LEAF, "damaged_block", "extent.block",
     [](lay_block &o) {
         o.node.u.extents[1].flags = lay_put16(LAY_EXTENT_DAMAGED);
         o.node.u.extents[1].block = lay_put64(0);
     }},
    SET(EXTENT_LEAF, "device", "extent.device", o.node.u.extents[1].device, 1),
    SET(EXTENT_LEAF, "file_block", "extent.file_block", o.node.u.extents[2].file_block,
        LAY_MAX_FILE_BLOCKS),
    SET(EXTENT_LEAF, "block", "extent.block", o.node.u.extents[2].block, 5),
    SET(EXTENT_LEAF, "block_past", "extent.block", o.node.u.extents[2].block, UINT64_MAX),
    SET(EXTENT_LEAF, "overlap", "extent.file_block: overlap", o.node.u.extents[0].len, 11),
    SET(EXTENT_LEAF, "below_range", "extent.file_block: not", o.node.u.extents[0].file_block, 49),
    SET(EXTENT_LEAF, "level", "level", o.node.level, 1),
    SET(EXTENT_LEAF, "count", "used", o.node.count, 2),
    SET(EXTENT_LEAF, "used", "used", o.node.used, LAY_PAYLOAD + 1),
    SET(EXTENT_LEAF, "reserved", "reserved", o.node.reserved, 1),
    SPOIL(EXTENT_LEAF, "unused", "unused bytes", o.node.u.bytes[LAY_PAYLOAD - 1] = 1),
    SPOIL(EXTENT_LEAF, "empty", "count", make_empty(o)),
    SET(EXTENT_BRANCH, "first_key", "branch.key", o.node.u.branches[0].key, 1),
    SET(EXTENT_BRANCH, "key_order", "branch.key", o.node.u.branches[1].key, 0),
    SET(EXTENT_BRANCH, "child", "branch.child", o.node.u.branches[1].child, 0),
    SET(EXTENT_BRANCH, "child_past", "branch.child", o.node.u.branches[1].child,
        LAY_ADDR_CHUNK(336, 1)),
    SPOIL(EXTENT_BRANCH, "empty", "count", make_empty(o)),
    SET(DIR_BRANCH, "child", "branch.child", o.node.u.branches[0].child, UINT64_MAX),
    SPOIL(DIR_LEAF, "key_hash", "dirent.key: not the hash", dirent(o).key.le ^= lay_put64(256).le),
    SPOIL(DIR_LEAF, "key_order", "dirent.key: ", second_dirent(o).key = dirent(o).key),
    SET(DIR_LEAF, "ino_root", "dirent.ino", dirent(o).ino, 1),
    SET(DIR_LEAF, "ino_past", "dirent.ino", dirent(o).ino, UINT64_MAX),
    SET(DIR_LEAF, "len", "dirent.len", dirent(o).len, 16),
    SET(DIR_LEAF, "len_zero", "dirent.len", dirent(o).len, 0),
    SET(DIR_LEAF, "len_past", "dirent past", dirent(o).len, 4000),
    SPOIL(DIR_LEAF, "type", "dirent.type", dirent(o).type = 3),
    SPOIL(DIR_LEAF, "name_len", "dirent.len", dirent(o).name_len = 0),
    SPOIL(DIR_LEAF, "name", "dirent.name", dirent(o).name[0] = '/'),
    SPOIL(DIR_LEAF, "padding", "dirent padding", o.node.u.bytes[lay_get16(dirent(o).len) - 1] = 1),
    SET(DIR_LEAF, "count", "count", o.node.count, 3),
    SPOIL(DIR_LEAF, "unused", "unused bytes", o.node.u.bytes[LAY_PAYLOAD - 1] = 1),
};

const Case other_cases[] = {
    SPOIL(XATTR, "next_self", "next", o.xattr.next = o.head.block),
    SET(XATTR, "next", "next", o.xattr.next, UINT64_MAX),
    SET(XATTR, "next_block", "next", o.xattr.next, 3000),
    SET(XATTR, "used", "used", o.xattr.used, LAY_PAYLOAD + 1),
    SET(XATTR, "count", "count", o.xattr.count, 2),
    SET(XATTR, "reserved", "reserved", o.xattr.reserved, 1),
    SPOIL(XATTR, "unused", "unused bytes", o.xattr.bytes[LAY_PAYLOAD - 1] = 1),
    SET(XATTR, "len", "xattr.len", xattr(o).len, 16),
    SET(XATTR, "len_past", "xattr past", xattr(o).len, 64),
    SPOIL(XATTR, "name_len", "xattr.", xattr(o).name_len = 0),
    SPOIL(XATTR, "name_nul", "xattr.name", o.xattr.bytes[8] = 0),
    SPOIL(XATTR, "record_reserved", "xattr.reserved", xattr(o).reserved = 1),
    SET(XATTR, "value_len", "xattr.len", xattr(o).value_len, UINT32_MAX),
    SPOIL(XATTR, "padding", "xattr padding", o.xattr.bytes[23] = 1),
    SET(SYMLINK, "len_zero", "len", o.symlink.len, 0),
    SET(SYMLINK, "len_inline", "len", o.symlink.len, LAY_MAP_BYTES),
    SET(SYMLINK, "len_past", "len", o.symlink.len, LAY_PAYLOAD + 1),
    SET(SYMLINK, "reserved", "reserved", o.symlink.reserved[2], 1),
    SPOIL(SYMLINK, "target", "target", o.symlink.bytes[7] = 0),
    SPOIL(SYMLINK, "unused", "unused bytes", o.symlink.bytes[500] = 1),
    SET(DESC, "log_id", "log_id", o.desc.log_id, 1),
    SET(DESC, "incarnation", "incarnation", o.desc.incarnation.id, 0),
    SET(DESC, "count", "count", o.desc.count, 0),
    SET(DESC, "count_many", "count", o.desc.count, LAY_LOG_TAGS + 1),
    SET(DESC, "reserved", "reserved", o.desc.reserved, 1),
    SET(DESC, "tag_data", "tag.block", o.desc.tags[1].block, 3000),
    SET(DESC, "tag_map", "tag.block", o.desc.tags[1].block, LAY_ADDR(LAY_KIND_MAP, 2)),
    SET(DESC, "tag_of_log", "tag.block", o.desc.tags[1].block, LAY_ADDR(LAY_KIND_LOG, 3)),
    SET(DESC, "tag_label", "tag.block", o.desc.tags[1].block, LAY_ADDR_LABEL),
    SET(DESC, "tag_bitmap", "tag.block", o.desc.tags[1].block, LAY_ADDR(LAY_KIND_BITMAP, 2)),
    SET(DESC, "tag_past", "tag.block", o.desc.tags[1].block, LAY_ADDR_CHUNK(336, 0)),
    SET(DESC, "tag_age", "tag.age", o.desc.tags[1].age, 0),
    SET(DESC, "tag_reserved", "tag.reserved", o.desc.tags[1].reserved, 1),
    SET(DESC, "unused", "unused bytes", o.desc.tags[250].age, 1),
    SET(COMMIT, "log_id", "log_id", o.commit.log_id, 1),
    SET(COMMIT, "counter", "incarnation", o.commit.incarnation.counter, 0),
    SET(COMMIT, "counter_many", "incarnation", o.commit.incarnation.counter, LAY_MAX_COUNTER + 1),
    SET(COMMIT, "blocks", "blocks", o.commit.blocks, 0),
    SET(COMMIT, "blocks_empty", "blocks", o.commit.blocks, 1),
    SET(COMMIT, "blocks_many", "blocks", o.commit.blocks, 1025),
    SET(COMMIT, "tail_tid", "tail_tid", o.commit.tail_tid, 0),
    SET(COMMIT, "tail_tid_later", "tail_tid", o.commit.tail_tid, OBJECT_TID + 1),
    SET(COMMIT, "tail_pos", "tail_pos", o.commit.tail_pos, 1024),
    SET(COMMIT, "super_age", "super_age", o.commit.super_age, 0),
    SET(COMMIT, "time", "time", o.commit.time.nsec, 1000000000),
    SET(COMMIT, "reserved", "reserved", o.commit.reserved, 1),
    SPOIL(COMMIT, "reserved2", "reserved", o.commit.reserved2[3979] = 1),
};

using Spoiled = ::testing::TestWithParam<Case>;

TEST_P(Spoiled, IsRefusedForThatField)
{
    const Case &c = GetParam();
    lay_block o;
    const char *why = "";
    object_make(c.kind, &o);
    c.spoil(o);
    lay_seal(&o,
             c.kind == OBJECT_LABEL || c.kind == OBJECT_MMP ? lay_get64(o.head.tid) : OBJECT_TID);
    EXPECT_EQ(object_check(c.kind, &o, &why), -EUCLEAN);
    EXPECT_EQ(std::string(why).rfind(c.why, 0), 0u) << "the reason is: " << why;
}

std::string case_name(const ::testing::TestParamInfo<Case> &info)
{
    return info.param.name + ("_" + std::to_string(info.index));
}

INSTANTIATE_TEST_SUITE_P(Label, Spoiled, ::testing::ValuesIn(label_cases), case_name);
INSTANTIATE_TEST_SUITE_P(Super, Spoiled, ::testing::ValuesIn(super_cases), case_name);
INSTANTIATE_TEST_SUITE_P(Bitmap, Spoiled, ::testing::ValuesIn(bitmap_cases), case_name);
INSTANTIATE_TEST_SUITE_P(Chunk, Spoiled, ::testing::ValuesIn(chunk_cases), case_name);
INSTANTIATE_TEST_SUITE_P(Inode, Spoiled, ::testing::ValuesIn(inode_cases), case_name);
INSTANTIATE_TEST_SUITE_P(Tree, Spoiled, ::testing::ValuesIn(tree_cases), case_name);
INSTANTIATE_TEST_SUITE_P(Other, Spoiled, ::testing::ValuesIn(other_cases), case_name);

class Label : public ::testing::Test
{
  protected:
    int check()
    {
        lay_seal(&o, 0);
        return lay_check_label(&o.label, &features, &why);
    }

    void SetUp() override { object_make(OBJECT_LABEL, &o); }

    lay_block o;
    uint64_t features = 77;
    const char *why = "";
};

TEST_F(Label, AndSuperblockDefineTheGeometry)
{
    lay_geometry expected = object_geometry(), geo;
    lay_block super;
    ASSERT_EQ(check(), 0) << why;
    EXPECT_EQ(features, 0u);
    lay_label_geometry(&o.label, &geo);
    EXPECT_EQ(geo.log_start, expected.log_start);
    EXPECT_EQ(geo.bitmap_blocks, 0u);
    object_make(OBJECT_SUPER, &super);
    ASSERT_EQ(lay_check_super(&super.super, &geo, &geo, &why), 0) << why;
    EXPECT_EQ(std::memcmp(&geo, &expected, sizeof(geo)), 0);
}

TEST_F(Label, MayNameASecondLog)
{
    lay_geometry geo;
    uint64_t places[2];
    set_second_log(o, 3000);
    ASSERT_EQ(check(), 0) << why;
    lay_label_geometry(&o.label, &geo);
    EXPECT_EQ(lay_logs(&geo), 2u);
    EXPECT_EQ(lay_places(&geo, LAY_ADDR(LAY_KIND_LOG, 5), places), 2u);
    EXPECT_EQ(places[0], geo.log_start + 5);
    EXPECT_EQ(places[1], 3005u);
    EXPECT_FALSE(lay_range_ok(&geo, 3000 + geo.log_blocks - 1, 1));
}

TEST_F(Label, OfAnotherFormatIsInvalid)
{
    o.head.magic = lay_put32(0x12345678);
    EXPECT_EQ(check(), -EINVAL);
}

TEST_F(Label, OfAnotherVersionIsNotSupportedAndSaysWhatToDo)
{
    o.label.version_major = lay_put16(2);
    EXPECT_EQ(check(), -ENOTSUP);
    EXPECT_NE(std::string(why).find("copy its files"), std::string::npos) << why;
    o.label.version_major = lay_put16(4);
    EXPECT_EQ(check(), -ENOTSUP);
    EXPECT_NE(std::string(why).find("newer release"), std::string::npos) << why;
    EXPECT_EQ(features, 0u);
}

TEST_F(Label, OfADraftIsOfThisDraftOnly)
{
    o.label.version_minor = lay_put16(LAY_VERSION_MINOR + 1);
    EXPECT_EQ(check(), -ENOTSUP);
    EXPECT_NE(std::string(why).find("development build"), std::string::npos) << why;
    o.label.incompat = lay_put64(LAY_INCOMPAT_DATA_CSUM);
    EXPECT_EQ(check(), 0) << why;
}

TEST_F(Label, WithOtherUnknownFeaturesIsAcceptedWithItsReservedFields)
{
    lay_geometry geo;
    o.label.ro_compat = lay_put64(1);
    o.label.reserved3[0] = 1;
    EXPECT_EQ(check(), 0) << why;
    lay_label_geometry(&o.label, &geo);
    EXPECT_EQ(geo.ro_compat, 1u);
    lay_block super;
    object_make(OBJECT_SUPER, &super);
    super.super.reserved2[0] = 1;
    lay_seal(&super, OBJECT_TID);
    EXPECT_EQ(lay_check_super(&super.super, &geo, nullptr, &why), 0) << why;
}

TEST(Super, HasATransactionNumberBelowTheLimit)
{
    lay_block o;
    lay_geometry geo = object_geometry();
    object_make(OBJECT_SUPER, &o);
    lay_seal(&o, LAY_MAX_TID);
    EXPECT_EQ(lay_check_super(&o.super, &geo, &geo, nullptr), 0);
    lay_seal(&o, LAY_MAX_TID + 1);
    EXPECT_EQ(lay_check_super(&o.super, &geo, &geo, nullptr), -EUCLEAN);
}

TEST(Super, MayBeOfAFileSystemThatIsSmallerThanItsMember)
{
    lay_block o;
    lay_geometry geo = object_geometry();
    geo.blocks = 2 * OBJECT_BLOCKS;
    object_make(OBJECT_SUPER, &o);
    EXPECT_EQ(lay_check_super(&o.super, &geo, &geo, nullptr), 0);
    EXPECT_EQ(geo.blocks, OBJECT_BLOCKS);
}

std::vector<uint64_t> places(uint64_t addr)
{
    lay_geometry geo = object_geometry();
    uint64_t p[2];
    unsigned n = lay_places(&geo, addr, p);
    return std::vector<uint64_t>(p, p + n);
}

using Places = std::vector<uint64_t>;

TEST(Addresses, AreTranslatedToPlaces)
{
    EXPECT_EQ(places(LAY_ADDR_LABEL), (Places{0, LAY_LABEL_SECOND}));
    EXPECT_EQ(places(LAY_ADDR_MMP), (Places{LAY_MMP_BLOCK}));
    EXPECT_EQ(places(LAY_ADDR_SUPER), (Places{2, OBJECT_BLOCKS / 2}));
    EXPECT_EQ(places(LAY_ADDR(LAY_KIND_BITMAP, 1)), (Places{4}));
    EXPECT_EQ(places(LAY_ADDR(LAY_KIND_SUMS, 39)), (Places{45}));
    EXPECT_EQ(places(LAY_ADDR(LAY_KIND_LOG, 1023)), (Places{1070}));
    EXPECT_EQ(places(LAY_ADDR(LAY_KIND_MAP, 1)), (Places{1072}));
}

TEST(Addresses, OutsideTheFileSystemHaveNoPlace)
{
    const uint64_t none[] = {1,
                             4,
                             LAY_LABEL_SECOND,
                             3000,
                             LAY_ADDR(LAY_KIND_MMP, 1),
                             LAY_ADDR(LAY_KIND_SUPER, 1),
                             LAY_ADDR(LAY_KIND_MAP, 2),
                             LAY_ADDR_CHUNK(0, 1), // the map knows
                             LAY_ADDR(LAY_KIND_BITMAP, 2),
                             LAY_ADDR(LAY_KIND_SUMS, 40),
                             LAY_ADDR(LAY_KIND_LOG, 1024),
                             UINT64_MAX};
    for (uint64_t addr : none)
        EXPECT_EQ(places(addr), Places{}) << std::hex << addr;
}

TEST(Node, MayBeEmptyWhenItIsTheRoot)
{
    lay_block o;
    lay_geometry geo = object_geometry();
    object_make(OBJECT_DIR_LEAF, &o);
    make_empty(o);
    lay_seal(&o, 1);
    EXPECT_EQ(lay_check_node(&geo, &o.node, LAY_MAGIC_DIR, object_addr(OBJECT_DIR_LEAF),
                             OBJECT_OWNER, 0, 0, UINT64_MAX, nullptr),
              0);
}

TEST(Node, HoldsNoExtentThatReachesPastItsRange)
{
    lay_block o;
    lay_geometry geo = object_geometry();
    object_make(OBJECT_EXTENT_LEAF, &o);
    uint64_t last = lay_get64(o.node.u.extents[2].file_block);
    o.node.u.extents[2].len = lay_put32(10);
    lay_seal(&o, 1);
    for (uint64_t hi : {last + 9, last + 8, last}) {
        const char *why = "";
        EXPECT_EQ(lay_check_node(&geo, &o.node, LAY_MAGIC_EXTENTS, object_addr(OBJECT_EXTENT_LEAF),
                                 OBJECT_OWNER, 0, 50, hi, &why),
                  hi == last + 9 ? 0 : -EUCLEAN)
            << hi << " " << why;
    }
}

TEST(Records, AreWalkedInOrder)
{
    lay_block o;
    object_make(OBJECT_DIR_LEAF, &o);
    const lay_dirent *first = lay_dirent_next(&o.node, nullptr);
    const lay_dirent *second = lay_dirent_next(&o.node, first);
    EXPECT_EQ(first, &dirent(o));
    EXPECT_EQ(second, &second_dirent(o));
    EXPECT_EQ(lay_dirent_next(&o.node, second), nullptr);
}

TEST(Records, OfAttributesGiveNameAndValue)
{
    lay_block o;
    object_make(OBJECT_XATTR, &o);
    const lay_xattr *x = lay_xattr_next(&o.xattr, nullptr);
    ASSERT_EQ(x, &xattr(o));
    EXPECT_EQ(std::string(lay_xattr_name(x), x->name_len), "user.a");
    EXPECT_EQ(std::memcmp(lay_xattr_value(x), "value", 5), 0);
    EXPECT_EQ(lay_xattr_next(&o.xattr, x), nullptr);
}

// What an image in the log must be, beside sound: something that belongs where its tag says.
class LogImage : public ::testing::Test
{
  protected:
    static constexpr uint64_t TID = 7;

    int check(object_kind kind, uint64_t addr, uint64_t owner, uint64_t tid = TID)
    {
        lay_geometry geo;
        lay_tag tag = {};
        lay_block o;
        geo = object_geometry();
        object_make(kind, &o);
        o.head.block = lay_put64(addr);
        o.head.owner = lay_put64(owner);
        lay_seal(&o, tid);
        tag.block = lay_put64(addr);
        tag.age = lay_put32(lay_age(&o) + wrong_age);
        return lay_check_image(&geo, &tag, &o, TID, &why);
    }

    const uint64_t bitmap = LAY_ADDR(LAY_KIND_BITMAP, 1), sums = LAY_ADDR(LAY_KIND_SUMS, 39);
    const uint64_t map = LAY_ADDR(LAY_KIND_MAP, 1);
    const uint64_t entries = LAY_ADDR_CHUNK(4, 0), block = LAY_ADDR_CHUNK(4, 77);
    uint32_t wrong_age = 0;
    const char *why = "";
};

TEST_F(LogImage, IsOfAKindThatBelongsThere)
{
    EXPECT_EQ(check(OBJECT_SUPER, LAY_ADDR_SUPER, 0), 0) << why;
    EXPECT_EQ(check(OBJECT_BITMAP, bitmap, 0), 0) << why;
    EXPECT_EQ(check(OBJECT_SUMS, sums, 0), 0) << why;
    EXPECT_EQ(check(OBJECT_SUMS, bitmap, 0), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_SUMS, sums, 2), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_INODES, block, 24), 0) << why;
    EXPECT_EQ(check(OBJECT_EXTENT_LEAF, block, 0), 0) << why;
    EXPECT_EQ(check(OBJECT_DIR_LEAF, block, 1), 0) << why;
    EXPECT_EQ(check(OBJECT_XATTR, block, 1), 0) << why;
    EXPECT_EQ(check(OBJECT_SYMLINK, block, 1), 0) << why;
    EXPECT_EQ(check(OBJECT_DIR_LEAF, 0, 1), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_DIR_LEAF, bitmap, 1), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_BITMAP, block, 0), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_SUPER, 2, 0), -EUCLEAN) << "a place, not an address";
    EXPECT_EQ(check(OBJECT_MAP, map, 0), 0) << why;
    EXPECT_EQ(check(OBJECT_MAP, block, 0), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_ENTRIES, entries, 0), 0) << why;
    EXPECT_EQ(check(OBJECT_ENTRIES, block, 0), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_EXTENT_LEAF, entries, 0), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_EXTENT_LEAF, 3000, 0), -EUCLEAN) << "data";
    EXPECT_EQ(check(OBJECT_LABEL, LAY_ADDR_LABEL, 0), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_COMMIT, block, 0), -EUCLEAN);
}

TEST_F(LogImage, HasAnOwnerOfItsKind)
{
    EXPECT_EQ(check(OBJECT_BITMAP, bitmap, 1), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_MAP, map, 1), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_ENTRIES, entries, 1), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_INODES, block, 25), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_DIR_LEAF, block, 0), -EUCLEAN);
}

TEST_F(LogImage, IsOfItsTransaction)
{
    EXPECT_EQ(check(OBJECT_DIR_LEAF, block, 1, TID - 1), -EUCLEAN);
    EXPECT_EQ(check(OBJECT_DIR_LEAF, block, 1, TID + 1), -EUCLEAN);
}

TEST_F(LogImage, HasTheAgeOfItsTag)
{
    wrong_age = 1;
    EXPECT_EQ(check(OBJECT_DIR_LEAF, block, 1), -EUCLEAN);
}

TEST(Log, PositionsWrapToZero)
{
    lay_geometry geo = object_geometry();
    EXPECT_EQ(lay_log_after(&geo, 0), 1u);
    EXPECT_EQ(lay_log_after(&geo, geo.log_blocks - 1), 0u);
}

TEST(Age, IsNeverZero)
{
    lay_block o = {};
    EXPECT_EQ(lay_age(&o), UINT32_MAX);
    o.head.crc = lay_put32(5);
    EXPECT_EQ(lay_age(&o), 5u);
}

// --- Random changes of objects, for builds without libFuzzer -------------------------------------

const size_t HEAD = sizeof(lay_head);
const size_t CHOICE = 3; // bytes for kind and bit before the object

class Mutation : public ::testing::TestWithParam<int>
{
  protected:
    void SetUp() override
    {
        lay_block o;
        object_make(static_cast<object_kind>(GetParam()), &o);
        sound = {static_cast<uint8_t>(GetParam()), 0, 0};
        sound.insert(sound.end(), o.bytes + HEAD, o.bytes + LAY_BLOCK_SIZE);
    }

    uint8_t odd_value()
    {
        static const uint8_t values[] = {0, 1, 7, 8, 0x7f, 0x80, 0xfe, 0xff};
        return rng() % 4 ? values[rng() % 8] : static_cast<uint8_t>(rng());
    }

    std::mt19937 rng{static_cast<unsigned>(GetParam()) + 1};
    std::vector<uint8_t> sound;
};

TEST_P(Mutation, OfSingleBytesIsSurvived)
{
    for (int round = 0; round < 2000; round++) {
        std::vector<uint8_t> data = sound;
        data[1] = static_cast<uint8_t>(rng());
        data[2] = static_cast<uint8_t>(rng());
        /* Most fields are near the start. */
        size_t reach = rng() % 2 ? 200 : data.size() - CHOICE;
        for (unsigned n = 1 + rng() % 4; n > 0; n--)
            data[CHOICE + rng() % reach] = odd_value();
        ASSERT_EQ(LLVMFuzzerTestOneInput(data.data(), data.size()), 0);
    }
}

TEST_P(Mutation, ToNoiseIsSurvived)
{
    for (int round = 0; round < 200; round++) {
        std::vector<uint8_t> data = sound;
        std::generate(data.begin() + CHOICE, data.end(), [this] { return odd_value(); });
        ASSERT_EQ(LLVMFuzzerTestOneInput(data.data(), data.size()), 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Mutation, ::testing::Range(0, static_cast<int>(OBJECT_KINDS)));

// --- Names, times, ranges and the text of labels -------------------------------------------------

bool name_ok(const std::string &s)
{
    return lay_name_ok(s.data(), s.size());
}

bool label_ok(const std::string &s)
{
    return lay_label_ok(s.data(), s.size());
}

TEST(Name, MayBeAnythingButSlashNulAndDots)
{
    EXPECT_TRUE(name_ok("a"));
    EXPECT_TRUE(name_ok("..."));
    EXPECT_TRUE(name_ok(".a"));
    EXPECT_TRUE(name_ok("\xff\xfe"));
    EXPECT_FALSE(name_ok("."));
    EXPECT_FALSE(name_ok(".."));
    EXPECT_FALSE(name_ok("a/b"));
    EXPECT_FALSE(name_ok(std::string("a\0b", 3)));
}

TEST(Name, IsOneTo255Bytes)
{
    EXPECT_FALSE(name_ok(""));
    EXPECT_TRUE(name_ok(std::string(255, 'x')));
    EXPECT_FALSE(name_ok(std::string(256, 'x')));
}

TEST(Name, KeyLeavesRoomForDotsAndEqualHashes)
{
    const uint8_t seed[16] = {3};
    for (int i = 0; i < 10000; i++) {
        std::string name = "file" + std::to_string(i);
        uint64_t key = lay_name_key(seed, name.data(), name.size());
        ASSERT_GE(key, LAY_DIR_KEY_MIN);
        ASSERT_LT(key, uint64_t{1} << 63);
        ASSERT_EQ(key & 0xff, 0u);
    }
}

// Key 00 01 .. 0f, input 00 01 .. of each length: from the paper's appendix and its reference code.
TEST(SipHash, MatchesThePublishedVectors)
{
    const struct {
        size_t len;
        uint64_t hash;
    } vectors[] = {{0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd},  {7, 0xab0200f58b01d137},
                   {8, 0x93f5f5799a932462}, {15, 0xa129ca6149be45e5}, {16, 0x3f2acc7f57c29bdb},
                   {63, 0x958a324ceb064572}};
    uint8_t key[16], data[64];
    for (uint8_t i = 0; i < 64; i++)
        data[i] = i;
    std::memcpy(key, data, sizeof(key));
    for (const auto &v : vectors)
        EXPECT_EQ(lay_siphash(key, data, v.len), v.hash) << v.len;
}

TEST(Name, KeyDependsOnBothHalvesOfTheSeed)
{
    const uint8_t zero[16] = {}, low[16] = {1};
    uint8_t high[16] = {};
    high[15] = 1;
    EXPECT_NE(lay_name_key(zero, "name", 4), lay_name_key(low, "name", 4));
    EXPECT_NE(lay_name_key(zero, "name", 4), lay_name_key(high, "name", 4));
}

TEST(Time, KeepsSecondsBeforeTheEpochAndAfter2106)
{
    for (int64_t sec : {INT64_MIN, int64_t{-1}, int64_t{0}, int64_t{1} << 33, INT64_MAX}) {
        lay_time t = lay_time_make(sec, 999999999);
        EXPECT_EQ(lay_time_sec(t), sec);
        EXPECT_EQ(lay_get32(t.nsec), 999999999u);
    }
}

TEST(Range, AcceptsOnlyBlocksOutsideTheFixedAreas)
{
    lay_geometry geo = object_geometry();
    const uint64_t first = geo.map_start + geo.map_len, next = LAY_LABEL_SECOND + 1;
    EXPECT_TRUE(lay_range_ok(&geo, first, LAY_LABEL_SECOND - first));
    EXPECT_FALSE(lay_range_ok(&geo, first, LAY_LABEL_SECOND - first + 1));
    EXPECT_TRUE(lay_range_ok(&geo, next, geo.supers[1] - next));
    EXPECT_FALSE(lay_range_ok(&geo, next, geo.supers[1] - next + 1));
    EXPECT_FALSE(lay_range_ok(&geo, first - 1, 1));
    for (uint64_t block : {uint64_t{0}, uint64_t{LAY_MMP_BLOCK}, geo.supers[0], geo.bitmap_start,
                           geo.sums_start, geo.log_start - 1, geo.log_start, geo.map_start})
        EXPECT_FALSE(lay_range_ok(&geo, block, 1)) << block;
    EXPECT_TRUE(lay_range_ok(&geo, geo.blocks - 1, 1));
    EXPECT_FALSE(lay_range_ok(&geo, geo.blocks - 1, 2));
}

TEST(Range, RefusesEmptyAndOverflowing)
{
    lay_geometry geo = object_geometry();
    EXPECT_FALSE(lay_range_ok(&geo, 5000, 0));
    EXPECT_FALSE(lay_range_ok(&geo, 5000, UINT64_MAX));
    EXPECT_FALSE(lay_range_ok(&geo, UINT64_MAX, 2));
    EXPECT_FALSE(lay_range_ok(&geo, geo.blocks, 1));
}

TEST(LabelText, IsUtf8WithoutControlCharacters)
{
    EXPECT_TRUE(label_ok(""));
    EXPECT_TRUE(label_ok("data \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"));
    EXPECT_FALSE(label_ok("a\nb"));
    EXPECT_FALSE(label_ok("\x80"));
    EXPECT_FALSE(label_ok("\xc3"));
    EXPECT_FALSE(label_ok("\xc0\xaf"));
    EXPECT_FALSE(label_ok("\xe0\x80\x80"));
    EXPECT_FALSE(label_ok("\xed\xa0\x80"));
    EXPECT_FALSE(label_ok("\xf4\x90\x80\x80"));
}

TEST(LabelText, IsAtMost63Bytes)
{
    EXPECT_TRUE(label_ok(std::string(63, 'x')));
    EXPECT_FALSE(label_ok(std::string(64, 'x')));
}

} // namespace
