/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/mkfs/mkfs_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "mkfs/mkfs_core.h"
#include "tests/spawn.h"

namespace
{

constexpr uint64_t ROOM = UINT64_C(1) << 30; /* bytes, more than all images of a test take */

/* In memory where there is room: the tools flush their images, hundreds of times in all. */
std::string new_directory()
{
    struct statvfs shm;
    bool roomy = statvfs("/dev/shm", &shm) == 0 && shm.f_bavail * shm.f_bsize >= ROOM;
    std::string name = (roomy ? "/dev/shm/" : ::testing::TempDir()) + "gpunvme-tools-XXXXXX";
    if (!mkdtemp(name.data()))
        throw std::runtime_error("mkdtemp");
    return name;
}

} // namespace

Result run(const std::vector<std::string> &args, const std::vector<std::string> &env)
{
    int out = memfd_create("stdout", MFD_CLOEXEC), err = memfd_create("stderr", MFD_CLOEXEC);
    std::vector<char *> all;
    for (const std::string &e : env)
        all.push_back(const_cast<char *>(e.c_str()));
    for (char **e = environ; *e; e++) {
        std::string name(*e, std::strcspn(*e, "=") + 1);
        bool replaced = std::any_of(env.begin(), env.end(),
                                    [&](const std::string &x) { return x.rfind(name, 0) == 0; });
        if (!replaced && name != "SOURCE_DATE_EPOCH=")
            all.push_back(*e);
    }
    all.push_back(nullptr);
    pid_t pid = spawn_program(args, -1, out, err, all.data());
    int status = 0;
    waitpid(pid, &status, 0);
    Result r{WIFEXITED(status) ? WEXITSTATUS(status) : -1, take_text(out), take_text(err)};
    /* A sanitizer's exit status may be one that the program uses too. */
    if (r.err.find("Sanitizer") != std::string::npos ||
        r.err.find("runtime error") != std::string::npos)
        r.status = -1;
    return r;
}

Result expect_exit(const Result &r, int status, const std::string &out, const std::string &err)
{
    EXPECT_EQ(r.status, status) << r.out << r.err;
    EXPECT_NE(r.out.find(out), std::string::npos) << r.out;
    EXPECT_NE(r.err.find(err), std::string::npos) << r.err;
    return r;
}

ToolTest::ToolTest() : dir(new_directory())
{
}

ToolTest::~ToolTest()
{
    std::filesystem::remove_all(dir);
}

void read_file(const std::string &path, std::string &bytes)
{
    std::ifstream in(path, std::ios::binary | std::ios::ate);
    bytes.resize(in ? static_cast<size_t>(in.tellg()) : 0);
    in.seekg(0);
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<size_t>(in.gcount()));
}

std::string read_file(const std::string &path)
{
    std::string bytes;
    read_file(path, bytes);
    return bytes;
}

void write_file(const std::string &path, const std::string &bytes)
{
    std::ofstream(path, std::ios::binary) << bytes;
}

Image::Image(const std::string &file, uint8_t uuid) : bytes(IMAGE_BYTES)
{
    mkfs_params params{};
    mkfs_plan plan;
    bd_dev *dev;
    std::memset(params.uuid, uuid, sizeof(params.uuid));
    int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, IMAGE_BYTES) != 0 ||
        bd_file_open(file.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev) != 0)
        throw std::runtime_error("image file");
    int err = mkfs_format(dev, &params, &plan);
    bd_close(dev);
    base = static_cast<uint8_t *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    if (err || base == MAP_FAILED)
        throw std::runtime_error("mkfs_format");
    geo = plan.geo;
    inode_blocks = {MKFS_INODE_BLOCK};
    root_leaf = MKFS_ROOT_NODE;
    next = root_leaf + 1;
    metadata = {LAY_ADDR(LAY_KIND_MAP, 0), LAY_ADDR(LAY_KIND_BITMAP, 0), MKFS_INODE_BLOCK,
                root_leaf};
    for (uint64_t s = 0; s < plan.chunks; s++) {
        segments.push_back(mkfs_segment_start(&plan, s));
        metadata.push_back(LAY_ADDR_CHUNK(s, 0));
    }
}

Image::~Image()
{
    munmap(base, bytes);
}

uint64_t Image::place(uint64_t block) const
{
    uint64_t places[2] = {0, 0};
    if (lay_addr_kind(block) == LAY_KIND_LABEL)
        return block;
    if (lay_addr_kind(block) == LAY_KIND_CHUNK)
        return segments.at(lay_addr_segment(block)) + lay_addr_index(block);
    if (lay_places(&geo, block, places) == 0)
        throw std::runtime_error("no such address");
    return places[0];
}

