/* SPDX-License-Identifier: BSD-2-Clause */
/* A sparse file system of 1 TiB: memory of a repair is bounded by blocks and inodes. */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>

#include "fusefs/core/ffs.h"
#include "mkfs/mkfs_core.h"
#include "tests/mkfs/mkfs_rig.h"
#include "tests/rounds.h"

namespace
{

constexpr uint64_t BYTES = UINT64_C(1) << 40;
constexpr uint64_t FILES_PER_DIR = 10000;
/* Beside tables: the program, 4 MiB of changed blocks, one directory that is built anew. */
constexpr uint64_t FIXED_BYTES = UINT64_C(48) << 20;

/* Runs body in a process of its own: the memory of this one is inherited by its children. */
void apart(const std::function<void()> &body)
{
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(::testing::Test::HasFailure());
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
}

/* fsck.gpunvme -y; its exit status, output in a file, and largest memory in bytes. */
int repair(const std::string &image, const std::string &out, uint64_t *memory)
{
    pid_t pid = fork();
    if (pid == 0) {
        dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
        execl(FSCK, FSCK, "-y", "-v", image.c_str(), nullptr);
        _exit(127);
    }
    int status = 0;
    rusage usage;
    EXPECT_EQ(wait4(pid, &status, 0, &usage), pid);
    *memory = static_cast<uint64_t>(usage.ru_maxrss) << 10;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class RepairBig : public ToolTest
{
  protected:
    void SetUp() override
    {
        std::string image = path("img");
        mkfs_params params{};
        mkfs_plan plan;
        write_file(image, "");
        ASSERT_EQ(truncate(image.c_str(), static_cast<off_t>(BYTES)), 0);
        ASSERT_EQ(bd_file_open(image.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
        ASSERT_EQ(mkfs_format(dev, &params, &plan), 0);
        geo = plan.geo;
    }
    void TearDown() override
    {
        if (dev)
            bd_close(dev);
    }
    void make_files(uint64_t files)
    {
        static const ffs_cred cred = {};
        ffs_mount_opts opts = {};
        struct ffs *fs;
        struct reason why = {};
        ASSERT_EQ(ffs_mount(dev, &opts, &fs, &why), 0) << why.text;
        ffs_inode *root, *dir = nullptr, *file;
        ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, &root), 0);
        for (uint64_t i = 0; i < files; i++) {
            if (i % FILES_PER_DIR == 0) {
                if (dir)
                    ffs_iput(dir, 1);
                ASSERT_EQ(ffs_mkdir(root, ("d" + std::to_string(i)).c_str(), 0755, &cred, &dir), 0);
            }
            ASSERT_EQ(ffs_mknod(dir, std::to_string(i).c_str(), S_IFREG | 0644, 0, &cred, &file),
                      0);
            if (i % 64 == 0) {
                ASSERT_EQ(ffs_write(file, 0, "data", 4), 4);
            }
            ffs_iput(file, 1);
        }
        ffs_iput(dir, 1);
        ffs_iput(root, 1);
        ASSERT_EQ(ffs_unmount(fs), 0);
    }
    void read(uint64_t block)
    {
        ASSERT_EQ(bd_read(dev, block << LAY_BLOCK_SHIFT, buf, LAY_BLOCK_SIZE), 0);
    }
    void write(uint64_t block)
    {
        ASSERT_EQ(bd_write(dev, block << LAY_BLOCK_SHIFT, buf, LAY_BLOCK_SIZE, 0), 0);
    }
    /* The bitmaps that were written, and the first node of a directory after the root's. */
    void spoil()
    {
        for (uint64_t group = 0; group < lay_groups(&geo); group++) {
            read(geo.bitmap_start + group);
            if (lay_get32(reinterpret_cast<lay_head *>(buf)->magic) != LAY_MAGIC_BITMAP)
                continue;
            buf[100] ^= 3;
            write(geo.bitmap_start + group);
        }
        uint64_t block = geo.log_start + geo.log_blocks;
        for (bool found = false; !found; block++) {
            read(block);
            auto *head = reinterpret_cast<lay_head *>(buf);
            found =
                lay_get32(head->magic) == LAY_MAGIC_DIR && lay_get64(head->owner) != LAY_INO_ROOT;
            if (found)
                head->crc = lay_put32(1);
            write(block);
        }
    }

    bd_dev *dev = nullptr;
    lay_geometry geo{};
    alignas(8) uint8_t buf[LAY_BLOCK_SIZE];
};

TEST_F(RepairBig, NeedsMemoryInProportionToBlocksAndInodes)
{
    const char *text = getenv("REPAIR_FILES");
    uint64_t files =
        text ? strtoull(text, nullptr, 10) : static_cast<uint64_t>(test_rounds(20000, 200000));
    ASSERT_NO_FATAL_FAILURE(apart([&] { make_files(files); }));
    ASSERT_NO_FATAL_FAILURE(spoil());
    bd_close(dev);
    dev = nullptr;
    auto start = std::chrono::steady_clock::now();
    uint64_t most = 0;
    int status = repair(path("img"), path("out"), &most);
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::string out = read_file(path("out"));
    EXPECT_EQ(status, 1) << out;
    EXPECT_NE(out.find("F501 "), std::string::npos) << out;
    EXPECT_NE(out.find("F701 "), std::string::npos) << out;
    EXPECT_EQ(out.find("F711 "), std::string::npos) << "a file has lost its name: " << out;
    [[maybe_unused]] const uint64_t tables = (geo.blocks >> 2) + files * 32;
    printf("%llu files: %.1f s, %llu MiB\n", static_cast<unsigned long long>(files), took.count(),
           static_cast<unsigned long long>(most >> 20));
#ifndef __SANITIZE_ADDRESS__
    EXPECT_LT(most, tables + FIXED_BYTES);
#endif
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
}

} // namespace
