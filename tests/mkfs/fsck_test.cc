/* SPDX-License-Identifier: BSD-2-Clause */
/* fsck.gpunvme finds each kind of problem, and nothing in sound images. */
#include <cstring>
#include <dirent.h>
#include <functional>
#include <random>
#include <set>

#include "blockdev/bdev.h"
#include "tests/mkfs/mkfs_rig.h"
#include "tests/rounds.h"

namespace
{

class Fsck : public ToolTest
{
  protected:
    Result fsck()
    {
        return run({FSCK, "-n", path("img")});
    }
    Image img{path("img")};
};

TEST_F(Fsck, FindsNothingInAFreshFileSystem)
{
    Result r = fsck();
    EXPECT_EQ(r.status, 0) << r.out;
    EXPECT_EQ(r.out, path("img") + ": clean\n");
}

TEST_F(Fsck, FindsNothingInAFileSystemWithOneOfEverything)
{
    img.fill();
    Result r = fsck();
    EXPECT_EQ(r.status, 0) << r.out << r.err;
}

TEST_F(Fsck, ChangesNothing)
{
    img.fill();
    img.super().head.crc = lay_put32(1);
    std::string before = read_file(path("img"));
    EXPECT_EQ(fsck().status, 4);
    EXPECT_EQ(read_file(path("img")), before);
}

TEST_F(Fsck, FindsAFlippedBitInEveryMetadataBlock)
{
    std::mt19937 rng(7);
    img.fill();
    for (uint64_t block : img.metadata) {
        for (int i = 0; i < 4; i++) {
            unsigned bit = rng() % (8 * LAY_BLOCK_SIZE);
            uint8_t &byte = (&img.at<uint8_t>(block))[bit / 8];
            byte = static_cast<uint8_t>(byte ^ 1u << bit % 8);
            EXPECT_EQ(fsck().status, 4) << "block " << block << " bit " << bit;
            byte = static_cast<uint8_t>(byte ^ 1u << bit % 8);
        }
    }
    EXPECT_EQ(fsck().status, 0);
}

/* --- One problem each ------------------------------------------------------------------------ */

struct Case {
    const char *id;
    const char *name;
    std::function<void(Image &)> spoil;
};

const Case cases[] = {
    {"F301", "extent_node", [](Image &i) { i.at<uint8_t>(i.extent_leaf) ^= 1; }},
    {"F302", "inode_block", [](Image &i) { i.at<uint8_t>(i.inode_blocks[1]) ^= 1; }},
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
         i.seal(0);
     }},
    {"F304", "shared_block",
     [](Image &i) {
         i.inode(INO_FILE).map.extents[0].block = lay_put64(i.file_data + 30);
         i.seal_inode(INO_FILE);
     }},
    {"F305", "inode_blocks",
     [](Image &i) {
         i.inode(INO_TREE).blocks = lay_put64(10);
         i.seal_inode(INO_TREE);
     }},
    {"F306", "tree_counts",
     [](Image &i) {
         i.inode(INO_TREE).map.tree.entries = lay_put64(4);
         i.seal_inode(INO_TREE);
     }},
    {"F307", "gpu_misplaced",
     [](Image &i) {
         i.inode(INO_GPU).map.extents[1].block = lay_put64(i.gpu_data + 101);
         i.seal_inode(INO_GPU);
     }},
    {"F307", "gpu_short",
     [](Image &i) {
         i.inode(INO_GPU).map.extents[1].len = lay_put32(LAY_GPU_ALIGN - 101);
         i.inode(INO_GPU).blocks = lay_put64(LAY_GPU_ALIGN - 1);
         i.seal_inode(INO_GPU);
     }},
    {"F308", "free_list_of_full_block",
     [](Image &i) {
         i.super().free_inode_block = lay_put64(0);
         i.seal(0);
     }},
    {"F309", "free_list_lacks_block",
     [](Image &i) {
         i.super().free_inode_block = lay_put64(LAY_NONE);
         i.seal(0);
     }},
    {"F310", "orphan_list_names_file",
     [](Image &i) {
         i.super().orphan = lay_put64(INO_FILE);
         i.seal(0);
     }},
    {"F311", "orphan_not_listed",
     [](Image &i) {
         i.super().orphan = lay_put64(LAY_NONE);
         i.seal(0);
     }},
    {"F312", "orphan_on_clean",
     [](Image &i) {
         i.super().state = lay_put32(LAY_STATE_CLEAN);
         i.seal(0);
     }},
    {"F401", "superblock", [](Image &i) { i.super().state = lay_put32(1); }},
    {"F401", "superblock_magic", [](Image &i) { i.super().head.magic = lay_put32(0); }},
    {"F402", "superblock_copy", [](Image &i) { i.at<uint8_t>(i.geo.copies[0]) ^= 1; }},
    {"F403", "superblock_differs",
     [](Image &i) {
         i.super().created.nsec = lay_put32(7);
         i.seal(0);
     }},
    {"F404", "free_blocks",
     [](Image &i) {
         i.super().free_blocks = lay_put64(5);
         i.seal(0);
     }},
    {"F405", "inodes",
     [](Image &i) {
         i.super().inodes = lay_put64(5);
         i.seal(0);
     }},
    {"F406", "state_error",
     [](Image &i) {
         i.super().state = lay_put32(LAY_STATE_ERROR);
         i.seal(0);
     }},
    {"F407", "superblock_older_than_journal",
     [](Image &i) {
         auto &journal = i.at<lay_journal>(i.geo.journal_start);
         journal.tail_tid = lay_put64(9);
         journal.super_tid = lay_put64(8);
         i.seal(i.geo.journal_start);
     }},
    {"F407", "copy_older_than_journal",
     [](Image &i) {
         auto &journal = i.at<lay_journal>(i.geo.journal_start);
         journal.tail_tid = lay_put64(9);
         journal.super_tid = lay_put64(8);
         i.seal(i.geo.journal_start);
         lay_seal(&i.super(), 8);
         lay_seal(&i.at<lay_super>(i.geo.copies[0]), 8);
     }},
    {"F407", "superblock_older_than_copy",
     [](Image &i) {
         auto &journal = i.at<lay_journal>(i.geo.journal_start);
         journal.tail_tid = lay_put64(9);
         i.seal(i.geo.journal_start);
         lay_seal(&i.at<lay_super>(i.geo.copies[1]), 8);
     }},
    {"F1003", "journal_older_than_superblock", [](Image &i) { lay_seal(&i.super(), 1); }},
    {"F504", "bitmap_older_than_superblock",
     [](Image &i) {
         i.super().bitmap_tids[0] = lay_put64(1);
         i.seal(0);
     }},
    {"F501", "bitmap", [](Image &i) { i.at<uint8_t>(i.geo.bitmap_start) ^= 1; }},
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
    {"F701", "directory_node", [](Image &i) { i.at<uint8_t>(i.dir_leaf) ^= 1; }},
    {"F702", "directory_counts",
     [](Image &i) {
         i.inode(INO_DIR).map.tree.entries = lay_put64(1);
         i.seal_inode(INO_DIR);
     }},
    {"F703", "dangling_name",
     [](Image &i) {
         add_name(i.at<lay_node>(i.root_leaf), i.geo, "gone", 14, DT_REG);
         i.seal(i.root_leaf);
     }},
    {"F703", "name_past_inode_file",
     [](Image &i) {
         add_name(i.at<lay_node>(i.root_leaf), i.geo, "gone", 4000, DT_REG);
         i.seal(i.root_leaf);
     }},
    {"F704", "name_type",
     [](Image &i) {
         add_name(i.at<lay_node>(i.root_leaf), i.geo, "fifo", INO_FILE, DT_FIFO);
         i.seal(i.root_leaf);
     }},
    {"F705", "name_twice",
     [](Image &i) {
         add_name(i.at<lay_node>(i.root_leaf), i.geo, "file", INO_FILE, DT_REG, 1);
         i.seal(i.root_leaf);
     }},
    {"F706", "directory_twice",
     [](Image &i) {
         add_name(i.at<lay_node>(i.root_leaf), i.geo, "dir2", INO_DIR, DT_DIR);
         i.seal(i.root_leaf);
     }},
    {"F707", "directory_parent",
     [](Image &i) {
         i.inode(INO_SUB).parent = lay_put64(LAY_INO_ROOT);
         i.seal_inode(INO_SUB);
     }},
    {"F708", "directory_loop",
     [](Image &i) {
         i.inode(INO_DIR).parent = lay_put64(INO_SUB);
         i.seal_inode(INO_DIR);
     }},
    {"F709", "removed_directory_with_names",
     [](Image &i) {
         i.inode(INO_DIR).nlink = lay_put32(0);
         i.inode(INO_DIR).next_orphan = lay_put64(LAY_NONE);
         i.seal_inode(INO_DIR);
     }},
    {"F710", "nlink",
     [](Image &i) {
         i.inode(INO_FILE).nlink = lay_put32(7);
         i.seal_inode(INO_FILE);
     }},
    {"F711", "inode_without_name",
     [](Image &i) {
         i.inode(INO_ORPHAN).nlink = lay_put32(1);
         i.seal_inode(INO_ORPHAN);
     }},
    {"F801", "xattr_block", [](Image &i) { i.at<uint8_t>(i.xattr_next) ^= 1; }},
    {"F802", "xattr_chain",
     [](Image &i) {
         for (uint64_t block = 3000; block < 3000 + LAY_XATTR_BLOCKS_MAX; block++) {
             auto &xb = i.at<lay_xattr_block>(block);
             lay_head_init(&xb.head, LAY_MAGIC_XATTR, i.geo.uuid, block, INO_ATTR);
             xb.next = lay_put64(block + 1);
             i.seal(block);
         }
         i.at<lay_xattr_block>(i.xattr_next).next = lay_put64(3000);
         i.seal(i.xattr_next);
     }},
    {"F803", "xattr_twice",
     [](Image &i) {
         auto &xb = i.at<lay_xattr_block>(i.xattr_next);
         std::memcpy(xb.bytes + sizeof(lay_xattr), "user.one", 8);
         i.seal(i.xattr_next);
     }},
    {"F901", "link_block", [](Image &i) { i.at<uint8_t>(i.link_block) ^= 1; }},
    {"F902", "link_length",
     [](Image &i) {
         auto &sl = i.at<lay_symlink_block>(i.link_block);
         sl.len = lay_put32(1000);
         std::memset(sl.bytes + 1000, 0, LAY_PAYLOAD - 1000);
         i.seal(i.link_block);
     }},
    {"F1001", "journal_header", [](Image &i) { i.at<uint8_t>(i.geo.journal_start) ^= 1; }},
    {"F1002", "committed_transaction",
     [](Image &i) {
         i.log({i.copy(i.root_leaf)});
         i.at<uint8_t>(i.geo.journal_start + 2) ^= 1;
     }},
};

