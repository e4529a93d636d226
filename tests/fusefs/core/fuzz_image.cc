/* SPDX-License-Identifier: BSD-2-Clause */
// Fuzz entry of the whole file system: an image with one of everything is mutated as the input
// says, its checksums are made right again, and then it is checked, mounted, walked, used,
// unmounted and checked once more. No input may crash, hang or damage memory, and an image that
// fsck finds sound stays sound.
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fusefs/core/ffs.h"
#include "layout/layout.h"
#include "mkfs/mkfs_core.h"
#include "tests/fusefs/core/image_check.h"
#include "tests/fusefs/core/image_repair.h"
#include "tests/fusefs/core/inode_ref.h"
#include "tests/keep_heap.h"
#include "tests/test_device.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
// Inputs so far whose image could be mounted for writing: what fuzzing is worth.
extern "C" unsigned long fuzz_image_mounted(void);
// Inputs so far whose image was damaged and could be repaired.
extern "C" unsigned long fuzz_image_repaired(void);
static unsigned long mounted, repaired;

namespace
{

struct ImageField {
    uint16_t offset; // in the block
    uint8_t size;    // 1, 2, 4 or 8 bytes
};

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

// Fields of a block with this magic; a block's arrays count as the fields of their elements.
const std::vector<ImageField> &image_fields(uint32_t magic)
{
    static const std::map<uint32_t, Fields> table = make_table();
    auto found = table.find(magic);
    return found == table.end() ? head : found->second;
}

constexpr uint64_t BYTES = 26u << 20;
constexpr uint64_t FS_BYTES = 24u << 20; // size of the file system, which can grow
constexpr ffs_cred CRED = {0, 0, 0};

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "fuzz_image: %s\n", what);
    abort();
}

// A device in memory. Resetting it to its base image costs only as much as the
// writes since.
class Device : public TestDevice
{
  public:
    explicit Device(const std::vector<uint8_t> *base = nullptr)
        : TestDevice(BYTES, 512), base_(base), mem_(base ? *base : std::vector<uint8_t>(BYTES)),
          is_dirty_(BYTES / LAY_BLOCK_SIZE)
    {
        keep_heap();
    }
    // For writing.
    uint8_t *block(uint64_t at)
    {
        mark(at);
        return mem_.data() + at * LAY_BLOCK_SIZE;
    }
    const std::vector<uint8_t> &bytes() const { return mem_; }
    void reset()
    {
        for (uint64_t at : dirty_) {
            memcpy(&mem_[at * LAY_BLOCK_SIZE], base_->data() + at * LAY_BLOCK_SIZE, LAY_BLOCK_SIZE);
            is_dirty_[at] = 0;
        }
        dirty_.clear();
    }

  private:
    void mark(uint64_t at)
    {
        if (!is_dirty_[at])
            dirty_.push_back(at);
        is_dirty_[at] = 1;
    }
    int transfer(bd_io *io) override
    {
        if (io->op == BD_READ)
            memcpy(io->buf, mem_.data() + io->offset, io->len);
        if (io->op != BD_WRITE && io->op != BD_WRITE_ZEROES)
            return 0;
        for (uint64_t at = io->offset / 4096; at <= (io->offset + io->len - 1) / 4096; at++)
            mark(at);
        if (io->op == BD_WRITE)
            memcpy(mem_.data() + io->offset, io->buf, io->len);
        else
            memset(mem_.data() + io->offset, 0, io->len);
        return 0;
    }

    const std::vector<uint8_t> *base_;
    std::vector<uint8_t> mem_, is_dirty_;
    std::vector<uint64_t> dirty_;
};

// --- The image ----------------------------------------------------------------------------------

class Base
{
  public:
    explicit Base(bool data_csum);
    lay_geometry geo = {};
    std::vector<uint8_t> clean, crashed;
    std::vector<uint64_t> blocks; // metadata of the crashed image, the log's records too
    std::vector<uint64_t> names;  // blocks of the device that name ages