std::vector<uint8_t> Image::copy(uint64_t block)
{
    const uint8_t *p = base + (place(block) << LAY_BLOCK_SHIFT);
    return std::vector<uint8_t>(p, p + LAY_BLOCK_SIZE);
}

/* Returns true if it is the address of a metadata block that another one names. */
bool Image::is_metadata(uint64_t addr) const
{
    if (!lay_home_ok(&geo, addr))
        return false;
    return lay_addr_kind(addr) != LAY_KIND_CHUNK || lay_addr_segment(addr) < segments.size();
}

/* Enters the age of a sealed block in the one that names it, which is sealed if it was before. */
void Image::enter_age(uint64_t addr)
{
    unsigned index;
    uint64_t name = lay_name_of(&geo, addr, &index);
    if (name == LAY_NONE)
        return;
    lay_block &above = at<lay_block>(name);
    if (lay_get32(above.head.magic) == 0 && !lay_new_block(&geo, name, &above))
        return;
    bool whole = lay_block_crc(geo.uuid, name, &above) == lay_get32(above.head.crc);
    bool free = lay_addr_kind(addr) == LAY_KIND_CHUNK && lay_addr_index(addr) != 0 &&
                !(above.entries.used[index / 8] >> index % 8 & 1);
    if (lay_get64(above.head.block) != name || free)
        return;
    lay_set_named_age(&above, addr, index, lay_age(&at<lay_block>(addr)));
    if (!whole)
        return;
    if (name == LAY_ADDR_SUPER) {
        seal_super(lay_get64(super().head.tid));
        return;
    }
    lay_seal(&above, lay_get64(above.head.tid));
    enter_age(name);
}

void Image::seal(uint64_t block, uint64_t tid)
{
    auto &head = at<lay_head>(block);
    uint64_t addr = lay_get64(head.block);
    lay_seal(&head, tid);
    if (is_metadata(addr) && place(addr) == place(block))
        enter_age(addr);
}

void Image::mark(uint64_t block, uint64_t len, bool used)
{
    bool in_chunk = lay_addr_kind(block) == LAY_KIND_CHUNK;
    uint8_t *bits = in_chunk ? at<lay_entries>(LAY_ADDR_CHUNK(lay_addr_segment(block), 0)).used
                             : at<lay_bitmap>(geo.bitmap_start).bits;
    uint64_t first = in_chunk ? lay_addr_index(block) : block;
    for (uint64_t b = first; b < first + len; b++) {
        uint8_t bit = static_cast<uint8_t>(1u << b % 8);
        bits[b / 8] = static_cast<uint8_t>(used ? bits[b / 8] | bit : bits[b / 8] & ~bit);
        if (in_chunk && !used)
            at<lay_entries>(LAY_ADDR_CHUNK(lay_addr_segment(block), 0)).ages[b] = lay_put32(0);
    }
}

/* A new metadata block: head, and a block in use of segment 0. */
uint64_t Image::take(uint32_t magic, uint64_t owner)
{
    uint64_t block = next++;
    std::memset(&at<uint8_t>(block), 0, LAY_BLOCK_SIZE);
    lay_head_init(&at<lay_head>(block), magic, geo.uuid, block, owner);
    mark(block, 1, true);
    metadata.push_back(block);
    return block;
}

lay_inode &Image::start_inode(uint64_t ino, uint32_t mode, lay_map_kind kind, uint64_t blocks)
{
    lay_inode &i = inode(ino);
    auto &ib = at<lay_inode_block>(inode_blocks[ino / LAY_INODES_PER_BLOCK]);
    ib.used = static_cast<uint8_t>(ib.used | 1u << ino % LAY_INODES_PER_BLOCK);
    i.mode = lay_put32(mode);
    i.nlink = lay_put32(S_ISDIR(mode) ? 2 : 1);
    i.generation = lay_put32(1);
    i.map_kind = lay_put16(kind);
    i.blocks = lay_put64(blocks);
    return i;
}

static lay_extent extent(uint64_t file_block, uint64_t block, uint32_t len, uint16_t flags = 0)
{
    return {lay_put64(file_block), lay_put64(block), lay_put32(len), lay_put16(flags),
            lay_put16(0)};
}

static void set_tree(lay_inode &i, uint64_t root, uint64_t nodes, uint64_t entries, unsigned height)
{
    i.map.tree.root = lay_put64(root);
    i.map.tree.blocks = lay_put64(nodes);
    i.map.tree.entries = lay_put64(entries);
    i.map_height = lay_put16(static_cast<uint16_t>(height));
}

