/* SPDX-License-Identifier: BSD-2-Clause */
/* The damaged images. */
#include "tests/mkfs/problem_cases.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

void use_all_chunks(Image &i)
{
    lay_inode &file = i.super().inode_file;
    uint64_t index = lay_get64(file.size) / LAY_BLOCK_SIZE;
    unsigned count = lay_get16(file.map_count);
    if (lay_get16(file.map_kind) != LAY_MAP_INLINE) /* another case has changed it */
        return;
    i.at<lay_inode_block>(i.inode_blocks[1]).next_free = lay_put64(index);
    for (uint64_t s = 0; s < i.segments.size(); s++) {
        auto &entries = i.at<lay_entries>(LAY_ADDR_CHUNK(s, 0));
        lay_extent *e = &file.map.extents[count++];
        e->file_block = lay_put64(index);
        for (uint64_t b = 1; b < LAY_SEGMENT_BLOCKS; b++) {
            uint64_t addr = LAY_ADDR_CHUNK(s, b);
            auto &ib = i.at<lay_inode_block>(addr);
            if (entries.used[b / 8] >> b % 8 & 1)
                continue;
            if (lay_get32(e->len) == 0)
                e->block = lay_put64(addr);
            e->len = lay_put32(lay_get32(e->len) + 1);
            lay_head_init(&ib.head, LAY_MAGIC_INODES, i.geo.uuid, addr,
                          index++ * LAY_INODES_PER_BLOCK);
            ib.next_free = lay_put64(index);
            i.mark(addr, 1, true);
            i.inode_blocks.push_back(addr);
        }
        entries.free = lay_put32(0);
        i.seal(LAY_ADDR_CHUNK(s, 0));
    }
    i.at<lay_inode_block>(i.inode_blocks.back()).next_free = lay_put64(LAY_NONE);
    for (uint64_t addr : i.inode_blocks)
        i.seal(addr);
    file.map_count = lay_put16(static_cast<uint16_t>(count));
    file.size = lay_put64(index * LAY_BLOCK_SIZE);
    i.seal_super();
}