  private:
    void fill(struct ffs *fs);
};

void Base::fill(struct ffs *fs)
{
    Inode root, dir, sub, tree, gpu, attr, link, fifo, open;
    std::string data(9000, 'd');
    ffs_attr flags = {};
    flags.flags = LAY_INODE_GPU_BOUND;
    ffs_iget(fs, LAY_INO_ROOT, root.out());
    ffs_mkdir(root, "dir", 0755, &CRED, dir.out());
    ffs_mkdir(dir, "sub", 0755, &CRED, sub.out());
    for (int i = 0; i < 60; i++) {
        Inode f;
        ffs_mknod(dir, (std::string(100, 'n') + std::to_string(i)).c_str(), S_IFREG | 0644, 0,
                  &CRED, f.out());
    }
    ffs_mknod(root, "tree", S_IFREG | 0644, 0, &CRED, tree.out());
    for (uint64_t i = 0; i < 400; i++)
        ffs_write(tree, i * 8192, "x", 1);
    ffs_mknod(root, "gpu", S_IFREG | 0644, 0, &CRED, gpu.out());
    ffs_setattr(gpu, &flags, FFS_SET_FLAGS, nullptr);
    ffs_write(gpu, 100, data.data(), data.size());
    ffs_mknod(root, "attr", S_IFREG | 0644, 0, &CRED, attr.out());
    for (int i = 0; i < 6; i++)
        ffs_setxattr(attr, ("user." + std::to_string(i)).c_str(), data.data(), 2000, 0);
    ffs_symlink(root, "link", std::string(3000, 't').c_str(), &CRED, link.out());
    ffs_mknod(root, "fifo", S_IFIFO | 0644, 0, &CRED, fifo.out());
    ffs_link(tree, dir, "hard");
    ffs_sync(fs);
}

Base::Base(bool data_csum)
{
    Device device;
    mkfs_params params = {};
    mkfs_plan plan;
    ffs_mount_opts opts = {};
    struct ffs *fs;
    struct reason why = {};
    memcpy(params.uuid, "fuzz image, uuid", 16);
    memcpy(params.hash_seed, "fuzz image, seed", 16);
    params.bytes = FS_BYTES;
    params.log_blocks = LAY_MIN_LOG;
    params.data_csum = data_csum;
    opts.no_thread = true;
    if (mkfs_format(device.dev(), &params, &plan))
        fail("mkfs");
    geo = plan.geo;
    if (ffs_mount(device.dev(), &opts, &fs, &why))
        fail(why.text);
    fill(fs);
    ffs_unmount(fs);
    clean = device.bytes();
    if (ffs_mount(device.dev(), &opts, &fs, &why))
        fail(why.text);
    {
        // A removed file that is open, a block that is freed, a file in the log alone.
        Inode root, attr, open;
        ffs_iget(fs, LAY_INO_ROOT, root.out());
        ffs_lookup(root, "attr", attr.out());
        ffs_removexattr(attr, "user.3");
        ffs_removexattr(attr, "user.4");
        ffs_mknod(root, "open", S_IFREG | 0644, 0, &CRED, open.out());
        ffs_write(open, 0, "data", 4);
        ffs_unlink(root, "open");
        ffs_sync(fs);
        ffs_unlink(root, "link");
        ffs_sync(fs);
        crashed = device.bytes();
    }
    ffs_unmount(fs);
    for (uint64_t at = 0; at < BYTES / LAY_BLOCK_SIZE; at++) {
        if (image_is_metadata(&crashed[at * LAY_BLOCK_SIZE]))
            blocks.push_back(at);
        lay_head head;
        memcpy(&head, &crashed[at * LAY_BLOCK_SIZE], sizeof(head));
        for (uint32_t magic : {LAY_MAGIC_ENTRIES, LAY_MAGIC_MAP, LAY_MAGIC_AGES, LAY_MAGIC_SUPER}) {
            if (lay_get32(head.magic) == magic)
                names.push_back(at);
        }
    }
}

