/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/fusefs/core/fs_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "layout/layout.h"
#include "mkfs/mkfs_core.h"
#include "tests/fusefs/core/space_probe.h"
#include "tests/keep_heap.h"

// --- MemDevice ----------------------------------------------------------------------------------

// The memory of the last device that ended, for one of the same size: each page of a new memfd
// costs a page fault.
static Memory spare;

static Memory new_memory(uint64_t bytes)
{
    if (spare.bytes == bytes)
        return std::exchange(spare, {});
    int fd = memfd_create("fs-test", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0)
        abort();
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        abort();
    return {static_cast<uint8_t *>(at), bytes, fd};
}

static void free_memory(const Memory &memory)
{
    if (!memory.at)
        return;
    munmap(memory.at, memory.bytes);
    close(memory.fd);
}

static void fill_with_garbage(const Memory &memory)
{
    static const std::string garbage(4096, FS_GARBAGE);
    for (uint64_t at = 0; at < memory.bytes; at += garbage.size()) {
        if (memcmp(memory.at + at, garbage.data(), garbage.size()) != 0)
            memcpy(memory.at + at, garbage.data(), garbage.size());
    }
}

MemDevice::MemDevice(uint64_t bytes, uint32_t lba_size)
    : TestDevice(bytes, lba_size), memory_(new_memory(bytes))
{
    fill_with_garbage(memory_);
    keep_heap();
    dev()->info.discards = true;
}

MemDevice::~MemDevice()
{
    free_memory(std::exchange(spare, memory_));
}

std::string MemDevice::path() const
{
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(memory_.fd);
}

static bool covers(const bd_io *io, uint64_t block)
{
    return block * 4096 >= io->offset && block * 4096 < io->offset + io->len;
}

int MemDevice::transfer(bd_io *io)
{
    if (how_ == FAIL_LOSE) {
        if (io->op == BD_WRITE && countdown_-- == 0)
            return 0;
    } else if (how_ != FAIL_NONE) {
        long left = countdown_--;
        if (left == 0 || (left < 0 && how_ == FAIL_FROM))
            return error_;
    }
    if (io->op == BD_WRITE && before_write)
        before_write(*io);
    bool bad = covers(io, unreadable_);
    if (covers(io, broken_[0]) || covers(io, broken_[1]))
        return -EIO;
    switch (io->op) {
    case BD_READ:
        if (bad)
            return -EIO;
        memcpy(io->buf, memory_.at + io->offset, io->len);
        if (covers(io, misread_))
            static_cast<uint8_t *>(io->buf)[misread_.exchange(UINT64_MAX) * 4096 - io->offset] ^=
                flips_;
        break;
    case BD_WRITE:
        if (bad)
            unreadable_ = UINT64_MAX;
        changes_ += memcmp(memory_.at + io->offset, io->buf, io->len) != 0;
        memcpy(memory_.at + io->offset, io->buf, io->len);
        break;
    case BD_WRITE_ZEROES:
        memset(memory_.at + io->offset, 0, io->len);
        break;
    case BD_DISCARD:
        // Undefined afterwards: the worst that could be.
        memset(memory_.at + io->offset, FS_GARBAGE, io->len);
        break;
    case BD_FLUSH:
        break;
    }
    return 0;
}

// --- FsTest -------------------------------------------------------------------------------------

void FsTest::format()
{
    mkfs_params params = {};
    struct mkfs_plan plan = {};
    memcpy(params.uuid, "0123456789abcdef", 16);
    params.uuid[6] = 0x40;
    params.uuid[8] = 0x80;
    params.time_sec = 1700000000;
    params.bytes = fs_bytes;
    params.data_csum = data_csum;
    params.meta_copies = meta_copies;
    ASSERT_EQ(mkfs_format(device.dev(), &params, &plan), 0);
}

int FsTest::mount()
{
    struct reason why = {};
    int err = ffs_mount(device.dev(), &opts, &fs, &why);
    if (err) {
        fs = nullptr;
        return err;
    }
    err = ffs_iget(fs, 1, root.out());
    if (err) {
        ffs_unmount(fs);
        fs = nullptr;
    }
    return err;
}

void FsTest::SetUp()
{
    opts.no_thread = true;
    format();
    ASSERT_EQ(mount(), 0);
}

int FsTest::end_mount()
{
    root.reset();
    return fs ? ffs_unmount(std::exchange(fs, nullptr)) : 0;
}

void FsTest::unmount()
{
    EXPECT_EQ(end_mount(), 0);
}