class Problem : public Fsck, public ::testing::WithParamInterface<Case>
{
};

TEST_P(Problem, IsFound)
{
    img.fill();
    GetParam().spoil(img);
    Result r = fsck();
    EXPECT_EQ(r.status, 4) << r.out;
    EXPECT_NE(("\n" + r.out).find(std::string("\n") + GetParam().id + " "), std::string::npos)
        << r.out << r.err;
}

INSTANTIATE_TEST_SUITE_P(Table, Problem, ::testing::ValuesIn(cases),
                         [](const auto &info) { return std::string(info.param.name); });

TEST(Problems, EachHaveACaseHere)
{
    std::set<std::string> covered;
    for (const Case &c : cases)
        covered.insert(c.id);
#define PROBLEM(name, id, text) EXPECT_EQ(covered.count(id), 1u) << id;
#include "mkfs/problems.def"
#undef PROBLEM
}

TEST(Problems, HaveIdsOfTheirOwn)
{
    std::set<std::string> seen;
#define PROBLEM(name, id, text) EXPECT_TRUE(seen.insert(id).second) << id;
#include "mkfs/problems.def"
#undef PROBLEM
}

/* --- Journal --------------------------------------------------------------------------------- */

TEST_F(Fsck, SeesTheFileSystemAsItIsAfterRecovery)
{
    img.fill();
    img.log({img.copy(img.root_leaf), img.copy(0)});
    std::memset(&img.at<uint8_t>(img.root_leaf), 0xee, LAY_BLOCK_SIZE);
    Result r = fsck();
    EXPECT_EQ(r.status, 0) << r.out;
    EXPECT_NE(r.out.find("Journal: 1 transactions replayed in memory"), std::string::npos);
}