// --- Mutations ----------------------------------------------------------------------------------

class Input
{
  public:
    Input(const uint8_t *data, size_t size) : data_(data), size_(size) {}
    bool empty() const { return at_ >= size_; }
    uint64_t take(size_t n)
    {
        uint64_t value = 0;
        for (size_t i = 0; i < n && at_ < size_; i++)
            value |= static_cast<uint64_t>(data_[at_++]) << (8 * i);
        return value;
    }

  private:
    const uint8_t *data_;
    size_t size_, at_ = 0;
};

class Mutator
{
  public:
    Mutator(Device *device, const Base &base, Input *in) : device_(device), base_(base), in_(in) {}
    void run()
    {
        for (unsigned n = 0; n < 8 && !in_->empty(); n++)
            mutate();
        seal_changed();
        if (changed_.count(base_.geo.supers[0]) > 0) {
            device_->block(base_.geo.supers[1]);
            image_seal_super(device_->block(0), &base_.geo);
        }
        if (changed_.count(0) > 0)
            memcpy(device_->block(LAY_LABEL_SECOND), device_->block(0), LAY_BLOCK_SIZE);
        image_repair_log(device_->block(0), &base_.geo);
        // image_repair_log() writes past the first block.
        for (uint64_t at : base_.blocks) {
            if (at >= base_.geo.log_start && at < base_.geo.log_start + base_.geo.log_blocks)
                device_->block(at);
        }
    }
    // Changes a byte of a block, whose checksum does not fit any longer.
    void damage()
    {
        uint8_t *block = device_->block(any_block());
        block[in_->take(2) % LAY_BLOCK_SIZE] ^= static_cast<uint8_t>(1 + in_->take(1) % 255);
    }

  private:
    // Seals the changed blocks, and enters their ages where they are named.
    void seal_changed()
    {
        for (uint64_t at : base_.names)
            device_->block(at);
        for (uint64_t at : changed_)
            image_seal_block(device_->block(0), &base_.geo, device_->block(at));
    }
    uint64_t any_block() { return base_.blocks[in_->take(2) % base_.blocks.size()]; }
    // The address of a block as its head has it.
    uint64_t any_address()
    {
        lay_head head;
        memcpy(&head, device_->block(any_block()), sizeof(head));
        return lay_get64(head.block);
    }
    uint64_t value(uint64_t old)
    {
        static const uint64_t odd[] = {0,      1,          2,          7,           0xff,
                                       0x8000, 0xffffffff, UINT64_MAX, LAY_NONE - 1};
        switch (in_->take(1) % 8) {
        case 0:
            return odd[in_->take(1) % (sizeof(odd) / sizeof(odd[0]))];
        case 1:
            return old + 1;
        case 2:
            return old - 1;
        case 3:
            return any_block();
        case 4:
            return old ^ 1ull << in_->take(1) % 64;
        case 5:
            return in_->take(1);
        case 6:
            return any_address();
        default:
            return in_->take(8);
        }
    }
    void mutate()
    {
        uint64_t at = any_block();
        uint8_t *block = device_->block(at);
        changed_.insert(at);
        lay_head head;
        memcpy(&head, block, sizeof(head));
        switch (in_->take(1) % 8) {
        case 0: // any byte
            block[in_->take(2) % LAY_BLOCK_SIZE] = static_cast<uint8_t>(in_->take(1));
            return;
        case 1: { // another block at this address
            const uint8_t *from = device_->block(any_block());
            memcpy(block + sizeof(head), from + sizeof(head), LAY_BLOCK_SIZE - sizeof(head));
            return;
        }
        default:
            set_field(block, image_fields(lay_get32(head.magic)));
        }
    }
    void set_field(uint8_t *block, const std::vector<ImageField> &fields)
    {
        const ImageField &f = fields[in_->take(2) % fields.size()];
        uint64_t old = 0;
        memcpy(&old, block + f.offset, f.size);
        uint64_t fresh = value(old);
        memcpy(block + f.offset, &fresh, f.size);
    }