static void set_branches(lay_node &n, uint64_t left, uint64_t key, uint64_t right)
{
    n.level = lay_put16(1);
    n.count = lay_put16(2);
    n.used = lay_put32(2 * sizeof(lay_branch));
    n.u.branches[0] = {lay_put64(0), lay_put64(left)};
    n.u.branches[1] = {lay_put64(key), lay_put64(right)};
}

static void add_extent(lay_node &n, const lay_extent &e)
{
    unsigned count = lay_get16(n.count);
    n.u.extents[count] = e;
    n.count = lay_put16(static_cast<uint16_t>(count + 1));
    n.used = lay_put32(static_cast<uint32_t>((count + 1) * sizeof(e)));
}

void add_name(lay_node &leaf, const lay_geometry &geo, const std::string &name, uint64_t ino,
              uint8_t type, unsigned number)
{
    uint64_t key = lay_name_key(geo.hash_seed, name.data(), name.size()) + number;
    uint16_t len = static_cast<uint16_t>(LAY_DIRENT_LEN(name.size()));
    uint32_t used = lay_get32(leaf.used);
    const lay_dirent *d = nullptr;
    uint32_t pos = 0;
    while ((d = lay_dirent_next(&leaf, d)) && lay_get64(d->key) < key)
        pos += lay_get16(d->len);
    std::memmove(leaf.u.bytes + pos + len, leaf.u.bytes + pos, used - pos);
    std::memset(leaf.u.bytes + pos, 0, len);
    auto *fresh = reinterpret_cast<lay_dirent *>(leaf.u.bytes + pos);
    fresh->key = lay_put64(key);
    fresh->ino = lay_put64(ino);
    fresh->len = lay_put16(len);
    fresh->type = type;
    fresh->name_len = static_cast<uint8_t>(name.size());
    std::memcpy(leaf.u.bytes + pos + offsetof(lay_dirent, name), name.data(), name.size());
    leaf.used = lay_put32(used + len);
    leaf.count = lay_put16(static_cast<uint16_t>(lay_get16(leaf.count) + 1));
}

void Image::add_names()
{
    auto &leaf = at<lay_node>(root_leaf);
    const struct {
        const char *name;
        uint64_t ino;
        uint8_t type;
    } names[] = {{"file", INO_FILE, DT_REG}, {"hard", INO_FILE, DT_REG}, {"tree", INO_TREE, DT_REG},
                 {"dir", INO_DIR, DT_DIR},   {"link", INO_LINK, DT_LNK}, {"attr", INO_ATTR, DT_REG},
                 {"gpu", INO_GPU, DT_REG}};
    for (const auto &n : names)
        add_name(leaf, geo, n.name, n.ino, n.type);
    inode(LAY_INO_ROOT).map.tree.entries = lay_put64(std::size(names));
    inode(LAY_INO_ROOT).nlink = lay_put32(3);
}

void Image::add_files()
{
    lay_inode &file = start_inode(INO_FILE, S_IFREG | 0644, LAY_MAP_INLINE, 12);
    file_data = 2560;
    file.nlink = lay_put32(2);
    file.size = lay_put64(40000);
    file.map_count = lay_put16(2);
    file.map.extents[0] = extent(0, file_data, 10);
    file.map.extents[1] = extent(20, file_data + 20, 2, LAY_EXTENT_UNWRITTEN);
    mark(file_data, 10, true);
    mark(file_data + 20, 2, true);

    lay_inode &tree = start_inode(INO_TREE, S_IFREG | 0644, LAY_MAP_TREE, 6);
    extent_root = take(LAY_MAGIC_EXTENTS, INO_TREE);
    extent_leaf = take(LAY_MAGIC_EXTENTS, INO_TREE);
    uint64_t right = take(LAY_MAGIC_EXTENTS, INO_TREE);
    set_branches(at<lay_node>(extent_root), extent_leaf, 100, right);
    add_extent(at<lay_node>(extent_leaf), extent(0, file_data + 30, 3));
    add_extent(at<lay_node>(extent_leaf), extent(10, file_data + 40, 2));
    add_extent(at<lay_node>(right), extent(100, file_data + 50, 1));
    mark(file_data + 30, 3, true);
    mark(file_data + 40, 2, true);
    mark(file_data + 50, 1, true);
    tree.size = lay_put64(101 * LAY_BLOCK_SIZE);
    set_tree(tree, extent_root, 3, 3, 2);
}

