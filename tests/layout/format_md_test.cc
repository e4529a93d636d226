/* SPDX-License-Identifier: BSD-2-Clause */
/* The offset tables of FORMAT.md against the structs. */
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "layout/format.h"
#include "layout/layout.h"

namespace
{

struct Field {
    std::string name;
    size_t offset, size;

    bool operator==(const Field &o) const
    {
        return name == o.name && offset == o.offset && size == o.size;
    }
};

std::ostream &operator<<(std::ostream &out, const Field &f)
{
    return out << f.name << " at " << f.offset << ", " << f.size << " bytes";
}

struct Struct {
    size_t size;
    std::vector<Field> fields;
};

using Structs = std::map<std::string, Struct>;

#define FIELD(s, f)                      \
    {                                    \
#f, offsetof(s, f), sizeof(s::f) \
    }

const Structs in_code = {
    {"lay_head",
     {sizeof(lay_head),
      {FIELD(lay_head, magic), FIELD(lay_head, crc), FIELD(lay_head, block), FIELD(lay_head, owner),
       FIELD(lay_head, tid), FIELD(lay_head, uuid)}}},
    {"lay_time",
     {sizeof(lay_time), {FIELD(lay_time, nsec), FIELD(lay_time, sec_lo), FIELD(lay_time, sec_hi)}}},
    {"lay_extent",
     {sizeof(lay_extent),
      {FIELD(lay_extent, file_block), FIELD(lay_extent, block), FIELD(lay_extent, len),
       FIELD(lay_extent, flags), FIELD(lay_extent, device)}}},
    {"lay_map_tree",
     {sizeof(lay_map_tree),
      {FIELD(lay_map_tree, root), FIELD(lay_map_tree, blocks), FIELD(lay_map_tree, entries)}}},
    {"lay_map_link",
     {sizeof(lay_map_link), {FIELD(lay_map_link, block), FIELD(lay_map_link, tail)}}},
    {"lay_inode",
     {sizeof(lay_inode),
      {FIELD(lay_inode, mode),      FIELD(lay_inode, flags),      FIELD(lay_inode, uid),
       FIELD(lay_inode, gid),       FIELD(lay_inode, nlink),      FIELD(lay_inode, generation),
       FIELD(lay_inode, size),      FIELD(lay_inode, blocks),     FIELD(lay_inode, atime),
       FIELD(lay_inode, mtime),     FIELD(lay_inode, ctime),      FIELD(lay_inode, btime),
       FIELD(lay_inode, rdev),      FIELD(lay_inode, policy),     FIELD(lay_inode, unit),
       FIELD(lay_inode, set),       FIELD(lay_inode, xattr),      FIELD(lay_inode, next_orphan),
       FIELD(lay_inode, parent),    FIELD(lay_inode, version),    FIELD(lay_inode, map_kind),
       FIELD(lay_inode, map_count), FIELD(lay_inode, map_height), FIELD(lay_inode, map_reserved),
       FIELD(lay_inode, project),   FIELD(lay_inode, key),        FIELD(lay_inode, reserved),
       FIELD(lay_inode, map)}}},
    {"lay_inode_block",
     {sizeof(lay_inode_block),
      {FIELD(lay_inode_block, head), FIELD(lay_inode_block, next_free),
       FIELD(lay_inode_block, used), FIELD(lay_inode_block, reserved),
       FIELD(lay_inode_block, inodes)}}},
    {"lay_incarnation",
     {sizeof(lay_incarnation), {FIELD(lay_incarnation, counter), FIELD(lay_incarnation, id)}}},
    {"lay_member",
     {sizeof(lay_member),
      {FIELD(lay_member, uuid), FIELD(lay_member, blocks), FIELD(lay_member, lba_size),
       FIELD(lay_member, state), FIELD(lay_member, flags), FIELD(lay_member, seen),
       FIELD(lay_member, maybe)}}},
    {"lay_label",
     {sizeof(lay_label), {FIELD(lay_label, head),          FIELD(lay_label, version_major),
                          FIELD(lay_label, version_minor), FIELD(lay_label, block_size),
                          FIELD(lay_label, index),         FIELD(lay_label, reserved),
                          FIELD(lay_label, flags),         FIELD(lay_label, compat),
                          FIELD(lay_label, ro_compat),     FIELD(lay_label, incompat),
                          FIELD(lay_label, incarnation),   FIELD(lay_label, log_id),
                          FIELD(lay_label, log_blocks),    FIELD(lay_label, uuid),
                          FIELD(lay_label, logs),          FIELD(lay_label, supers),
                          FIELD(lay_label, created),       FIELD(lay_label, reserved2),
                          FIELD(lay_label, label),         FIELD(lay_label, members),
                          FIELD(lay_label, reserved3)}}},
    {"lay_mmp",
     {sizeof(lay_mmp),
      {FIELD(lay_mmp, head), FIELD(lay_mmp, sequence), FIELD(lay_mmp, interval),
       FIELD(lay_mmp, state), FIELD(lay_mmp, time), FIELD(lay_mmp, reserved),
       FIELD(lay_mmp, boot_id), FIELD(lay_mmp, holder), FIELD(lay_mmp, host), FIELD(lay_mmp, lock),
       FIELD(lay_mmp, reserved2)}}},
    {"lay_area",
     {sizeof(lay_area),
      {FIELD(lay_area, bitmaps), FIELD(lay_area, sums), FIELD(lay_area, bitmap_age),
       FIELD(lay_area, sums_age), FIELD(lay_area, blocks), FIELD(lay_area, free_blocks),
       FIELD(lay_area, reserved)}}},
    {"lay_super",
     {sizeof(lay_super),
      {FIELD(lay_super, head),
       FIELD(lay_super, state),
       FIELD(lay_super, chunk_shift),
       FIELD(lay_super, inodes),
       FIELD(lay_super, inode_file),
       FIELD(lay_super, hash_seed),
       FIELD(lay_super, free_inode_block),
       FIELD(lay_super, orphan),
       FIELD(lay_super, mounts),
       FIELD(lay_super, mounted),
       FIELD(lay_super, reserve),
       FIELD(lay_super, clean_incarnation),
       FIELD(lay_super, clean_tid),
       FIELD(lay_super, clean_pos),
       FIELD(lay_super, map),
       FIELD(lay_super, map_blocks),
       FIELD(lay_super, map_age),
       FIELD(lay_super, reserved),
       FIELD(lay_super, chunks),
       FIELD(lay_super, area),
       FIELD(lay_super, section_free),
       FIELD(lay_super, reserved2)}}},
    {"lay_bitmap",
     {sizeof(lay_bitmap),
      {FIELD(lay_bitmap, head), FIELD(lay_bitmap, group), FIELD(lay_bitmap, free),
       FIELD(lay_bitmap, reserved), FIELD(lay_bitmap, bits)}}},
    {"lay_sums",
     {sizeof(lay_sums),
      {FIELD(lay_sums, head), FIELD(lay_sums, index), FIELD(lay_sums, reserved),
       FIELD(lay_sums, sums)}}},
    {"lay_slot",
     {sizeof(lay_slot),
      {FIELD(lay_slot, places), FIELD(lay_slot, age), FIELD(lay_slot, reserved)}}},
    {"lay_map_block",
     {sizeof(lay_map_block),
      {FIELD(lay_map_block, head), FIELD(lay_map_block, index), FIELD(lay_map_block, reserved),
       FIELD(lay_map_block, slots)}}},
    {"lay_entries",
     {sizeof(lay_entries),
      {FIELD(lay_entries, head), FIELD(lay_entries, free), FIELD(lay_entries, reserved),
       FIELD(lay_entries, reserved2), FIELD(lay_entries, used), FIELD(lay_entries, ages),
       FIELD(lay_entries, reserved3)}}},
    {"lay_ages",
     {sizeof(lay_ages), {FIELD(lay_ages, head), FIELD(lay_ages, reserved), FIELD(lay_ages, ages)}}},
    {"lay_branch", {sizeof(lay_branch), {FIELD(lay_branch, key), FIELD(lay_branch, child)}}},
    {"lay_node",
     {sizeof(lay_node),
      {FIELD(lay_node, head), FIELD(lay_node, level), FIELD(lay_node, count), FIELD(lay_node, used),
       FIELD(lay_node, reserved), FIELD(lay_node, u)}}},
    {"lay_dirent",
     {sizeof(lay_dirent),
      {FIELD(lay_dirent, key), FIELD(lay_dirent, ino), FIELD(lay_dirent, len),
       FIELD(lay_dirent, type), FIELD(lay_dirent, name_len), FIELD(lay_dirent, name)}}},
    {"lay_xattr_block",
     {sizeof(lay_xattr_block),
      {FIELD(lay_xattr_block, head), FIELD(lay_xattr_block, next), FIELD(lay_xattr_block, used),
       FIELD(lay_xattr_block, count), FIELD(lay_xattr_block, reserved),
       FIELD(lay_xattr_block, bytes)}}},
    {"lay_xattr",
     {sizeof(lay_xattr),
      {FIELD(lay_xattr, len), FIELD(lay_xattr, name_len), FIELD(lay_xattr, reserved),
       FIELD(lay_xattr, value_len)}}},
    {"lay_symlink_block",
     {sizeof(lay_symlink_block),
      {FIELD(lay_symlink_block, head), FIELD(lay_symlink_block, len),
       FIELD(lay_symlink_block, reserved), FIELD(lay_symlink_block, bytes)}}},
    {"lay_tag",
     {sizeof(lay_tag), {FIELD(lay_tag, block), FIELD(lay_tag, age), FIELD(lay_tag, reserved)}}},
    {"lay_log_descriptor",
     {sizeof(lay_log_descriptor),
      {FIELD(lay_log_descriptor, head), FIELD(lay_log_descriptor, count),
       FIELD(lay_log_descriptor, reserved), FIELD(lay_log_descriptor, log_id),
       FIELD(lay_log_descriptor, incarnation), FIELD(lay_log_descriptor, tags)}}},
    {"lay_log_commit",
     {sizeof(lay_log_commit),
      {FIELD(lay_log_commit, head), FIELD(lay_log_commit, blocks), FIELD(lay_log_commit, crc),
       FIELD(lay_log_commit, log_id), FIELD(lay_log_commit, incarnation),
       FIELD(lay_log_commit, tail_tid), FIELD(lay_log_commit, tail_pos),
       FIELD(lay_log_commit, super_age), FIELD(lay_log_commit, reserved),
       FIELD(lay_log_commit, time), FIELD(lay_log_commit, reserved2)}}},
    {"lay_log_unused",
     {sizeof(lay_log_unused), {FIELD(lay_log_unused, head), FIELD(lay_log_unused, words)}}},
};

/* A heading "### struct NAME" begins a table; its rows are "| offset | size | `field` | ...". */
Structs read_specification(const char *path)
{
    std::ifstream in(path);
    std::string line;
    Structs found;
    Struct *current = nullptr;
    char name[64];
    size_t offset, size;
    while (std::getline(in, line)) {
        if (std::sscanf(line.c_str(), "### struct %63[a-z_]", name) == 1)
            current = &found[name];
        else if (line.rfind("#", 0) == 0)
            current = nullptr;
        else if (current && std::sscanf(line.c_str(), "Size: %zu bytes.", &size) == 1)
            current->size = size;
        else if (current && std::sscanf(line.c_str(), "| %zu | %zu | `%63[a-z_0-9]`", &offset,
                                        &size, name) == 3)
            current->fields.push_back({name, offset, size});
    }
    return found;
}

/* Structs of format.h, so that an undocumented one is found. */
std::vector<std::string> structs_of_header(const std::string &path)
{
    std::ifstream in(path);
    std::string line;
    std::vector<std::string> names;
    char name[64];
    while (std::getline(in, line)) {
        if (!line.empty() && line.back() == '{' &&
            std::sscanf(line.c_str(), "struct %63[a-z_]", name) == 1)
            names.push_back(name);
    }
    return names;
}

TEST(FormatMd, DescribesTheStructsOfTheCodeFieldByField)
{
    Structs spec = read_specification(FORMAT_MD);
    for (const auto &[name, code] : in_code) {
        SCOPED_TRACE(name);
        ASSERT_EQ(spec.count(name), 1u);
        EXPECT_EQ(spec[name].size, code.size);
        EXPECT_EQ(spec[name].fields, code.fields);
    }
}

TEST(FormatMd, DescribesNoStructThatTheCodeDoesNotHave)
{
    for (const auto &[name, s] : read_specification(FORMAT_MD))
        EXPECT_EQ(in_code.count(name), 1u) << name;
}

TEST(FormatMd, DescribesEveryByteOfAStruct)
{
    for (const auto &[name, s] : read_specification(FORMAT_MD)) {
        size_t end = 0;
        for (const Field &f : s.fields) {
            EXPECT_EQ(f.offset, end) << name << "." << f.name;
            end = f.offset + f.size;
        }
        EXPECT_EQ(end, s.size) << name;
    }
}

TEST(FormatMd, DescribesEveryStructOfTheHeader)
{
    std::string header(FORMAT_MD);
    header.replace(header.rfind("FORMAT.md"), std::string::npos, "format.h");
    std::vector<std::string> names = structs_of_header(header);
    EXPECT_FALSE(names.empty());
    for (const std::string &name : names)
        EXPECT_EQ(in_code.count(name), 1u) << name;
}

// --- The bytes of the examples against the checks ------------------------------------------------

constexpr uint64_t LEAF = LAY_ADDR_CHUNK(9, 0x34);

union Block {
    uint8_t bytes[LAY_BLOCK_SIZE];
    lay_head head;
    lay_node node;
    lay_log_descriptor desc;
    lay_log_commit commit;
};

/* The leaf of section 12 by its address and the records by their positions; bytes that are not
 * printed are zero. */
class Example : public ::testing::Test
{
  protected:
    Example()
    {
        for (uint8_t i = 0; i < 16; i++)
            geo.uuid[i] = geo.hash_seed[i] = i;
        geo.blocks = 65536;
        geo.supers[0] = 2;
        geo.supers[1] = 32768;
        geo.log_id = 0x1817161514131211;
        geo.log_start = 100;
        geo.log_blocks = 256;
        read();
    }
    void read()
    {
        std::ifstream in(FORMAT_MD);
        std::string line;
        bool here = false;
        while (std::getline(in, line)) {
            here = here || line.rfind("## 12.", 0) == 0;
            if (here && line.rfind("    ", 0) == 0)
                take(line);
        }
    }
    void take(std::string line)
    {
        unsigned value;
        int end = 0;
        char word[16];
        if (std::sscanf(line.c_str(), " position %u, %15[a-z] %n", &value, word, &end) == 2) {
            at = value;
            offset = 0;
        } else if (std::sscanf(line.c_str(), " %15[0-9a-f] %n", word, &end) == 1 &&
                   std::strlen(word) == 4) {
            offset = std::stoul(word, nullptr, 16);
        } else {
            end = 0;
        }
        const char *text = line.c_str() + end;
        for (int n; std::sscanf(text, " %2x%n", &value, &n) == 1; text += n)
            blocks[at].bytes[offset++] = static_cast<uint8_t>(value);
    }
    /* Records are printed without the UUID. */
    Block &record(uint64_t pos)
    {
        std::memcpy(blocks[pos].head.uuid, geo.uuid, sizeof(geo.uuid));
        return blocks[pos];
    }