    Device *device_;
    const Base &base_;
    Input *in_;
    std::set<uint64_t> changed_;
};

// --- Use ----------------------------------------------------------------------------------------

class User
{
  public:
    explicit User(struct ffs *fs) : fs_(fs) {}
    void walk();
    void change();
    void resize(bool larger);

  private:
    static int collect(void *arg, const char *name, size_t len, uint64_t, uint8_t, uint64_t)
    {
        auto *names = static_cast<std::vector<std::string> *>(arg);
        names->emplace_back(name, len);
        if (names->size() > 100000)
            fail("a directory has no end");
        return 0;
    }
    void look(ffs_inode *inode);
    void walk_dir(ffs_inode *dir, unsigned depth);

    struct ffs *fs_;
    unsigned left_ = 400; // inodes to look at
};

void User::look(ffs_inode *inode)
{
    char buf[5000];
    ffs_attr attr;
    ffs_map map;
    ffs_segment segments[16];
    uint32_t sums[16];
    ffs_getattr(inode, &attr);
    ffs_read(inode, 0, buf, sizeof(buf));
    ffs_read(inode, attr.size > 3000 ? attr.size - 3000 : 0, buf, sizeof(buf));
    ffs_readlink(inode, buf, sizeof(buf));
    ffs_listxattr(inode, true, buf, sizeof(buf));
    ffs_getxattr(inode, "user.2", buf, sizeof(buf));
    ffs_extents(inode, 0, segments, 16);
    ffs_seek(inode, 4096, SEEK_HOLE);
    ffs_file_sums(inode, 0, 16, sums);
    if (ffs_map_read_some(inode, 0, 1u << 20, 64, &map) == 0)
        ffs_map_release(&map);
}

void User::walk_dir(ffs_inode *dir, unsigned depth)
{
    std::vector<std::string> names;
    ffs_readdir(dir, 2, collect, &names);
    for (const std::string &name : names) {
        Inode child;
        if (left_ == 0 || ffs_lookup(dir, name.c_str(), child.out()))
            continue;
        left_--;
        look(child);
        if (depth < 6)
            walk_dir(child, depth + 1);
    }
}

void User::walk()
{
    Inode root;
    if (ffs_iget(fs_, LAY_INO_ROOT, root.out()) == 0)
        walk_dir(root, 0);
    for (uint64_t ino = 0; ino < 100; ino += 7) {
        Inode any;
        if (ffs_iget(fs_, ino, any.out()) == 0)
            look(any);
    }
}

void User::change()
{
    Inode root, dir, tree, gpu, attr, fresh, link, sub;
    std::string data(30000, 'w');
    ffs_attr size = {};
    ffs_map map;
    struct ffs_scrub scrub;
    if (ffs_iget(fs_, LAY_INO_ROOT, root.out()))
        return;
    ffs_mknod(root, "fresh", S_IFREG | 0600, 0, &CRED, fresh.out());
    if (fresh) {
        ffs_write(fresh, 5000, data.data(), data.size());
        ffs_link(fresh, root, "second");
        ffs_fsync(fresh, false);
    }
    if (ffs_lookup(root, "dir", dir.out()) == 0) {
        for (int i = 0; i < 60; i += 3)
            ffs_unlink(dir, (std::string(100, 'n') + std::to_string(i)).c_str());
        ffs_rename(dir, "hard", root, "soft", 0);
        ffs_mkdir(dir, "new", 0755, &CRED, sub.out());
        ffs_rmdir(dir, "sub");
        ffs_rename(root, "second", dir, "sub", 0);
    }
    if (ffs_lookup(root, "tree", tree.out()) == 0) {
        ffs_fallocate(tree, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 10000, 300000);
        ffs_write(tree, 4096, data.data(), data.size());
        size.size = 900000;
        ffs_setattr(tree, &size, FFS_SET_SIZE, nullptr);
        if (ffs_map_write(tree, 40960, 8192, &map) == 0)
            ffs_map_write_end(&map, 5000, nullptr);
    }
    if (ffs_lookup(root, "gpu", gpu.out()) == 0) {
        ffs_scrub(gpu, 0, 1u << 20, FFS_SCRUB_ADD | FFS_SCRUB_CORRECT, &scrub);
        ffs_write(gpu, 2000000, data.data(), data.size());
    }
    if (ffs_lookup(root, "attr", attr.out()) == 0) {
        ffs_setxattr(attr, "user.2", data.data(), 1000, 0);
        ffs_removexattr(attr, "user.1");
    }
    ffs_symlink(root, "link2", data.substr(0, 2000).c_str(), &CRED, link.out());
    for (const char *name : {"link", "attr", "fresh", "fifo", "tree"})
        ffs_unlink(root, name);
    ffs_sync(fs_);
}

