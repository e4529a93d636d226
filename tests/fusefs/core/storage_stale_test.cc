/* SPDX-License-Identifier: BSD-2-Clause */
// A drive that has acknowledged and lost the write of a block: an older state of it, sound in
// itself, is found when it is first read, and never taken for the present one (R10).
#include <string.h>

#include <map>

#include "mkfs/mkfs_core.h"
#include "tests/fusefs/core/inode_ref.h"
#include "tests/fusefs/core/sealed_blocks.h"
#include "tests/fusefs/core/storage_fixture.h"
#include "tests/rounds.h"

namespace
{

constexpr ffs_cred CRED = {};
constexpr int NAMES = 600; // a directory of several levels
constexpr int LINKS = 1100;

class Stale : public StorageTest
{
  protected:
    using Bytes = std::vector<uint8_t>;
    // What is known of each name: its content and attributes, or "error".
    using View = std::map<std::string, std::string>;

    void SetUp() override;
    void change(int version);
    void change_file(const char *name, int version);
    View look();
    std::string look_at(ffs_inode *dir, const std::string &name);
    void exercise();
    std::vector<uint64_t> changed_blocks();
    bool in_use(uint64_t block);
    std::string try_block(uint64_t block);

    Bytes copy()
    {
        const uint8_t *bytes = dev->bytes();
        return Bytes(bytes, bytes + BYTES);
    }
    void restore(const Bytes &image) { memcpy(dev->bytes(), image.data(), BYTES); }
    const lay_head &head(const Bytes &image, uint64_t block)
    {
        return *reinterpret_cast<const lay_head *>(&image[block << LAY_BLOCK_SHIFT]);
    }

    static constexpr uint64_t BYTES = 32 << 20;
    Bytes old_image, new_image;
    View present;
    lay_geometry geo = {};
    // The string has room for the content of any file, and from 7 MiB on for
    // its attribute. It is allocated once, since each state reads some thousand
    // names.
    std::string data = std::string(8 << 20, 0);
};

void Stale::SetUp()
{
    mkfs_params params = {};
    struct mkfs_plan plan = {};
    memcpy(params.uuid, "storage-test-fs!", 16);
    params.time_sec = 1700000000;
    params.data_csum = true;
    dev = std::make_unique<CrashDevice>(BYTES, 512);
    ASSERT_EQ(mkfs_format(dev->dev(), &params, &plan), 0);
    ASSERT_EQ(mount(), 0) << why;
    change(0);
    remount();
    change(1);
    ASSERT_EQ(unmount(), 0);
    old_image = copy();
    ASSERT_EQ(mount(), 0) << why;
    change(2);
    present = look();
    ASSERT_EQ(unmount(), 0);
    new_image = copy();
    geo = geometry_of(dev.get());
}

void Stale::change_file(const char *name, int version)
{
    Inode root, file;
    std::string value(3000, static_cast<char>('a' + version));
    ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, root.out()), 0);
    if (ffs_lookup(root, name, file.out()) != 0) {
        ASSERT_EQ(ffs_mknod(root, name, S_IFREG | 0644, 0, &CRED, file.out()), 0);
    }
    // The block of attributes stays when the other one is replaced.
    ASSERT_EQ(ffs_setxattr(file, "user.constant", "", 0, 0), 0);
    ASSERT_EQ(ffs_setxattr(file, "user.x", value.data(), 300, 0), 0);
    for (uint64_t i = 0; i < 400; i++)
        ASSERT_GT(ffs_write(file, (i * 3 + static_cast<uint64_t>(version)) * 4096, value.data(),
                            value.size()),
                  0);
}

// Every object changes, and more chunks are needed.
void Stale::change(int version)
{
    Inode root, dir;
    std::string suffix = std::to_string(version);
    change_file("pieces", version);
    change_file("other", version);
    ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, root.out()), 0);
    if (ffs_lookup(root, "dir", dir.out()) != 0) {
        ASSERT_EQ(ffs_mkdir(root, "dir", 0755, &CRED, dir.out()), 0);
    }
    for (int i = 0; i < NAMES; i++) {
        Inode file;
        std::string name = std::string(40, 'n') + std::to_string(i) + "." + suffix;
        ASSERT_EQ(ffs_mknod(dir, name.c_str(), S_IFREG | 0644, 0, &CRED, file.out()), 0);
    }
    for (int i = 0; version > 0 && i < LINKS / 2; i++) {
        Inode link;
        std::string name = "link" + std::to_string(i) + "." + suffix;
        std::string target = name + std::string(4000, 't');
        ASSERT_EQ(ffs_symlink(root, name.c_str(), target.c_str(), &CRED, link.out()), 0);
    }
    ASSERT_EQ(ffs_sync(fs), 0);
}

