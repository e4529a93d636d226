/* SPDX-License-Identifier: BSD-2-Clause */
/* fsck.gpunvme finds each kind of problem, and nothing in sound images. */
#include <chrono>
#include <cstring>
#include <dirent.h>
#include <random>
#include <set>
#include <thread>

#include "blockdev/bdev.h"
#include "tests/mkfs/mkfs_rig.h"
#include "tests/mkfs/problem_cases.h"
#include "tests/rounds.h"

namespace
{

class Fsck : public ToolTest
{
  protected:
    Result fsck() { return run({FSCK, "-n", path("img")}); }
    Image img{path("img")};
};

TEST_F(Fsck, FindsNothingInAFreshFileSystem)
{
    Result r = expect_exit(fsck(), 0);
    EXPECT_EQ(r.out, path("img") + ": clean\n");
}

TEST_F(Fsck, ChangesNothing)
{
    img.fill();
    img.inode(INO_FILE).nlink = lay_put32(7);
    img.seal_inode(INO_FILE);
    std::string before = read_file(path("img"));
    EXPECT_EQ(fsck().status, 4);
    EXPECT_EQ(read_file(path("img")), before);
}

/* --- The table of problems, each of which repair_test makes ---------------------------------- */

TEST(Problems, AllHaveATestCase)
{
    /*
     * No image has such places. fs_copies_test and fs_bad_log_test make
     * them.
     */
    std::set<std::string> covered = {"F203", "F1008"};
    for (const ProblemCase &c : problem_cases())
        covered.insert(c.id);
#define PROBLEM(name, id, text, safety, remedy) EXPECT_EQ(covered.count(id), 1u) << id;
#include "mkfs/fsck/problems.def"
#undef PROBLEM
}

TEST(Problems, HaveUniqueIds)
{
    std::set<std::string> seen;
#define PROBLEM(name, id, text, safety, remedy) EXPECT_TRUE(seen.insert(id).second) << id;
#include "mkfs/fsck/problems.def"
#undef PROBLEM
}

/* --- Journal --------------------------------------------------------------------------------- */

TEST_F(Fsck, SeesTheFileSystemAsItIsAfterRecovery)
{
    img.fill();
    img.log({img.copy(img.root_leaf), img.copy(img.geo.supers[0])});
    std::memset(&img.at<uint8_t>(img.root_leaf), 0xee, LAY_BLOCK_SIZE);
    expect_exit(fsck(), 0, "Journal: 1 transactions replayed in memory");
}

TEST_F(Fsck, UsesTheNewestImageOfABlock)
{
    img.fill();
    std::vector<uint8_t> good = img.copy(img.root_leaf);
    img.at<lay_node>(img.root_leaf).head.owner = lay_put64(9);
    img.seal(img.root_leaf);
    img.log({img.copy(img.root_leaf)});
    EXPECT_EQ(fsck().status, 4);
    img.log({good});
    EXPECT_EQ(fsck().status, 0);
}

/* A chunk that was mapped before a crash: its blocks are in the log alone. */
TEST_F(Fsck, BelievesAMapWhoseBlocksAreInTheLog)
{
    img.fill();
    std::vector<uint8_t> entries = img.copy(LAY_ADDR_CHUNK(1, 0));
    img.log({img.copy(LAY_ADDR(LAY_KIND_MAP, 0)), entries});
    std::memset(&img.at<uint8_t>(LAY_ADDR_CHUNK(1, 0)), 0xee, LAY_BLOCK_SIZE);
    expect_exit(fsck(), 0);
}

TEST_F(Fsck, RefusesASuperblockInTheJournalWithAnotherGeometry)
{
    img.fill();
    std::vector<uint8_t> sb = img.copy(img.geo.supers[0]);
    auto *moved = reinterpret_cast<lay_super *>(sb.data());
    moved->area.blocks = lay_put64(IMAGE_BYTES >> LAY_BLOCK_SHIFT << 1);
    img.log({sb});
    expect_exit(fsck(), 4, "F1002");
}

/* A terminal takes the bytes 0x80 to 0x9f for control characters, too. */
TEST_F(Fsck, PrintsNamesWithoutControlCharacters)
{
    img.fill();
    const std::string name = "a\x9b"
                             "31m\x1b[2J\x7f\\";
    add_name(img.at<lay_node>(img.root_leaf), img.geo, name, 4000, DT_REG);
    img.seal(img.root_leaf);
    expect_exit(fsck(), 4, "name 'a\\x9b31m\\x1b[2J\\x7f\\x5c'");
}

TEST_F(Fsck, PrintsTheLongestName)
{
    img.fill();
    const std::string name(LAY_NAME_MAX, '\xff');
    add_name(img.at<lay_node>(img.root_leaf), img.geo, name, 4000, DT_REG);
    img.seal(img.root_leaf);
    EXPECT_EQ(fsck().status, 4);
}

/* --- Noise ----------------------------------------------------------------------------------- */

TEST_F(Fsck, FindsAChainOfAttributesThatFormsALoop)
{
    img.fill();
    img.at<lay_xattr_block>(img.xattr_next).next = lay_put64(img.xattr_block);
    img.seal(img.xattr_next);
    expect_exit(fsck(), 4, "F304 inode 7");
}

TEST_F(Fsck, SurvivesValidBlocksFullOfNonsense)
{
    std::mt19937 rng(11);
    img.fill();
    std::string sound = read_file(path("img"));
    for (int round = 0; round < test_rounds(50, 1500); round++) {
        std::set<uint64_t> changed;
        for (unsigned n = 1 + rng() % 3; n > 0; n--) {
            uint64_t block = img.metadata[rng() % img.metadata.size()];
            changed.insert(block);
            uint8_t *bytes = &img.at<uint8_t>(block);
            unsigned reach = rng() % 2 ? 200 : LAY_BLOCK_SIZE - 48;
            for (unsigned k = 1 + rng() % 6; k > 0; k--)
                bytes[48 + rng() % reach] = rng() % 2 ? static_cast<uint8_t>(rng()) : 0;
            img.seal(block);
        }
        int status = fsck().status;
        ASSERT_TRUE(status == 0 || status == 4 || status == 8) << "round " << round;
        ASSERT_NE(run({DUMP, "-s", "-d1", "-e0", "-i3", "-e3", "-j", path("img")}).status, -1);
        for (uint64_t block : changed)
            std::memcpy(&img.at<uint8_t>(block), &sound[block * LAY_BLOCK_SIZE], LAY_BLOCK_SIZE);
    }
}

/* --- What cannot be checked ------------------------------------------------------------------ */

class NoFsck : public ToolTest
{
  protected:
    void expect(int status, const std::string &line)
    {
        Result r = expect_exit(run({FSCK, "-n", path("img")}), status);
        EXPECT_EQ(r.err, "fsck.gpunvme: " + path("img") + ": " + line + "\n");
    }
};

TEST_F(NoFsck, RunsOnAnEmptyFile)
{
    write_file(path("img"), "");
    expect(8, "holds no gpunvmefs file system, check the name of the device");
}

TEST_F(NoFsck, RunsOnAnotherFileSystem)
{
    write_file(path("img"), std::string(1 << 20, 'x'));
    expect(8, "holds no gpunvmefs file system, check the name of the device; "
              "'fsck.gpunvme --reclaim' seeks one whose block 0 was overwritten");
}

/* The file was opened as descriptor 2, and the message was written to its beginning. */
TEST_F(NoFsck, WritesNoMessageIntoTheImage)
{
    const std::string theirs(1 << 20, 'x');
    write_file(path("img"), theirs);
    run({"/bin/sh", "-c", "exec \"$@\" 2>&-", "sh", FSCK, "-y", path("img")});
    EXPECT_TRUE(read_file(path("img")) == theirs);
}

TEST_F(NoFsck, RunsOnATruncatedImage)
{
    Image img(path("img"));
    std::string whole = read_file(path("img"));
    write_file(path("img"), whole.substr(0, whole.size() / 4));
    expect(4, "the device is smaller than the file system");
}

TEST_F(NoFsck, RunsWithAnUnknownIncompatFeature)
{
    Image img(path("img"));
    img.label().incompat = lay_put64(lay_get64(img.label().incompat) | 0x20);
    img.seal_label();
    expect(8, "has unknown incompatible features 0x20, use a newer version");
}

TEST_F(NoFsck, RunsOnAMissingFile)
{
    expect(8, "cannot open: No such file or directory");
}

TEST_F(NoFsck, RunsWhileTheImageIsInUse)
{
    Image img(path("img"));
    bd_dev *dev;
    ASSERT_EQ(bd_file_open(path("img").c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    expect(8, "cannot open: in use (mounted, or held by another program), unmount it first");
    bd_close(dev);
}

/* As a daemon does after umount(8) has returned. */
TEST_F(NoFsck, RunsUntilTheImageIsReleased)
{
    Image img(path("img"));
    bd_dev *dev;
    ASSERT_EQ(bd_file_open(path("img").c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    std::thread daemon([dev] {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        bd_close(dev);
    });
    Result r = run({FSCK, "-n", path("img")});
    daemon.join();
    EXPECT_EQ(r.status, 0) << r.err;
}

TEST(FsckOptions, ContradictionsAreWrongUsage)
{
    EXPECT_EQ(run({FSCK, "-n"}).status, 16);
    EXPECT_EQ(run({FSCK, "-Q", "img"}).status, 16);
    Result two = run({FSCK, "-n", "-y", "img"});
    EXPECT_EQ(two.status, 16);
    EXPECT_EQ(two.err,
              "fsck.gpunvme: options: -n, -p and -y exclude each other, give one of them\n");
    Result none = run({FSCK, "img"});
    EXPECT_EQ(none.status, 16);
    EXPECT_EQ(none.err,
              "fsck.gpunvme: options: there is no terminal to ask on, give -n, -p or -y\n");
}

/* As at boot: fsck(8) looks for the program of the type that fstab(5) names. */
TEST_F(Fsck, IsFoundByFsckOfTheSystem)
{
    const std::string fstab = path("fstab");
    const std::vector<std::string> env = {"FSTAB_FILE=" + fstab,
                                          std::string("PATH=" FSCK_ALIAS_DIR ":") + getenv("PATH")};
    if (run({"/sbin/fsck", "--version"}, env).out.find("util-linux") == std::string::npos)
        GTEST_SKIP() << "no fsck of util-linux";
    write_file(fstab, path("img") + " /mnt fuse.gpunvmefs ro 0 2\n");
    img.super().area.free_blocks = lay_put64(5);
    img.set_clean(false);
    expect_exit(run({"/sbin/fsck", "-A", "-p", "-T"}, env), 1, "F404 ");
    EXPECT_EQ(run({"/sbin/fsck", "-A", "-p", "-T"}, env).status, 0);
    EXPECT_EQ(fsck().status, 0);
}

TEST(FsckOptions, HelpAndVersionGoToStdout)
{
    EXPECT_EQ(run({FSCK, "--help"}).out.rfind("usage: fsck.gpunvme", 0), 0u);
    EXPECT_EQ(run({FSCK, "-V"}).out.rfind("fsck.gpunvme (gpunvmefs)", 0), 0u);
}

} // namespace
