/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs the tools on image files, and makes images that hold one of everything. */
#ifndef TESTS_MKFS_MKFS_RIG_H
#define TESTS_MKFS_MKFS_RIG_H

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "layout/layout.h"

struct Result {
    int status; /* exit status, or -1 after a signal */
    std::string out, err;
};

/* Runs a program; the environment is that of the test, without SOURCE_DATE_EPOCH, plus `env`. */
Result run(const std::vector<std::string> &args, const std::vector<std::string> &env = {});
/* Expects an exit status, and texts in the output and the messages. Returns r. */
Result expect_exit(const Result &r, int status, const std::string &out = "",
                   const std::string &err = "");

/* A directory of the test's own, removed at its end. */
class ToolTest : public ::testing::Test
{
  protected:
    ToolTest();
    ~ToolTest() override;

    std::string path(const std::string &name) const { return dir + "/" + name; }
    std::string dir;
};

std::string read_file(const std::string &path);
/*
 * Replaces `bytes` with the contents of the file. Cases that share a string have no page fault for
 * each page of an image.
 */
void read_file(const std::string &path, std::string &bytes);
void write_file(const std::string &path, const std::string &bytes);

/*
 * An image file, mapped. Blocks are changed in place; seal() makes one sound again. Freshly made it
 * is what mkfs_format() leaves.
 */
class Image
{
  public:
    explicit Image(const std::string &file, uint8_t uuid = 0x5a);
    ~Image();
    Image(const Image &) = delete;
    Image &operator=(const Image &) = delete;

    /* The block of the device, or of the metadata that has this logical address. */
    template <typename T> T &at(uint64_t block)
    {
        return *reinterpret_cast<T *>(base + (place(block) << LAY_BLOCK_SHIFT));
    }
    /* The block of the device, which may be given by a logical address. */
    uint64_t place(uint64_t block) const;
    /* The label in block 0; seal_label() makes the second copy equal. */
    lay_label &label() { return at<lay_label>(0); }
    void seal_label();
    /* The first superblock. seal_super() copies it, and the last commit names it then. */
    lay_super &super() { return at<lay_super>(geo.supers[0]); }
    void seal_super(uint64_t tid = 0);
    /* The last commit of the log. */
    lay_log_commit &commit() { return at<lay_log_commit>(geo.log_start + commit_pos); }
    void seal_commit();
    lay_inode &inode(uint64_t ino)
    {
        auto &ib = at<lay_inode_block>(inode_blocks[ino / LAY_INODES_PER_BLOCK]);
        return ib.inodes[ino % LAY_INODES_PER_BLOCK];
    }
    /* Also enters the age in the blocks above, up to the first one that is damaged. */
    void seal(uint64_t block, uint64_t tid = 0);
    void seal_inode(uint64_t ino) { seal(inode_blocks[ino / LAY_INODES_PER_BLOCK]); }
    /* Marks blocks of the device in the bitmap, or blocks in a chunk in their entries. */
    void mark(uint64_t block, uint64_t len, bool used);
    /* Adds one of everything: inodes 2 to 9; the file system is as if it had crashed, sound. */
    void fill();
    /* Takes the note of a clean unmount away, and gives it, respectively. */
    void set_clean(bool clean);
    /*
     * Appends a transaction to the log, whose tail is the first one that was appended; the images
     * are sealed for it.
     */
    void log(const std::vector<std::vector<uint8_t>> &images);
    std::vector<uint8_t> copy(uint64_t block);

    lay_geometry geo;
    std::vector<uint64_t> segments;     /* the first blocks of the mapped ones */
    std::vector<uint64_t> inode_blocks; /* addresses */
    /* Addresses of the map, the bitmap, and of every block in use of the chunks. */
    std::vector<uint64_t> metadata;
    /* The last two are blocks of data. */
    uint64_t root_leaf, extent_root, extent_leaf, dir_root, dir_leaf, link_block, xattr_block,
        xattr_next, gpu_data, file_data;

  private:
    uint64_t take(uint32_t magic, uint64_t owner);
    bool is_metadata(uint64_t addr) const;
    void enter_age(uint64_t addr);
    lay_inode &start_inode(uint64_t ino, uint32_t mode, lay_map_kind kind, uint64_t blocks);
    void add_names();
    void add_files();
    void add_directories();
    void add_links();
    void add_gpu_and_orphan();
    void count();
    void put_log(void *block);
    void start_record(void *block, uint32_t magic, uint64_t pos);
    void log_images(const std::vector<std::vector<uint8_t>> &images, uint32_t *chain);

    uint8_t *base;
    size_t bytes;
    uint64_t next = 0; /* address of a free block */
    uint64_t log_pos = 1, log_tid = 2, commit_pos = 0;
};

#define IMAGE_BYTES (16u << 20)
/* What fill() makes. */
#define INO_FILE   2u /* two extents, two names */
#define INO_TREE   3u /* an extent tree of two levels */
#define INO_DIR    4u /* a directory of two levels */
#define INO_SUB    5u /* an empty directory in it */
#define INO_LINK   6u /* a long symbolic link */
#define INO_ATTR   7u /* attributes in two blocks */
#define INO_GPU    8u /* GPU-bound, one 2 MiB unit */
#define INO_ORPHAN 9u

void add_name(lay_node &leaf, const lay_geometry &geo, const std::string &name, uint64_t ino,
              uint8_t type, unsigned number = 0);
void add_xattr(lay_xattr_block &xb, const std::string &name, const std::string &value);

#endif