void Image::add_directories()
{
    lay_inode &dir = start_inode(INO_DIR, S_IFDIR | 0755, LAY_MAP_DIR, 0);
    dir_root = take(LAY_MAGIC_DIR, INO_DIR);
    dir_leaf = take(LAY_MAGIC_DIR, INO_DIR);
    uint64_t right = take(LAY_MAGIC_DIR, INO_DIR);
    uint64_t left_key = lay_name_key(geo.hash_seed, "sub", 3);
    uint64_t right_key = lay_name_key(geo.hash_seed, "tree2", 5);
    bool swap = right_key < left_key;
    set_branches(at<lay_node>(dir_root), dir_leaf, std::max(left_key, right_key), right);
    add_name(at<lay_node>(swap ? right : dir_leaf), geo, "sub", INO_SUB, DT_DIR);
    add_name(at<lay_node>(swap ? dir_leaf : right), geo, "tree2", INO_TREE, DT_REG);
    inode(INO_TREE).nlink = lay_put32(2);
    dir.nlink = lay_put32(3);
    dir.size = lay_put64(3 * LAY_BLOCK_SIZE);
    dir.parent = lay_put64(LAY_INO_ROOT);
    set_tree(dir, dir_root, 3, 2, 2);

    lay_inode &sub = start_inode(INO_SUB, S_IFDIR | 0700, LAY_MAP_DIR, 0);
    sub.size = lay_put64(LAY_BLOCK_SIZE);
    sub.parent = lay_put64(INO_DIR);
    set_tree(sub, take(LAY_MAGIC_DIR, INO_SUB), 1, 0, 1);
}

void add_xattr(lay_xattr_block &xb, const std::string &name, const std::string &value)
{
    uint16_t used = lay_get16(xb.used);
    auto *x = reinterpret_cast<lay_xattr *>(xb.bytes + used);
    uint16_t len = static_cast<uint16_t>(LAY_XATTR_LEN(name.size(), value.size()));
    x->len = lay_put16(len);
    x->name_len = static_cast<uint8_t>(name.size());
    x->value_len = lay_put32(static_cast<uint32_t>(value.size()));
    std::string both = name + value;
    std::memcpy(xb.bytes + used + sizeof(*x), both.data(), both.size());
    xb.used = lay_put16(static_cast<uint16_t>(used + len));
    xb.count = lay_put16(static_cast<uint16_t>(lay_get16(xb.count) + 1));
}

void Image::add_links()
{
    lay_inode &link = start_inode(INO_LINK, S_IFLNK | 0777, LAY_MAP_LINK, 0);
    link_block = take(LAY_MAGIC_SYMLINK, INO_LINK);
    link.size = lay_put64(LAY_PAYLOAD + 2);
    link.map.link.block = lay_put64(link_block);
    std::memset(link.map.link.tail, 'y', 2);
    at<lay_symlink_block>(link_block).len = lay_put32(LAY_PAYLOAD);
    std::memset(at<lay_symlink_block>(link_block).bytes, 'x', LAY_PAYLOAD);

    lay_inode &attr = start_inode(INO_ATTR, S_IFREG | 0644, LAY_MAP_INLINE, 0);
    xattr_block = take(LAY_MAGIC_XATTR, INO_ATTR);
    xattr_next = take(LAY_MAGIC_XATTR, INO_ATTR);
    attr.xattr = lay_put64(xattr_block);
    at<lay_xattr_block>(xattr_block).next = lay_put64(xattr_next);
    add_xattr(at<lay_xattr_block>(xattr_block), "user.one", "1");
    add_xattr(at<lay_xattr_block>(xattr_next), "user.two", std::string(300, 'v'));
}

void Image::add_gpu_and_orphan()
{
    gpu_data = 1536;
    lay_inode &gpu = start_inode(INO_GPU, S_IFREG | 0644, LAY_MAP_INLINE, LAY_GPU_ALIGN);
    gpu.flags = lay_put32(LAY_INODE_GPU_BOUND);
    gpu.size = lay_put64(5000);
    gpu.map_count = lay_put16(2);
    gpu.map.extents[0] = extent(0, gpu_data, 100);
    gpu.map.extents[1] = extent(100, gpu_data + 100, LAY_GPU_ALIGN - 100, LAY_EXTENT_UNWRITTEN);
    mark(gpu_data, LAY_GPU_ALIGN, true);

    lay_inode &orphan = start_inode(INO_ORPHAN, S_IFREG | 0600, LAY_MAP_INLINE, 0);
    orphan.nlink = lay_put32(0);
    orphan.next_orphan = lay_put64(LAY_NONE);
    super().orphan = lay_put64(INO_ORPHAN);
}

