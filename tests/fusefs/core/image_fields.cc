/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/fusefs/core/image_fields.h"

#include <map>

#include "layout/layout.h"

namespace
{

using Fields = std::vector<ImageField>;

#define FIELD(s, f)                                         \
    {                                                       \
        static_cast<uint16_t>(offsetof(s, f)), sizeof(s::f) \
    }

const Fields head = {FIELD(lay_head, magic), FIELD(lay_head, block), FIELD(lay_head, owner),
                     FIELD(lay_head, tid)};

const Fields inode = {
    FIELD(lay_inode, mode),        FIELD(lay_inode, flags),      FIELD(lay_inode, uid),
    FIELD(lay_inode, nlink),       FIELD(lay_inode, generation), FIELD(lay_inode, size),
    FIELD(lay_inode, blocks),      FIELD(lay_inode, rdev),       FIELD(lay_inode, xattr),
    FIELD(lay_inode, next_orphan), FIELD(lay_inode, parent),     FIELD(lay_inode, version),
    FIELD(lay_inode, map_kind),    FIELD(lay_inode, map_count),  FIELD(lay_inode, map_height)};

const Fields extent = {FIELD(lay_extent, file_block), FIELD(lay_extent, block),
                       FIELD(lay_extent, len), FIELD(lay_extent, flags)};

const Fields tree = {FIELD(lay_map_tree, root), FIELD(lay_map_tree, blocks),
                     FIELD(lay_map_tree, entries)};

const Fields label = {
    FIELD(lay_label, version_major),    FIELD(lay_label, version_minor),
    FIELD(lay_label, block_size),       FIELD(lay_label, flags),
    FIELD(lay_label, compat),           FIELD(lay_label, ro_compat),
    FIELD(lay_label, incompat),         FIELD(lay_label, incarnation.counter),
    FIELD(lay_label, incarnation.id),   FIELD(lay_label, log_id),
    FIELD(lay_label, log_blocks),       FIELD(lay_label, logs[0]),
    FIELD(lay_label, logs[1]),          FIELD(lay_label, supers[0]),
    FIELD(lay_label, supers[1]),        FIELD(lay_label, members[0].blocks),
    FIELD(lay_label, members[0].state), FIELD(lay_label, members[0].seen.counter)};

const Fields super = {FIELD(lay_super, state),
                      FIELD(lay_super, chunk_shift),
                      FIELD(lay_super, inodes),
                      FIELD(lay_super, free_inode_block),
                      FIELD(lay_super, orphan),
                      FIELD(lay_super, mounts),
                      FIELD(lay_super, reserve),
                      FIELD(lay_super, clean_incarnation.counter),
                      FIELD(lay_super, clean_incarnation.id),
                      FIELD(lay_super, clean_tid),
                      FIELD(lay_super, clean_pos),
                      FIELD(lay_super, map[0]),
                      FIELD(lay_super, map_blocks),
                      FIELD(lay_super, chunks),
                      FIELD(lay_super, area.bitmaps[0]),
                      FIELD(lay_super, area.bitmaps[1]),
                      FIELD(lay_super, area.sums[0]),
                      FIELD(lay_super, area.blocks),
                      FIELD(lay_super, area.free_blocks),
                      FIELD(lay_super, map_age),
                      FIELD(lay_super, area.bitmap_age),
                      FIELD(lay_super, area.sums_age)};

const Fields bitmap = {FIELD(lay_bitmap, group),
                       FIELD(lay_bitmap, free),
                       FIELD(lay_bitmap, reserved),
                       {offsetof(lay_bitmap, bits), 8},
                       {offsetof(lay_bitmap, bits) + 160, 8}};

const Fields sums = {FIELD(lay_sums, index), FIELD(lay_sums, sums[0]), FIELD(lay_sums, sums[1000])};

const Fields map_block = {FIELD(lay_map_block, index), FIELD(lay_map_block, reserved)};
const Fields slot = {FIELD(lay_slot, places[0]), FIELD(lay_slot, places[1]), FIELD(lay_slot, age)};
const Fields entries = {FIELD(lay_entries, free),
                        {offsetof(lay_entries, used), 8},
                        {offsetof(lay_entries, used) + 56, 8},
                        FIELD(lay_entries, ages[1])};

const Fields inode_block = {FIELD(lay_inode_block, next_free), FIELD(lay_inode_block, used)};
const Fields node = {FIELD(lay_node, level), FIELD(lay_node, count), FIELD(lay_node, used)};
const Fields dirent = {FIELD(lay_dirent, key), FIELD(lay_dirent, ino), FIELD(lay_dirent, len),
                       FIELD(lay_dirent, type), FIELD(lay_dirent, name_len)};
const Fields branch = {FIELD(lay_branch, key), FIELD(lay_branch, child)};
const Fields xattr_block = {FIELD(lay_xattr_block, next), FIELD(lay_xattr_block, used),
                            FIELD(lay_xattr_block, count)};
const Fields xattr = {FIELD(lay_xattr, len), FIELD(lay_xattr, name_len),
                      FIELD(lay_xattr, value_len)};
const Fields symlink_block = {FIELD(lay_symlink_block, len)};
const Fields desc = {FIELD(lay_log_descriptor, count), FIELD(lay_log_descriptor, log_id),
                     FIELD(lay_log_descriptor, incarnation.counter)};
const Fields tag = {FIELD(lay_tag, block), FIELD(lay_tag, age)};
const Fields commit = {
    FIELD(lay_log_commit, blocks),         FIELD(lay_log_commit, crc),
    FIELD(lay_log_commit, log_id),         FIELD(lay_log_commit, incarnation.counter),
    FIELD(lay_log_commit, incarnation.id), FIELD(lay_log_commit, tail_tid),
    FIELD(lay_log_commit, tail_pos),       FIELD(lay_log_commit, super_age)};

void append(Fields *to, const Fields &fields, size_t start)
{
    for (const ImageField &f : fields)
        to->push_back({static_cast<uint16_t>(start + f.offset), f.size});
}

Fields with_array(const Fields &own, const Fields &element, size_t start, size_t size, size_t n)
{
    Fields all = head;
    append(&all, own, 0);
    for (size_t i = 0; i < n; i++)
        append(&all, element, start + i * size);
    return all;
}

Fields inode_fields()
{
    Fields one = inode;
    append(&one, tree, offsetof(lay_inode, map));
    append(&one, extent, offsetof(lay_inode, map));
    append(&one, extent, offsetof(lay_inode, map) + sizeof(lay_extent));
    return one;
}

Fields node_fields(const Fields &record, size_t record_size)
{
    Fields all = with_array(node, record, offsetof(lay_node, u), record_size, 8);
    for (size_t i = 0; i < 3; i++)
        append(&all, branch, offsetof(lay_node, u) + i * sizeof(lay_branch));
    return all;
}

std::map<uint32_t, Fields> make_table()
{
    Fields sb = with_array(super, inode_fields(), offsetof(lay_super, inode_file), 0, 1);
    return {
        {LAY_MAGIC_LABEL, with_array(label, {}, 0, 0, 0)},
        {LAY_MAGIC_SUPER, sb},
        {LAY_MAGIC_BITMAP, with_array(bitmap, {}, 0, 0, 0)},
        {LAY_MAGIC_SUMS, with_array(sums, {}, 0, 0, 0)},
        {LAY_MAGIC_MAP,
         with_array(map_block, slot, offsetof(lay_map_block, slots), sizeof(lay_slot), 4)},
        {LAY_MAGIC_ENTRIES, with_array(entries, {}, 0, 0, 0)},
        {LAY_MAGIC_INODES,
         with_array(inode_block, inode_fields(), offsetof(lay_inode_block, inodes),
                    sizeof(lay_inode), LAY_INODES_PER_BLOCK)},
        {LAY_MAGIC_EXTENTS, node_fields(extent, sizeof(lay_extent))},
        {LAY_MAGIC_DIR, node_fields(dirent, 32)},
        {LAY_MAGIC_XATTR, with_array(xattr_block, xattr, offsetof(lay_xattr_block, bytes), 40, 3)},
        {LAY_MAGIC_SYMLINK, with_array(symlink_block, {}, 0, 0, 0)},
        {LAY_MAGIC_JDESC,
         with_array(desc, tag, offsetof(lay_log_descriptor, tags), sizeof(lay_tag), 6)},
        {LAY_MAGIC_JCOMMIT, with_array(commit, {}, 0, 0, 0)},
    };
}

} // namespace

const std::vector<ImageField> &image_fields(uint32_t magic)
{
    static const std::map<uint32_t, Fields> table = make_table();
    auto found = table.find(magic);
    return found == table.end() ? head : found->second;
}