TEST_F(Fsck, TakesTheNewestImageOfABlock)
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

TEST_F(Fsck, DoesNotReplayWhatIsRevoked)
{
    img.fill();
    std::vector<uint8_t> good = img.copy(img.root_leaf);
    img.at<lay_node>(img.root_leaf).head.owner = lay_put64(9);
    img.seal(img.root_leaf);
    img.log({img.copy(img.root_leaf)});
    std::memcpy(&img.at<uint8_t>(img.root_leaf), good.data(), good.size());
    EXPECT_EQ(fsck().status, 4);
    img.log({}, {img.root_leaf});
    EXPECT_EQ(fsck().status, 0);
}

TEST_F(Fsck, RecoversASuperblockThatWasTorn)
{
    img.fill();
    img.log({img.copy(0)});
    std::memset(&img.at<uint8_t>(0), 0, 512);
    Result r = fsck();
    EXPECT_EQ(r.status, 0) << r.out;
}

TEST_F(Fsck, IgnoresATransactionThatWasNeverCommitted)
{
    img.fill();
    std::vector<uint8_t> bad = img.copy(img.root_leaf);
    bad[16] ^= 1;
    lay_seal(bad.data(), 1);
    img.log({bad});
    std::memset(&img.at<uint8_t>(img.geo.journal_start + 3), 0, LAY_BLOCK_SIZE);
    EXPECT_EQ(fsck().status, 0);
}