static uint32_t zero_bits(const uint8_t *bits, unsigned n)
{
    uint32_t count = 0;
    for (unsigned b = 0; b < n; b++)
        count += !(bits[b / 8] >> b % 8 & 1);
    return count;
}

/* Sets the counters and seals everything. */
void Image::count()
{
    auto &bm = at<lay_bitmap>(geo.bitmap_start);
    uint32_t free_blocks = zero_bits(bm.bits, LAY_GROUP_BLOCKS);
    bm.free = lay_put32(free_blocks);
    for (uint64_t s = 0; s < segments.size(); s++) {
        auto &entries = at<lay_entries>(LAY_ADDR_CHUNK(s, 0));
        entries.free = lay_put32(zero_bits(entries.used, LAY_SEGMENT_BLOCKS));
    }
    super().area.free_blocks = lay_put64(free_blocks);
    super().inodes = lay_put64(INO_ORPHAN);
    for (uint64_t block : metadata)
        seal(block);
    set_clean(false);
}

void Image::seal_label()
{
    lay_seal(&label(), 0);
    at<lay_label>(LAY_LABEL_SECOND) = label();
}

void Image::seal_commit()
{
    lay_seal(&commit(), lay_get64(commit().head.tid));
}

void Image::seal_super(uint64_t tid)
{
    lay_seal(&super(), tid);
    at<lay_super>(geo.supers[1]) = super();
    commit().super_age = lay_put32(lay_age(&super()));
    seal_commit();
}

void Image::set_clean(bool clean)
{
    super().clean_incarnation = clean ? label().incarnation : lay_incarnation{};
    super().clean_tid = clean ? commit().head.tid : lay_put64(0);
    super().clean_pos = lay_put64(clean ? commit_pos : 0);
    seal_super(lay_get64(super().head.tid));
}

void Image::fill()
{
    inode_blocks.push_back(take(LAY_MAGIC_INODES, LAY_INODES_PER_BLOCK));
    at<lay_inode_block>(inode_blocks[1]).next_free = lay_put64(LAY_NONE);
    lay_inode &inode_file = super().inode_file;
    inode_file.size = lay_put64(2 * LAY_BLOCK_SIZE);
    inode_file.map_count = lay_put16(2);
    inode_file.map.extents[1] = extent(1, inode_blocks[1], 1);
    super().free_inode_block = lay_put64(1);
    add_files();
    add_directories();
    add_links();
    add_gpu_and_orphan();
    add_names();
    count();
}

void Image::start_record(void *block, uint32_t magic, uint64_t pos)
{
    lay_log_init(block, magic, &geo, &label().incarnation, pos);
}

/* Puts a block at the next position of the log. */
void Image::put_log(void *block)
{
    std::memcpy(&at<uint8_t>(geo.log_start + log_pos), block, LAY_BLOCK_SIZE);
    log_pos = lay_log_after(&geo, log_pos);
}

void Image::log_images(const std::vector<std::vector<uint8_t>> &images, uint32_t *chain)
{
    lay_log_descriptor desc;
    std::vector<std::vector<uint8_t>> sealed = images;
    start_record(&desc, LAY_MAGIC_JDESC, log_pos);
    desc.count = lay_put32(static_cast<uint32_t>(images.size()));
    for (size_t i = 0; i < sealed.size(); i++) {
        lay_seal(sealed[i].data(), log_tid);
        desc.tags[i].block = reinterpret_cast<const lay_head *>(sealed[i].data())->block;
        desc.tags[i].age = lay_put32(lay_age(sealed[i].data()));
    }
    lay_seal(&desc, log_tid);
    *chain = lay_log_chain(*chain, &desc);
    put_log(&desc);
    for (auto &image : sealed)
        put_log(image.data());
}

void Image::log(const std::vector<std::vector<uint8_t>> &images)
{
    lay_log_commit c;
    uint64_t start = log_pos;
    uint32_t chain = 0;
    if (!images.empty())
        log_images(images, &chain);
    start_record(&c, LAY_MAGIC_JCOMMIT, log_pos);
    uint64_t before = (log_pos + geo.log_blocks - start) % geo.log_blocks;
    c.blocks = lay_put32(static_cast<uint32_t>(before + 1));
    c.crc = lay_put32(chain);
    c.tail_tid = lay_put64(2);
    c.tail_pos = lay_put64(1);
    c.super_age = commit().super_age;
    lay_seal(&c, log_tid++);
    commit_pos = log_pos;
    put_log(&c);
}