    lay_geometry geo = {};
    std::map<uint64_t, Block> blocks;
    uint64_t at = LEAF, offset = 0;
    const char *why = "";
};

TEST_F(Example, OfALeafIsValid)
{
    const lay_node &leaf = blocks[LEAF].node;
    ASSERT_EQ(lay_check_node(&geo, &leaf, LAY_MAGIC_DIR, LEAF, 1, 0, 0, UINT64_MAX, &why), 0)
        << why;
    const lay_dirent *d = lay_dirent_next(&leaf, nullptr);
    ASSERT_NE(d, nullptr);
    EXPECT_EQ(std::string(reinterpret_cast<const char *>(d->name), d->name_len), "hello.txt");
    EXPECT_EQ(lay_get64(d->ino), 2u);
    EXPECT_EQ(lay_get64(d->key), lay_name_key(geo.hash_seed, "hello.txt", 9));
}

TEST_F(Example, OfALogIsAWholeTransaction)
{
    const Block &desc = record(5), &commit = record(7);
    ASSERT_EQ(lay_check_descriptor(&geo, &desc.desc, 5, 7, &why), 0) << why;
    ASSERT_EQ(lay_check_image(&geo, &desc.desc.tags[0], &blocks[LEAF], 7, &why), 0) << why;
    EXPECT_EQ(lay_get32(desc.desc.tags[0].age), 0x64d89ebeu);
    ASSERT_EQ(lay_check_commit(&geo, &commit.commit, 7, 7, &why), 0) << why;
    EXPECT_EQ(lay_get32(commit.commit.crc), lay_log_chain(0, &desc));
    EXPECT_EQ(lay_get32(commit.commit.blocks), 3u);
    EXPECT_EQ(lay_get64(commit.commit.tail_tid), 6u);
    EXPECT_EQ(lay_get64(commit.commit.tail_pos), 3u);
    EXPECT_EQ(lay_get32(commit.commit.super_age), 0x34333231u);
    EXPECT_EQ(lay_time_sec(commit.commit.time), 1700000000);
    for (const lay_incarnation *i : {&desc.desc.incarnation, &commit.commit.incarnation})
        EXPECT_EQ(lay_get64(i->counter), 3u);
}

} // namespace