// If the image cannot be resized, its size does not change.
void User::resize(bool larger)
{
    struct ffs_statfs before, after;
    ffs_statfs(fs_, &before);
    int err = larger ? ffs_grow(fs_, BYTES / LAY_BLOCK_SIZE) : ffs_shrink(fs_, LAY_MIN_BLOCKS);
    ffs_statfs(fs_, &after);
    if (err && after.blocks != before.blocks)
        fail("a resize fails after it has changed the size");
}

// fsck prints its findings; here only their number counts, unless FUZZ_SHOW is set.
int64_t quietly(Device *device, int64_t (*run)(bd_dev *))
{
    static const int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (getenv("FUZZ_SHOW"))
        return run(device->dev());
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    dup2(null_fd, STDOUT_FILENO);
    int64_t result = run(device->dev());
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    return result;
}

int64_t check(Device *device)
{
    return quietly(device, image_check);
}

// What fsck can find its way in it repairs, so that nothing is found again and a mount works.
int64_t repair(Device *device)
{
    int64_t found = quietly(device, image_fsck);
    if (found == -ENOTRECOVERABLE)
        fail("not repaired");
    if (found < 0)
        return found;
    if (check(device) != 0)
        fail("repaired, but not clean");
    repaired += found > 0;
    return 0;
}

} // namespace

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const Base plain(false), summed(true);
    static Device devices[] = {Device(&plain.clean), Device(&plain.crashed), Device(&summed.clean),
                               Device(&summed.crashed)};
    Input in(data, size);
    uint64_t how = in.take(1);
    const Base &base = how & 16 ? summed : plain;
    Device &device = devices[(how & 16 ? 2 : 0) + (how & 1)];
    device.reset();
    bool is_damaged = how & 128 && in.take(1) % 4 == 0;
    Mutator mutator(&device, base, &in);
    if (is_damaged)
        mutator.damage();
    else
        mutator.run();
    int64_t before = how & 8 ? repair(&device) : check(&device);

    struct ffs *fs;
    ffs_mount_opts opts = {};
    struct reason why = {};
    opts.no_thread = true;
    opts.read_only = how & 2;
    opts.cache_bytes = how & 4 ? 1 : 0;
    int err = ffs_mount(device.dev(), &opts, &fs, &why);
    if (err) {
        if (before == 0 && err != -ENOTSUP && err != -EROFS)
            fail((std::string("clean for fsck, refused by mount: ") + why.text).c_str());
        return 0;
    }
    mounted += !opts.read_only;
    User user(fs);
    user.walk();
    user.change();
    if (how & 32)
        user.resize(how & 64);
    err = ffs_unmount(fs);
    if (before == 0 && (err || check(&device) != 0))
        fail("clean before it was mounted, not clean afterwards");
    return 0;
}

unsigned long fuzz_image_mounted(void)
{
    return mounted;
}

unsigned long fuzz_image_repaired(void)
{
    return repaired;
}