namespace
{

/* A record of the root directory. */
lay_dirent *find_name(Image &i, const std::string &name)
{
    auto &leaf = i.at<lay_node>(i.root_leaf);
    const lay_dirent *d = nullptr;
    while ((d = lay_dirent_next(&leaf, d))) {
        if (std::string(reinterpret_cast<const char *>(d->name), d->name_len) == name)
            break;
    }
    return const_cast<lay_dirent *>(d);
}

/* Gives every free block to the file "attr", past its end. */
void use_all_blocks(Image &i)
{
    lay_inode &file = i.inode(INO_ATTR);
    auto &bm = i.at<lay_bitmap>(i.geo.bitmap_start);
    uint64_t data = 0;
    unsigned count = 0;
    for (uint64_t b = 0; b < i.geo.blocks; b++) {
        if (bm.bits[b / 8] >> b % 8 & 1)
            continue;
        lay_extent *last = count ? &file.map.extents[count - 1] : nullptr;
        if (last && lay_get64(last->block) + lay_get32(last->len) == b)
            last->len = lay_put32(lay_get32(last->len) + 1);
        else
            file.map.extents[count++] = {lay_put64(data), lay_put64(b), lay_put32(1),
                                         lay_put16(LAY_EXTENT_UNWRITTEN), lay_put16(0)};
        data++;
        i.mark(b, 1, true);
    }
    file.map_count = lay_put16(static_cast<uint16_t>(count));
    file.blocks = lay_put64(lay_get64(file.blocks) + data);
    bm.free = lay_put32(0);
    i.super().area.free_blocks = lay_put64(0);
    i.seal(i.geo.bitmap_start);
    i.seal_inode(INO_ATTR);
    i.seal_super();
}

/* The block of the map. */
lay_map_block &map_of(Image &i)
{
    return i.at<lay_map_block>(LAY_ADDR(LAY_KIND_MAP, 0));
}

void seal_map(Image &i)
{
    i.seal(LAY_ADDR(LAY_KIND_MAP, 0));
}

/* What mkfs.gpunvme -O data_csum makes besides, in free blocks. */
void add_sums(Image &i)
{
    const uint64_t start = 3500, n = lay_area_blocks(lay_sums_blocks(i.geo.blocks));
    auto &bm = i.at<lay_bitmap>(i.geo.bitmap_start);
    lay_area &area = i.super().area;
    i.label().incompat = lay_put64(lay_get64(i.label().incompat) | LAY_INCOMPAT_DATA_CSUM);
    i.seal_label();
    area.sums[0] = lay_put64(start);
    area.sums[1] = lay_put64(LAY_NONE);
    area.free_blocks = lay_put64(lay_get64(area.free_blocks) - n);
    i.seal_super();
    i.mark(start, n, true);
    bm.free = lay_put32(lay_get32(bm.free) - static_cast<uint32_t>(n));
    i.seal(i.geo.bitmap_start);
    i.geo.sums_start = start;
    i.geo.sums_blocks = lay_sums_blocks(i.geo.blocks);
    i.geo.sums_len = n;
    i.geo.incompat |= LAY_INCOMPAT_DATA_CSUM;
}

/* Adds copies of map and bitmap in free blocks; the chunks have one place. */
constexpr uint64_t MAP_COPY = 3500, BITMAP_COPY = 3501;
void add_copies(Image &i)
{
    const uint64_t bitmap = LAY_ADDR(LAY_KIND_BITMAP, 0), map = LAY_ADDR(LAY_KIND_MAP, 0);
    auto &bm = i.at<lay_bitmap>(bitmap);
    lay_area &area = i.super().area;
    i.label().incompat = lay_put64(lay_get64(i.label().incompat) | LAY_INCOMPAT_META_COPIES);
    i.seal_label();
    i.super().map[1] = lay_put64(MAP_COPY);
    area.bitmaps[1] = lay_put64(BITMAP_COPY);
    area.free_blocks = lay_put64(lay_get64(area.free_blocks) - 2);
    i.seal_super();
    i.mark(MAP_COPY, 2, true);
    bm.free = lay_put32(lay_get32(bm.free) - 2);
    i.seal(bitmap);
    std::memcpy(&i.at<uint8_t>(MAP_COPY), &i.at<uint8_t>(map), LAY_BLOCK_SIZE);
    std::memcpy(&i.at<uint8_t>(BITMAP_COPY), &i.at<uint8_t>(bitmap), LAY_BLOCK_SIZE);
}

/* Makes a block such that no flip of one bit explains it. */
void spoil_block(Image &i, uint64_t block)
{
    std::memset(&i.at<uint8_t>(block) + 2000, 0xee, 100);
}

/* Puts the state before the last one in the place of a block. */
void make_stale(Image &i, uint64_t addr)
{
    std::vector<uint8_t> old = i.copy(addr);
    i.seal(addr, 9);
    std::memcpy(&i.at<uint8_t>(addr), old.data(), old.size());
}

/* Adds checksums, of which one block was written; returns its address. */
uint64_t write_sums(Image &i)
{
    add_sums(i);
    const uint64_t addr = LAY_ADDR(LAY_KIND_SUMS, i.file_data / LAY_SUMS_ENTRIES);
    lay_new_block(&i.geo, addr, &i.at<lay_sums>(addr));
    uint64_t block = i.file_data;
    i.at<lay_sums>(addr).sums[block % LAY_SUMS_ENTRIES] =
        lay_put32(lay_data_sum(&i.at<uint8_t>(block)));
    i.seal(addr);
    return addr;
}

/* Makes one change. */
#define CHANGE(change) [](Image &i) { change; }

/* Makes one change, and then calls a function of the image, which seals a block. */
#define SEALED(seal, change) \
    [](Image &i) {           \
        change;              \
        i.seal;              \
    }

/* Change a field of an inode or of the superblock. */
#define INODE(ino, assignment) SEALED(seal_inode(ino), i.inode(ino).assignment)
#define SUPER(assignment)      SEALED(seal_super(), i.super().assignment)

const std::vector<ProblemCase> cases = {
    {"F201", "bit_of_extent_node", CHANGE(i.at<uint8_t>(i.extent_leaf) ^= 1)},
    {"F201", "bit_of_inode_block_head", CHANGE(i.at<lay_head>(i.inode_blocks[1]).uuid[8] ^= 1)},
    {"F201", "bit_of_extent",
     [](Image &i) {
         le64 &block = i.inode(INO_FILE).map.extents[0].block;
         block = lay_put64(lay_get64(block) ^ 4);
     }},
    {"F201", "bit_of_bitmap", CHANGE(i.at<uint8_t>(i.geo.bitmap_start) ^= 1)},
    {"F201", "bit_of_directory", CHANGE(i.at<lay_node>(i.dir_leaf).u.bytes[8] ^= 1)},
    {"F201", "bit_of_attributes", CHANGE(i.at<uint8_t>(i.xattr_next) ^= 1)},
    {"F201", "bit_of_target", CHANGE(i.at<uint8_t>(i.link_block) ^= 1)},
    {"F202", "copy_of_map",
     [](Image &i) {
         add_copies(i);
         std::memset(&i.at<uint8_t>(MAP_COPY), 0, LAY_BLOCK_SIZE);
     }},
    {"F202", "bitmap_with_a_copy",
     [](Image &i) {
         add_copies(i);
         spoil_block(i, LAY_ADDR(LAY_KIND_BITMAP, 0));
     }},
    {"F301", "extent_node", CHANGE(i.at<uint8_t>(i.extent_leaf) ^= 3), {"/tree", "/dir/tree2"}},
    {"F302", "inode_block", CHANGE(i.at<uint8_t>(i.inode_blocks[1]) ^= 3), {"/gpu"}},
    {"F303", "inode_file_in_no_segment",
     [](Image &i) {
         lay_inode &file = i.super().inode_file;
         file.map.extents[lay_get16(file.map_count) - 1].block =
             lay_put64(LAY_ADDR_CHUNK(i.segments.size() + 1, 1));
         i.seal_super();
     }},
    {"F303", "inode_file_charge",
     [](Image &i) {
         lay_inode &file = i.super().inode_file;
         lay_node &root = i.at<lay_node>(i.extent_root);
         /* A tree of another inode: its nodes are refused. */
         std::memset(&file.map, 0, sizeof(file.map));
         file.map_kind = lay_put16(LAY_MAP_TREE);
         file.map_count = lay_put16(0);
         file.map_height = lay_put16(2);
         file.map.tree.root = root.head.block;
         file.map.tree.blocks = lay_put64(2);
         i.seal_super();
     }},
    {"F304", "shared_block",
     INODE(INO_FILE, map.extents[0].block = lay_put64(i.file_data + 30)), {"/file", "/hard"}},
    {"F305", "inode_blocks", INODE(INO_TREE, blocks = lay_put64(10))},
    {"F306", "tree_counts", INODE(INO_TREE, map.tree.entries = lay_put64(4))},
    {"F307", "gpu_misplaced", INODE(INO_GPU, map.extents[1].block = lay_put64(i.gpu_data + 101))},
    {"F307", "gpu_short",
     [](Image &i) {
         i.inode(INO_GPU).map.extents[1].len = lay_put32(LAY_GPU_ALIGN - 101);
         i.inode(INO_GPU).blocks = lay_put64(LAY_GPU_ALIGN - 1);
         i.seal_inode(INO_GPU);
     }},
    {"F308", "free_list_of_full_block", SUPER(free_inode_block = lay_put64(0))},
    {"F309", "free_list_lacks_block", SUPER(free_inode_block = lay_put64(LAY_NONE))},
    {"F310", "orphan_list_names_file", SUPER(orphan = lay_put64(INO_FILE))},
    {"F311", "orphan_not_listed", SUPER(orphan = lay_put64(LAY_NONE))},
    {"F334", "inode_block_older", CHANGE(make_stale(i, i.inode_blocks[1])), {"/gpu"}},
    {"F334", "extent_node_older", CHANGE(make_stale(i, i.extent_leaf))},
    {"F334", "directory_node_older", CHANGE(make_stale(i, i.dir_leaf))},
    {"F334", "attributes_older", CHANGE(make_stale(i, i.xattr_next))},
    {"F334", "target_older", CHANGE(make_stale(i, i.link_block))},
    {"F401", "superblock", CHANGE(spoil_block(i, i.geo.supers[0]))},
    {"F401", "superblock_bit", CHANGE(i.super().state = lay_put32(1))},
    {"F402", "superblock_copy", CHANGE(spoil_block(i, i.geo.supers[1]))},
    {"F404", "free_blocks", SUPER(area.free_blocks = lay_put64(5))},
    {"F405", "inodes", SUPER(inodes = lay_put64(5))},
    {"F406", "state_error", SUPER(state = lay_put32(LAY_STATE_ERROR))},
    {"F407", "superblock_not_of_the_log",
     [](Image &i) {
         uint32_t age = lay_age(&i.super());
         i.seal_super(9);
         i.commit().super_age = lay_put32(age);
         i.seal_commit();
     }},
    {"F409", "label", CHANGE(spoil_block(i, 0))},
    {"F409", "label_bit", CHANGE(i.label().log_blocks = lay_put64(257))},
    {"F409", "label_magic", CHANGE(i.label().head.magic = lay_put32(LAY_MAGIC_LABEL ^ 1 << 20))},
    {"F409", "label_copy", CHANGE(spoil_block(i, LAY_LABEL_SECOND))},
    {"F410", "label_copy_older",
     [](Image &i) {
         i.label().incarnation.counter = lay_put64(5);
         lay_seal(&i.label(), 0);
     }},
    {"F410", "label_older",
     [](Image &i) {
         lay_label old = i.label();
         i.label().incarnation.counter = lay_put64(5);
         i.seal_label();
         i.label() = old;
     }},
    {"F411", "superblock_copy_older", CHANGE(lay_seal(&i.at<lay_super>(i.geo.supers[1]), 9))},
    {"F411", "superblock_older", CHANGE(lay_seal(&i.super(), 9))},
    {"F412", "label_lost", SEALED(seal_commit(), i.commit().incarnation.counter = lay_put64(9))},
    {"F413", "chunks", SUPER(chunks = lay_put64(1))},
    {"F508", "map_block", CHANGE(spoil_block(i, LAY_ADDR(LAY_KIND_MAP, 0)))},
    {"F508", "map_block_lost", CHANGE(std::memset(&map_of(i), 0xee, LAY_BLOCK_SIZE))},
    {"F508", "map_block_never_written", CHANGE(std::memset(&map_of(i), 0, LAY_BLOCK_SIZE))},
    {"F508", "slot_outside",
     SEALED(seal(LAY_ADDR(LAY_KIND_MAP, 0)),
            map_of(i).slots[1].places[0] = lay_put64(i.geo.blocks))},
    {"F509", "chunk_lost", SUPER(chunks = lay_put64(3))},
    {"F509", "chunk_0_lost",
     [](Image &i) {
         std::memset(&map_of(i), 0xee, LAY_BLOCK_SIZE);
         std::memset(&i.at<uint8_t>(i.segments[0]), 0xee, LAY_SEGMENT_BLOCKS * LAY_BLOCK_SIZE);
     },
     {""}},
    {"F510", "slots_of_one_place",
     SEALED(seal(LAY_ADDR(LAY_KIND_MAP, 0)),
            lay_slot_set(&map_of(i).slots[1], i.segments[0], LAY_NONE))},
    {"F510", "slots_exchanged",
     [](Image &i) {
         lay_slot_set(&map_of(i).slots[0], i.segments[1], LAY_NONE);
         lay_slot_set(&map_of(i).slots[1], i.segments[0], LAY_NONE);
         seal_map(i);
     }},
    {"F511", "entries", CHANGE(spoil_block(i, LAY_ADDR_CHUNK(0, 0)))},
    {"F511", "entries_of_an_empty_chunk",
     CHANGE(std::memset(&i.at<uint8_t>(LAY_ADDR_CHUNK(1, 0)), 0, LAY_BLOCK_SIZE))},
    {"F511", "entries_count",
     SEALED(seal(LAY_ADDR_CHUNK(0, 0)),
            i.at<lay_entries>(LAY_ADDR_CHUNK(0, 0)).free = lay_put32(7))},
    /* The blocks of the map and of the entries are lost together. */
    {"F511", "entries_and_map_block",
     [](Image &i) {
         std::memset(&map_of(i), 0xee, LAY_BLOCK_SIZE);
         spoil_block(i, LAY_ADDR_CHUNK(0, 0));
     }},
    {"F512", "leaked_block_of_chunk",
     [](Image &i) {
         auto &entries = i.at<lay_entries>(LAY_ADDR_CHUNK(0, 0));
         i.mark(LAY_ADDR_CHUNK(0, 300), 3, true);
         entries.free = lay_put32(lay_get32(entries.free) - 3);
         i.seal(LAY_ADDR_CHUNK(0, 0));
     }},
    {"F513", "used_block_of_chunk_marked_free",
     [](Image &i) {
         auto &entries = i.at<lay_entries>(LAY_ADDR_CHUNK(0, 0));
         i.mark(i.extent_leaf, 1, false);
         entries.free = lay_put32(lay_get32(entries.free) + 1);
         i.seal(LAY_ADDR_CHUNK(0, 0));
     }},
    {"F501", "bitmap_older", CHANGE(make_stale(i, LAY_ADDR(LAY_KIND_BITMAP, 0)))},
    {"F501", "bitmap_never_written",
     CHANGE(std::memset(&i.at<uint8_t>(i.geo.bitmap_start), 0, LAY_BLOCK_SIZE))},
    {"F507", "checksum_block_older", CHANGE(make_stale(i, write_sums(i)))},
    {"F507", "checksum_block_never_written",
     CHANGE(std::memset(&i.at<uint8_t>(write_sums(i)), 0, LAY_BLOCK_SIZE))},
    {"F508", "map_block_older", CHANGE(make_stale(i, LAY_ADDR(LAY_KIND_MAP, 0)))},
    {"F511", "entries_older", CHANGE(make_stale(i, LAY_ADDR_CHUNK(0, 0)))},
    {"F514", "ages",
     [](Image &i) {
         write_sums(i);
         spoil_block(i, LAY_ADDR_LEVEL(LAY_KIND_SUMS, 1, 0));
     }},
    {"F514", "ages_older",
     [](Image &i) {
         write_sums(i);
         make_stale(i, LAY_ADDR_LEVEL(LAY_KIND_SUMS, 1, 0));
     }},
    {"F501", "bitmap", CHANGE(i.at<uint8_t>(i.geo.bitmap_start) ^= 3)},
    {"F507", "checksum_block", CHANGE(i.at<uint8_t>(write_sums(i)) ^= 3)},
    {"F502", "leaked_block",
     [](Image &i) {
         auto &bm = i.at<lay_bitmap>(i.geo.bitmap_start);
         i.mark(3000, 3, true);
         bm.free = lay_put32(lay_get32(bm.free) - 3);
         i.seal(i.geo.bitmap_start);
     }},
    {"F503", "used_block_marked_free",
     [](Image &i) {
         auto &bm = i.at<lay_bitmap>(i.geo.bitmap_start);
         i.mark(i.gpu_data + 7, 1, false);
         bm.free = lay_put32(lay_get32(bm.free) + 1);
         i.seal(i.geo.bitmap_start);
     }},
    {"F701", "directory_node", CHANGE(i.at<uint8_t>(i.dir_leaf) ^= 3), {"/dir"}},
    {"F702", "directory_counts", INODE(INO_DIR, map.tree.entries = lay_put64(1))},
    {"F703", "dangling_name",
     SEALED(seal(i.root_leaf), add_name(i.at<lay_node>(i.root_leaf), i.geo, "gone", 14, DT_REG))},
    {"F703", "name_past_inode_file",
     SEALED(seal(i.root_leaf), add_name(i.at<lay_node>(i.root_leaf), i.geo, "gone", 4000, DT_REG))},
    {"F704", "name_type",
     SEALED(seal(i.root_leaf),
            add_name(i.at<lay_node>(i.root_leaf), i.geo, "fifo", INO_FILE, DT_FIFO)), {"/fifo"}},
    {"F705", "name_twice",
     SEALED(seal(i.root_leaf),
            add_name(i.at<lay_node>(i.root_leaf), i.geo, "file", INO_FILE, DT_REG, 1))},
    {"F706", "directory_twice",
     SEALED(seal(i.root_leaf),
            add_name(i.at<lay_node>(i.root_leaf), i.geo, "dir2", INO_DIR, DT_DIR))},
    {"F707", "directory_parent", INODE(INO_SUB, parent = lay_put64(LAY_INO_ROOT))},
    {"F708", "directory_loop",
     INODE(INO_DIR, parent = lay_put64(INO_SUB)), {}, true},
    {"F709", "removed_directory_with_names",
     [](Image &i) {
         i.inode(INO_DIR).nlink = lay_put32(0);
         i.inode(INO_DIR).next_orphan = lay_put64(LAY_NONE);
         i.seal_inode(INO_DIR);
     }},
    {"F710", "nlink", INODE(INO_FILE, nlink = lay_put32(7))},
    {"F711", "inode_without_name", INODE(INO_ORPHAN, nlink = lay_put32(1))},
    {"F801", "xattr_block", CHANGE(i.at<uint8_t>(i.xattr_next) ^= 3), {"/attr"}},
    {"F802", "xattr_chain",
     [](Image &i) {
         const uint64_t first = LAY_ADDR_CHUNK(1, 1);
         for (uint64_t block = first; block < first + LAY_XATTR_BLOCKS_MAX; block++) {
             auto &xb = i.at<lay_xattr_block>(block);
             lay_head_init(&xb.head, LAY_MAGIC_XATTR, i.geo.uuid, block, INO_ATTR);
             xb.next = lay_put64(block + 1);
             i.seal(block);
         }
         i.at<lay_xattr_block>(i.xattr_next).next = lay_put64(first);
         i.seal(i.xattr_next);
     }},
    {"F803", "xattr_twice",
     [](Image &i) {
         auto &xb = i.at<lay_xattr_block>(i.xattr_next);
         std::memcpy(xb.bytes + sizeof(lay_xattr), "user.one", 8);
         i.seal(i.xattr_next);
     }, {"/attr"}},
    {"F901", "link_block", CHANGE(i.at<uint8_t>(i.link_block) ^= 3), {"/link"}},
    {"F902", "link_length",
     [](Image &i) {
         auto &sl = i.at<lay_symlink_block>(i.link_block);
         sl.len = lay_put32(1000);
         std::memset(sl.bytes + 1000, 0, LAY_PAYLOAD - 1000);
         i.seal(i.link_block);
     }, {"/link"}},
    {"F1002", "committed_transaction",
     [](Image &i) {
         i.log({i.copy(i.root_leaf)});
         spoil_block(i, i.geo.log_start + 2);
     }},
    /* The entry may be older than the data, so that it must not count. */
    {"F1002", "committed_transaction_with_checksums",
     [](Image &i) {
         add_sums(i);
         const uint64_t index = i.file_data / LAY_SUMS_ENTRIES;
         auto &sums = i.at<lay_sums>(i.geo.sums_start + index);
         std::memset(&sums, 0, sizeof(sums));
         lay_head_init(&sums.head, LAY_MAGIC_SUMS, i.geo.uuid, LAY_ADDR(LAY_KIND_SUMS, index), 0);
         sums.index = lay_put64(index);
         sums.sums[i.file_data % LAY_SUMS_ENTRIES] = lay_put32(7);
         i.seal(i.geo.sums_start + index);
         i.log({i.copy(i.root_leaf)});
         spoil_block(i, i.geo.log_start + 2);
     }},
    {"F1002", "commit_at_a_wrong_position",
     [](Image &i) {
         i.log({i.copy(i.root_leaf)});
         i.log({i.copy(i.root_leaf)});
         std::memmove(&i.at<uint8_t>(i.geo.log_start + 9), &i.commit(), LAY_BLOCK_SIZE);
         spoil_block(i, i.geo.log_start + 6);
     }},
    {"F1005", "no_commit",
     CHANGE(std::memset(&i.at<uint8_t>(i.geo.log_start), 0, i.geo.log_blocks << LAY_BLOCK_SHIFT))},
    {"F1006", "log_bit",
     [](Image &i) {
         i.log({i.copy(i.root_leaf)});
         i.at<uint8_t>(i.geo.log_start + 2) ^= 1;
     }},
    {"F1006", "commit_bit",
     [](Image &i) {
         i.log({i.copy(i.root_leaf)});
         i.at<uint8_t>(i.geo.log_start + 3) ^= 1;
     }},
    {"F301", "extent_node_checksum", CHANGE(i.at<lay_head>(i.extent_leaf).crc = lay_put32(1))},
    {"F301", "extent_root_lost",
     CHANGE(std::memset(&i.at<uint8_t>(i.extent_root), 0xee, LAY_BLOCK_SIZE))},
    {"F701", "directory_root_lost",
     CHANGE(std::memset(&i.at<uint8_t>(i.dir_root), 0xee, LAY_BLOCK_SIZE))},
    {"F324", "inode_tree_root", INODE(INO_DIR, map.tree.root = lay_put64(0))},
    {"F302", "inode_block_checksum", CHANGE(i.at<lay_head>(i.inode_blocks[0]).crc = lay_put32(1))},
    {"F701", "directory_node_checksum", CHANGE(i.at<lay_head>(i.root_leaf).crc = lay_put32(1))},
    /* Both are built anew in their own nodes. */
    {"F701", "directory_nodes_on_a_full_device",
     [](Image &i) {
         use_all_blocks(i);
         use_all_chunks(i);
         i.at<lay_head>(i.dir_leaf).crc = lay_put32(1);
         i.at<lay_head>(i.root_leaf).crc = lay_put32(1);
     }},
    {"F801", "xattr_block_checksum", CHANGE(i.at<lay_head>(i.xattr_block).crc = lay_put32(1))},
    {"F901", "link_block_checksum", CHANGE(i.at<lay_head>(i.link_block).crc = lay_put32(1))},
    {"F313", "inode_mode", INODE(INO_FILE, mode = lay_put32(S_IFREG | 0200644))},
    {"F314", "inode_flags", INODE(INO_FILE, flags = lay_put32(0x100))},
    {"F315", "inode_time", INODE(INO_FILE, mtime.nsec = lay_put32(2000000000))},
    {"F316", "inode_rdev", INODE(INO_FILE, rdev = lay_put32(5))},
    {"F317", "inode_reserved", INODE(INO_FILE, reserved[0] = 1)},
    {"F317", "inode_policy", INODE(INO_FILE, policy = 1)},
    {"F317", "inode_project", INODE(INO_FILE, project = lay_put32(1))},
    {"F318", "inode_extent", INODE(INO_FILE, map.extents[1].flags = lay_put16(8))},
    {"F319", "inode_size",
     INODE(INO_FILE, size = lay_put64(UINT64_C(1) << 63)), {"/file", "/hard"}},
    {"F320", "inode_parent", INODE(INO_FILE, parent = lay_put64(1))},
    {"F321", "inode_used",
     SEALED(seal(i.inode_blocks[1]), i.at<lay_inode_block>(i.inode_blocks[1]).used = 2)},
    {"F322", "inode_free", INODE(14, uid = lay_put32(5))},
    {"F323", "inode_kind", INODE(INO_FILE, mode = lay_put32(S_IFIFO | 0644))},
    {"F324", "inode_tree", INODE(INO_TREE, map_height = lay_put16(0))},
    {"F325", "inode_target", INODE(INO_LINK, map.link.tail[0] = 0), {"/link"}},
    {"F326", "inode_xattr", INODE(INO_ATTR, xattr = lay_put64(UINT32_MAX)), {"/attr"}},
    {"F327", "inode_next_orphan", INODE(INO_ORPHAN, next_orphan = lay_put64(1))},
    {"F328", "inode_next_free",
     SEALED(seal(i.inode_blocks[1]),
            i.at<lay_inode_block>(i.inode_blocks[1]).next_free = lay_put64(1))},
    {"F329", "inode_nlink", INODE(INO_FILE, nlink = lay_put32(0))},
    {"F330", "data_on_metadata",
     INODE(INO_FILE, map.extents[0].block = lay_put64(i.place(i.xattr_block))), {"/file", "/hard"}},
    {"F331", "tree_extent",
     SEALED(seal(i.extent_leaf),
            i.at<lay_node>(i.extent_leaf).u.extents[0].flags = lay_put16(8)),
     {"/tree", "/dir/tree2"}},
    {"F332",
     "inode_lost",
     [](Image &i) {
         lay_inode &link = i.inode(INO_LINK);
         link.map_kind = lay_put16(LAY_MAP_TARGET);
         std::memset(&link.map, 0, sizeof(link.map));
         i.seal_inode(INO_LINK);
     },
     {"/link"}},
    {"F333", "tree_order",
     [](Image &i) {
         lay_extent *e = i.at<lay_node>(i.extent_leaf).u.extents;
         std::swap(e[0], e[1]);
         i.seal(i.extent_leaf);
     }},
    {"F505", "bitmap_count",
     [](Image &i) {
         auto &bm = i.at<lay_bitmap>(i.geo.bitmap_start);
         bm.free = lay_put32(lay_get32(bm.free) + 1);
         i.seal(i.geo.bitmap_start);
     }},
    {"F506", "bitmap_tail",
     [](Image &i) {
         auto &bm = i.at<lay_bitmap>(i.geo.bitmap_start);
         bm.bits[4000] = 0;
         bm.free = lay_put32(lay_get32(bm.free) + 8);
         i.seal(i.geo.bitmap_start);
     }},
    {"F708",
     "directories_in_each_other",
     [](Image &i) {
         lay_dirent *d = find_name(i, "dir");
         d->ino = lay_put64(INO_FILE);
         d->type = DT_REG;
         i.seal(i.root_leaf);
         uint64_t leaf = lay_get64(i.inode(INO_SUB).map.tree.root);
         add_name(i.at<lay_node>(leaf), i.geo, "loop", INO_DIR, DT_DIR);
         i.seal(leaf);
         i.inode(INO_DIR).parent = lay_put64(INO_SUB);
         i.seal_inode(INO_DIR);
     },
     {"/dir"}},
    {"F712", "root_type", INODE(LAY_INO_ROOT, mode = lay_put32(S_IFREG | 0755))},
    {"F712",
     "root_lost",
     [](Image &i) {
         std::memset(&i.inode(LAY_INO_ROOT), 0, sizeof(lay_inode));
         i.at<lay_inode_block>(i.inode_blocks[0]).used = 0xfd;
         i.seal(i.inode_blocks[0]);
     },
     {""}},
    {"F713", "name_with_slash",
     SEALED(seal(i.root_leaf), find_name(i, "tree")->name[1] = '/'), {"/tree"}},
    {"F714", "name_hash",
     [](Image &i) {
         lay_dirent *d = find_name(i, "tree");
         d->key = lay_put64(lay_get64(d->key) + 0x100);
         i.seal(i.root_leaf);
     }},
    {"F715", "directory_order",
     [](Image &i) {
         auto &leaf = i.at<lay_node>(i.root_leaf);
         const lay_dirent *first = lay_dirent_next(&leaf, nullptr);
         std::string a(reinterpret_cast<const char *>(first), lay_get16(first->len));
         const lay_dirent *second = lay_dirent_next(&leaf, first);
         std::string b(reinterpret_cast<const char *>(second), lay_get16(second->len));
         std::string both = b + a;
         std::memcpy(leaf.u.bytes, both.data(), both.size());
         i.seal(i.root_leaf);
     }},
    {"F805", "part_of_a_large_value",
     [](Image &i) {
         auto &xb = i.at<lay_xattr_block>(i.xattr_next);
         add_xattr(xb, std::string("\2user.large"), std::string("\0\x20\0\0", 4));
         add_xattr(xb, std::string("\1\x20user.large"), std::string(100, 'p'));
         i.seal(i.xattr_next);
     },
     {"/attr"}},
    {"F804", "xattr_record",
     SEALED(seal(i.xattr_next),
            reinterpret_cast<lay_xattr *>(i.at<lay_xattr_block>(i.xattr_next).bytes)
                ->reserved = 1)},
    {"F1007", "log_without_room",
     [](Image &i) {
         for (uint64_t used = 0; used < i.geo.log_blocks; used++)
             i.log({});
     }},
    /* The root's leaf is in the log alone. */
    {"F710", "nlink_and_a_log_without_room",
     [](Image &i) {
         const std::vector<uint8_t> leaf = i.copy(i.root_leaf);
         for (uint64_t used = LAY_LOG_TAGS + 2; used < i.geo.log_blocks; used++)
             i.log({});
         i.log(std::vector<std::vector<uint8_t>>(LAY_LOG_TAGS, leaf));
         std::memset(&i.at<uint8_t>(i.root_leaf), 0xee, LAY_BLOCK_SIZE);
         i.inode(INO_FILE).nlink = lay_put32(7);
         i.seal_inode(INO_FILE);
     }},
};

} // namespace

const std::vector<ProblemCase> &problem_cases()
{
    return cases;
}

void fill_all(Image &img)
{
    img.fill();
    for (uint64_t i = 0; i < 100; i++)
        std::memset(&img.at<uint8_t>(img.file_data + i), static_cast<int>(i + 1), LAY_BLOCK_SIZE);
    std::memset(&img.at<uint8_t>(img.gpu_data), 0x77, LAY_BLOCK_SIZE);
}

const Files &files_of_all()
{
    static const Files files = [] {
        int fd = memfd_create("image", MFD_CLOEXEC);
        const std::string path = "/proc/self/fd/" + std::to_string(fd);
        Image img(path);
        fill_all(img);
        Files all = list_files(path);
        close(fd);
        return all;
    }();
    return files;
}