std::string Stale::look_at(ffs_inode *dir, const std::string &name)
{
    Inode inode;
    std::string text;
    ffs_attr attr;
    if (ffs_lookup(dir, name.c_str(), inode.out()) != 0)
        return "error";
    ffs_getattr(inode, &attr);
    if (S_ISDIR(attr.mode))
        return "directory";
    ssize_t n = S_ISLNK(attr.mode) ? ffs_readlink(inode, data.data(), data.size())
                                   : ffs_read(inode, 0, data.data(), data.size());
    ssize_t x = S_ISLNK(attr.mode) ? 0 : ffs_getxattr(inode, "user.x", &data[7 << 20], 4096);
    // A read ends before what cannot be read.
    if (n < static_cast<ssize_t>(attr.size) || (x < 0 && x != -ENODATA))
        return "error";
    for (const auto &part : {data.substr(0, static_cast<size_t>(n)),
                             data.substr(7 << 20, x > 0 ? static_cast<size_t>(x) : 0)})
        text += std::to_string(part.size()) + " " + std::to_string(std::hash<std::string>{}(part)) +
                " ";
    return text;
}

Stale::View Stale::look()
{
    View view;
    Inode root, dir;
    std::vector<std::string> names;
    auto add = [](void *arg, const char *name, size_t len, uint64_t, uint8_t, uint64_t) {
        static_cast<std::vector<std::string> *>(arg)->emplace_back(name, len);
        return 0;
    };
    if (ffs_iget(fs, LAY_INO_ROOT, root.out()) != 0)
        return {{"/", "error"}};
    view["/"] = ffs_readdir(root, 0, add, &names) < 0 ? "error" : "whole";
    for (const std::string &name : names)
        view["/" + name] = look_at(root, name);
    names.clear();
    if (ffs_lookup(root, "dir", dir.out()) != 0)
        return view;
    view["/dir/"] = ffs_readdir(dir, 0, add, &names) < 0 ? "error" : "whole";
    for (const std::string &name : names)
        view["/dir/" + name] = look_at(dir, name);
    return view;
}

// Uses what only changes need: bitmaps, entries, free inodes.
void Stale::exercise()
{
    Inode root;
    std::string value(3000, 'z');
    if (ffs_iget(fs, LAY_INO_ROOT, root.out()) != 0)
        return;
    for (int i = 0; i < 20; i++) {
        Inode file;
        std::string name = "new" + std::to_string(i);
        if (ffs_mknod(root, name.c_str(), S_IFREG | 0644, 0, &CRED, file.out()) != 0)
            continue;
        ffs_setxattr(file, "user.x", value.data(), value.size(), 0);
        ffs_write(file, 0, value.data(), value.size());
    }
    for (const auto &[name, text] : present) {
        if (name.compare(0, 5, "/link") == 0)
            ffs_unlink(root, name.c_str() + 1);
    }
    for (const char *name : {"pieces", "other"})
        ffs_unlink(root, name);
    ffs_sync(fs);
}

// Of a block in a chunk, which the entries of its segment tell.
bool Stale::in_use(uint64_t block)
{
    uint64_t addr = lay_get64(head(new_image, block).block);
    uint32_t index = lay_addr_index(addr);
    if (lay_addr_kind(addr) != LAY_KIND_CHUNK)
        return true;
    const auto &entries = *reinterpret_cast<const lay_entries *>(&head(new_image, block - index));
    return entries.used[index / 8] >> index % 8 & 1;
}