TEST_F(Fsck, FindsDamageBeforeALaterTransaction)
{
    img.fill();
    img.log({img.copy(img.root_leaf)});
    img.log({img.copy(img.root_leaf)});
    /* The commit of the first. */
    img.at<uint8_t>(img.geo.journal_start + 3) ^= 1;
    Result r = fsck();
    EXPECT_EQ(r.status, 4);
    EXPECT_NE(r.out.find("F1002 transaction 1"), std::string::npos) << r.out;
}

TEST_F(Fsck, RefusesASuperblockInTheJournalThatMovesThings)
{
    img.fill();
    std::vector<uint8_t> sb = img.copy(0);
    auto *moved = reinterpret_cast<lay_super *>(sb.data());
    moved->journal_start = lay_put64(lay_get64(moved->journal_start) + 1000);
    lay_seal(sb.data(), 2);
    img.log({sb});
    Result r = fsck();
    EXPECT_EQ(r.status, 4);
    EXPECT_NE(r.out.find("F1002"), std::string::npos) << r.out;
}

/* A terminal takes the bytes 0x80 to 0x9f for control characters, too. */
TEST_F(Fsck, PrintsNamesWithoutControlCharacters)
{
    img.fill();
    const std::string name = "a\x9b"
                             "31m\x1b[2J\x7f\\";
    add_name(img.at<lay_node>(img.root_leaf), img.geo, name, 4000, DT_REG);
    img.seal(img.root_leaf);
    Result r = fsck();
    EXPECT_EQ(r.status, 4);
    EXPECT_NE(r.out.find("name 'a\\x9b31m\\x1b[2J\\x7f\\x5c'"), std::string::npos) << r.out;
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

TEST_F(Fsck, FindsAChainOfAttributesThatBitesItsTail)
{
    img.fill();
    img.at<lay_xattr_block>(img.xattr_next).next = lay_put64(img.xattr_block);
    img.seal(img.xattr_next);
    Result r = fsck();
    EXPECT_EQ(r.status, 4);
    EXPECT_NE(r.out.find("F304 inode 7"), std::string::npos) << r.out;
}

TEST_F(Fsck, SurvivesSoundBlocksFullOfNonsense)
{
    std::mt19937 rng(11);
    img.fill();
    std::string sound = read_file(path("img"));
    for (int round = 0; round < test_rounds(50, 1500); round++) {
        for (unsigned n = 1 + rng() % 3; n > 0; n--) {
            uint64_t block = img.metadata[rng() % img.metadata.size()];
            uint8_t *bytes = &img.at<uint8_t>(block);
            unsigned reach = rng() % 2 ? 200 : LAY_BLOCK_SIZE - 48;
            for (unsigned k = 1 + rng() % 6; k > 0; k--)
                bytes[48 + rng() % reach] = rng() % 2 ? static_cast<uint8_t>(rng()) : 0;
            img.seal(block);
        }
        int status = fsck().status;
        ASSERT_TRUE(status == 0 || status == 4 || status == 8) << "round " << round;
        ASSERT_NE(run({DUMP, "-s", "-d1", "-e0", "-i3", "-e3", "-j", path("img")}).status, -1);
        std::memcpy(&img.at<uint8_t>(0), sound.data(), sound.size());
    }
}

/* --- What cannot be checked ------------------------------------------------------------------ */

class NoFsck : public ToolTest
{
  protected:
    void expect(int status, const std::string &line)
    {
        Result r = run({FSCK, "-n", path("img")});
        EXPECT_EQ(r.status, status);
        EXPECT_EQ(r.err, "fsck.gpunvme: " + path("img") + ": " + line + "\n");
    }
};

TEST_F(NoFsck, OfAnEmptyFile)
{
    write_file(path("img"), "");
    expect(8, "holds no gpunvmefs file system, check the name of the device");
}

TEST_F(NoFsck, OfAnotherFileSystem)
{
    write_file(path("img"), std::string(1 << 20, 'x'));
    expect(8, "holds no gpunvmefs file system, check the name of the device");
}

TEST_F(NoFsck, OfAnImageThatWasCutShort)
{
    Image img(path("img"));
    std::string whole = read_file(path("img"));
    write_file(path("img"), whole.substr(0, whole.size() / 4));
    expect(4, "superblock: the device is smaller than the file system, and no usable copy was "
              "found");
}

TEST_F(NoFsck, OfAnUnknownIncompatFeature)
{
    Image img(path("img"));
    img.super().incompat = lay_put64(0x10);
    img.seal(0);
    expect(8, "has unknown incompatible features 0x10, use a newer version");
}

TEST_F(NoFsck, OfAMissingFile)
{
    expect(8, "cannot open: No such file or directory");
}

TEST_F(NoFsck, WhileSomebodyHoldsTheImage)
{
    Image img(path("img"));
    bd_dev *dev;
    ASSERT_EQ(bd_file_open(path("img").c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    expect(8, "cannot open: in use (mounted, or held by another program), unmount it first");
    bd_close(dev);
}

TEST(FsckOptions, WithoutNAreWrongUsage)
{
    EXPECT_EQ(run({FSCK, "img"}).status, 16);
    EXPECT_EQ(run({FSCK, "-n"}).status, 16);
    Result repair = run({FSCK, "-y", "img"});
    EXPECT_EQ(repair.status, 16);
    EXPECT_EQ(repair.err, "fsck.gpunvme: options: -y: this version cannot repair, use -n to "
                          "check\n");
}

TEST(FsckOptions, HelpAndVersionGoToStdout)
{
    EXPECT_EQ(run({FSCK, "--help"}).out.rfind("usage: fsck.gpunvme", 0), 0u);
    EXPECT_EQ(run({FSCK, "-V"}).out.rfind("fsck.gpunvme (gpunvmefs)", 0), 0u);
}

} // namespace