void FsTest::crash()
{
    const Image crashed = device.image();
    unmount();
    device.put(crashed);
}

void FsTest::remount()
{
    unmount();
    ASSERT_EQ(mount(), 0);
}

void FsTest::remount(Inode &inode, const std::string &name)
{
    inode.reset();
    remount();
    inode = lookup(name);
}

void FsTest::TearDown()
{
    device.fail(MemDevice::FAIL_NONE, 0);
    int err = end_mount();
    if (check_at_end) {
        EXPECT_EQ(err, 0);
        EXPECT_EQ(fsck(), "");
    }
}

std::string FsTest::fsck(const std::string &how)
{
    std::string command = std::string(FSCK_PROGRAM) + " " + how + " " + device.path() + " 2>&1";
    FILE *f = popen(command.c_str(), "r");
    std::string out;
    char line[512];
    while (f && fgets(line, sizeof(line), f))
        out += line;
    int status = f ? pclose(f) : -1;
    return status == 0 ? "" : out + "exit " + std::to_string(WEXITSTATUS(status));
}

Inode FsTest::create(ffs_inode *dir, const std::string &name, uint32_t mode)
{
    Inode i;
    EXPECT_EQ(ffs_mknod(dir, name.c_str(), mode, 0, &cred, i.out()), 0) << name;
    return i;
}

Inode FsTest::create_with(const std::string &name, const std::string &data)
{
    Inode i = create(name);
    EXPECT_EQ(write(i, 0, data), static_cast<ssize_t>(data.size())) << name;
    return i;
}

Inode FsTest::mkdir(ffs_inode *dir, const std::string &name, uint32_t mode)
{
    Inode i;
    EXPECT_EQ(ffs_mkdir(dir, name.c_str(), mode, &cred, i.out()), 0) << name;
    return i;
}

Inode FsTest::lookup(ffs_inode *dir, const std::string &name)
{
    Inode i;
    EXPECT_EQ(ffs_lookup(dir, name.c_str(), i.out()), 0) << name;
    return i;
}

int FsTest::lookup_error(ffs_inode *dir, const std::string &name)
{
    Inode i;
    return ffs_lookup(dir, name.c_str(), i.out());
}

ffs_attr FsTest::attr(ffs_inode *inode)
{
    ffs_attr a;
    ffs_getattr(inode, &a);
    return a;
}

int FsTest::truncate(ffs_inode *inode, uint64_t size)
{
    ffs_attr a = {};
    a.size = size;
    return ffs_setattr(inode, &a, FFS_SET_SIZE, nullptr);
}

std::string FsTest::read(ffs_inode *inode, uint64_t offset, size_t len)
{
    std::string data(len, '?');
    ssize_t got = ffs_read(inode, offset, data.data(), len);
    EXPECT_GE(got, 0);
    data.resize(got > 0 ? static_cast<size_t>(got) : 0);
    ffs_note_access(inode);
    return data;
}

std::string FsTest::read_all(ffs_inode *inode)
{
    return read(inode, 0, attr(inode).size + 1);
}

ssize_t FsTest::write(ffs_inode *inode, uint64_t offset, const std::string &data)
{
    return ffs_write(inode, offset, data.data(), data.size());
}

static int collect(void *arg, const char *name, size_t len, uint64_t, uint8_t, uint64_t)
{
    static_cast<std::vector<std::string> *>(arg)->emplace_back(name, len);
    return 0;
}

std::vector<std::string> FsTest::names(ffs_inode *dir)
{
    std::vector<std::string> all;
    EXPECT_EQ(ffs_readdir(dir, 0, collect, &all), 0);
    ffs_note_access(dir);
    return all;
}

uint64_t FsTest::free_blocks()
{
    uint64_t data = free_data();
    return data + space_meta_free(fs) + space_meta_blocks(fs) / LAY_SEGMENT_BLOCKS;
}

uint64_t FsTest::free_data()
{
    EXPECT_EQ(ffs_sync(fs), 0);
    struct ffs_statfs s;
    ffs_statfs(fs, &s);
    return s.free_blocks;
}

std::string pattern(uint64_t seed, size_t len)
{
    std::string s(len, 0);
    char *to = s.data();
    for (size_t i = 0; i < len; i += sizeof(uint64_t)) {
        uint64_t x = (seed + i / 8 + 1) * 0x9e3779b97f4a7c15ull;
        memcpy(to + i, &x, std::min(len - i, sizeof(x)));
    }
    return s;
}