// Those of which both images have a sound state.
std::vector<uint64_t> Stale::changed_blocks()
{
    std::vector<uint64_t> blocks;
    for (uint64_t b = 0; b < BYTES >> LAY_BLOCK_SHIFT; b++) {
        const lay_head &was = head(old_image, b), &is = head(new_image, b);
        unsigned kind = lay_addr_kind(lay_get64(is.block));
        if (is_in_log(geo, b) || kind < LAY_KIND_SUPER || was.block.le != is.block.le ||
            was.magic.le != is.magic.le || memcmp(&was, &is, LAY_BLOCK_SIZE) == 0)
            continue;
        if (is_sealed(reinterpret_cast<const uint8_t *>(&was)) &&
            is_sealed(reinterpret_cast<const uint8_t *>(&is)) && in_use(b))
            blocks.push_back(b);
    }
    return blocks;
}

// What is wrong if a block has its older state, or "".
std::string Stale::try_block(uint64_t block)
{
    uint32_t magic = lay_get32(head(new_image, block).magic);
    bool single = magic != LAY_MAGIC_SUPER;
    restore(new_image);
    memcpy(dev->bytes() + (block << LAY_BLOCK_SHIFT), &head(old_image, block), LAY_BLOCK_SIZE);
    int err = mount();
    if (err)
        return single && err == -EUCLEAN ? "" : "mount: " + why;
    std::string wrong;
    const View now = look();
    for (const auto &[name, text] : now) {
        auto expected = present.find(name);
        if (text != "error" && (expected == present.end() || expected->second != text))
            wrong = name + " is of an older state";
    }
    exercise();
    struct ffs_metadata_counts counts;
    ffs_metadata_counts(fs, &counts);
    if (single && counts.damaged == 0 && wrong.empty())
        wrong = "not found";
    unmount();
    return wrong;
}

TEST_F(Stale, StatesOfEveryKindAreFound)
{
    std::map<uint32_t, int> kinds;
    for (uint64_t block : changed_blocks()) {
        const lay_head &is = head(new_image, block);
        const char *magic = reinterpret_cast<const char *>(&is.magic);
        if (kinds[lay_get32(is.magic)]++ >= test_rounds(3, 8))
            continue;
        EXPECT_EQ(try_block(block), "") << "block " << block << ", " << std::string(magic, 4)
                                        << ", address " << std::hex << lay_get64(is.block);
    }
    for (uint32_t magic :
         {LAY_MAGIC_SUPER, LAY_MAGIC_BITMAP, LAY_MAGIC_SUMS, LAY_MAGIC_MAP, LAY_MAGIC_ENTRIES,
          LAY_MAGIC_AGES, LAY_MAGIC_INODES, LAY_MAGIC_EXTENTS, LAY_MAGIC_DIR, LAY_MAGIC_XATTR})
        EXPECT_GT(kinds[magic], 0) << std::hex << magic;
}

// A change of the size that moves all areas would make it the present state.
TEST_F(Stale, AStateIsNotCopiedByAShrink)
{
    int tried = 0;
    for (uint64_t block : changed_blocks()) {
        uint32_t magic = lay_get32(head(new_image, block).magic);
        if (magic != LAY_MAGIC_SUMS && magic != LAY_MAGIC_BITMAP)
            continue;
        restore(new_image);
        memcpy(dev->bytes() + (block << LAY_BLOCK_SHIFT), &head(old_image, block), LAY_BLOCK_SIZE);
        ASSERT_EQ(mount(), 0) << why;
        const uint64_t before = ffs_geometry(fs)->blocks;
        EXPECT_EQ(ffs_shrink(fs, before - LAY_SUMS_ENTRIES), -EUCLEAN) << block;
        EXPECT_EQ(ffs_geometry(fs)->blocks, before);
        unmount();
        tried++;
    }
    EXPECT_GE(tried, 2);
    restore(new_image);
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(ffs_shrink(fs, ffs_geometry(fs)->blocks - LAY_SUMS_ENTRIES), 0);
    EXPECT_EQ(look(), present);
    EXPECT_EQ(unmount(), 0);
}

// With neither place of the present superblock there is nothing to go by.
TEST_F(Stale, BothPlacesOfTheSuperblockAreRefused)
{
    restore(new_image);
    for (uint64_t block : geo.supers)
        memcpy(dev->bytes() + (block << LAY_BLOCK_SHIFT), &head(old_image, block), LAY_BLOCK_SIZE);
    EXPECT_EQ(mount(), -EUCLEAN);
    EXPECT_NE(why.find("superblock"), std::string::npos) << why;
}

} // namespace
