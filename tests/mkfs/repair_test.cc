/* SPDX-License-Identifier: BSD-2-Clause */
/* fsck.gpunvme repairs each kind of problem, and nothing else is lost. */
#include <dirent.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "tests/mkfs/repair_fixture.h"

namespace
{

class RepairOf : public Repair, public ::testing::WithParamInterface<ProblemCase>
{
};

TEST_P(RepairOf, IsFoundAndLosesNothingElse)
{
    const std::string id = std::string("\n") + GetParam().id + " ";
    fill();
    GetParam().spoil(img);
    Result found = fsck("-n");
    EXPECT_EQ(found.status, 4) << found.out;
    EXPECT_NE(("\n" + found.out).find(id), std::string::npos) << found.out << found.err;
    std::string said = expect_repaired(GetParam().lost);
    EXPECT_TRUE(GetParam().repaired_by_another || ("\n" + said).find(id) != std::string::npos)
        << said;
    EXPECT_NE(said.find("all repaired"), std::string::npos) << said;
    list_files(path("img"), true);
    expect_exit(fsck("-n"), 0);
}

INSTANTIATE_TEST_SUITE_P(Table, RepairOf, ::testing::ValuesIn(problem_cases()),
                         [](const auto &info) { return std::string(info.param.name); });

/* -p repairs all of a problem or leaves everything as it is. */
using PreenOf = RepairOf;

TEST_P(PreenOf, RepairsSafeProblemsOrNothing)
{
    static std::string damaged, after;
    fill();
    GetParam().spoil(img);
    read_file(path("img"), damaged);
    Result r = run({FSCK, "-p", "-f", path("img")});
    if (r.status == 1) {
        expect_clean();
        expect_lost(GetParam().lost);
        return;
    }
    EXPECT_EQ(r.status, 4) << r.out << r.err;
    EXPECT_NE(r.out.find("run fsck.gpunvme without -p"), std::string::npos) << r.out;
    read_file(path("img"), after);
    EXPECT_TRUE(after == damaged);
}

INSTANTIATE_TEST_SUITE_P(Table, PreenOf, ::testing::ValuesIn(problem_cases()),
                         [](const auto &info) { return std::string(info.param.name); });

/* A single bit, anywhere in the metadata, costs nothing, and -p may correct it. */
TEST_F(Repair, FlipsABitBack)
{
    fill();
    std::mt19937 random(7);
    for (int i = 0; i < 40; i++) {
        uint64_t block = img.metadata[random() % img.metadata.size()];
        unsigned bit = random() % (8 * LAY_BLOCK_SIZE);
        SCOPED_TRACE("block " + std::to_string(block) + " bit " + std::to_string(bit));
        std::string sound(&img.at<char>(block), LAY_BLOCK_SIZE);
        (&img.at<uint8_t>(block))[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
        Result r = run({FSCK, "-p", "-f", path("img")});
        ASSERT_EQ(r.status, 1) << r.out << r.err;
        ASSERT_EQ(r.out.find("F201 block " + std::to_string(img.place(block)) + ":"), 0u) << r.out;
        std::string repaired(&img.at<char>(block), LAY_BLOCK_SIZE);
        /* The transaction and the checksum are new, the rest is as it was. */
        EXPECT_EQ(repaired.substr(32), sound.substr(32));
        expect_clean();
    }
    expect_lost({});
}

TEST_F(Repair, OfASoundFileSystemWritesNothing)
{
    fill_all(img);
    std::string before = read_file(path("img"));
    EXPECT_EQ(fsck("-y").status, 0);
    EXPECT_EQ(run({FSCK, "-p", "-f", path("img")}).status, 0);
    EXPECT_TRUE(read_file(path("img")) == before);
}

TEST_F(Repair, OfManyProblemsAtOnce)
{
    fill();
    for (const ProblemCase &c : problem_cases()) {
        /* The copies would be at blocks where other cases place checksums. */
        if (c.lost.empty() && std::string(c.id).rfind("F4", 0) != 0 &&
            std::string(c.id).rfind("F10", 0) != 0 && std::string(c.id) != "F202")
            c.spoil(img);
    }
    expect_exit(fsck("-y"), 1);
    expect_clean();
    EXPECT_FALSE(list_files(path("img"), true).empty());
    expect_clean();
}

/* Data of a lost file can imitate a leaf: of a file whose root is lost, it would name any block. */
TEST_F(Repair, DoesNotTakeAnotherFilesDataForALostLeaf)
{
    fill();
    img.at<lay_node>(img.extent_leaf).u.extents[0].block = lay_put64(img.file_data);
    img.seal(img.extent_leaf);
    std::memset(&img.at<uint8_t>(img.extent_root), 0xee, LAY_BLOCK_SIZE);
    std::string said = expect_repaired({"/tree", "/dir/tree2"});
    EXPECT_EQ(said.find("F304 "), std::string::npos) << "a block of two files: " << said;
}

/* The blocks went to another file after this state of the inodes. */
TEST_F(Repair, PrefersTheOwnerWhoseInodeIsTheLastVersion)
{
    fill();
    const uint64_t addr = img.inode_blocks[INO_FILE / LAY_INODES_PER_BLOCK];
    std::vector<uint8_t> last = img.copy(addr);
    img.inode(INO_FILE).map.extents[0].block = lay_put64(img.gpu_data + 3);
    img.seal(addr);
    std::vector<uint8_t> old = img.copy(addr);
    std::memcpy(&img.at<uint8_t>(addr), last.data(), last.size());
    img.seal(addr, 9);
    std::memcpy(&img.at<uint8_t>(addr), old.data(), old.size());
    std::string said = expect_repaired({"/file", "/hard"});
    EXPECT_NE(said.find("F334 inodes 0 to 7: "), std::string::npos) << said;
    EXPECT_EQ(said.find("F304"), std::string::npos) << said;
    EXPECT_NE(said.find("Loss: inode 2, "), std::string::npos) << said;
    EXPECT_EQ(lay_get16(img.inode(INO_FILE).map.extents[0].flags), LAY_EXTENT_DAMAGED);
}

TEST_F(Repair, ReplaysTheLogFirst)
{
    fill();
    img.log({img.copy(img.root_leaf), img.copy(img.geo.supers[0])});
    std::memset(&img.at<uint8_t>(img.root_leaf), 0xee, LAY_BLOCK_SIZE);
    img.inode(INO_FILE).nlink = lay_put32(7);
    img.seal_inode(INO_FILE);
    expect_repaired();
}

/* The mark of an error that the log takes away is none. */
TEST_F(Repair, RemovesAMarkThatOnlyTheSuperblockBeforeRecoveryHad)
{
    fill_all(img);
    std::vector<uint8_t> unmarked = img.copy(img.geo.supers[0]);
    img.super().state = lay_put32(LAY_STATE_ERROR);
    img.seal_super();
    img.log({unmarked});
    img.inode(INO_FILE).nlink = lay_put32(7);
    img.seal_inode(INO_FILE);
    EXPECT_EQ(fsck("-y").status, 1);
    expect_clean();
}

TEST_F(Repair, MakesANewIncarnationAndEndsClean)
{
    fill_all(img);
    img.log({img.copy(img.root_leaf)});
    img.inode(INO_FILE).nlink = lay_put32(7);
    img.seal_inode(INO_FILE);
    lay_incarnation before = img.label().incarnation;
    EXPECT_EQ(fsck("-y").status, 1);
    EXPECT_EQ(lay_get64(img.label().incarnation.counter), lay_get64(before.counter) + 1);
    EXPECT_NE(lay_get64(img.label().incarnation.id), lay_get64(before.id));
    EXPECT_EQ(std::memcmp(&img.label().members[0].seen, &before, sizeof(before)), 0);
    EXPECT_EQ(std::memcmp(&img.label(), &img.at<lay_label>(LAY_LABEL_SECOND), LAY_BLOCK_SIZE), 0);
    EXPECT_EQ(fsck("-p").out, path("img") + ": clean, unmounted in order\n");
}

/* R9a: what a transaction frees is used again after the commit behind it. */
TEST_F(Repair, CommitsTwiceBeforeItUsesWhatItFreed)
{
    fill_all(img);
    for (const char *name : {"xattr_twice", "inode_size", "shared_block"}) {
        for (const ProblemCase &c : problem_cases()) {
            if (std::string(c.name) == name)
                c.spoil(img);
        }
    }
    EXPECT_EQ(fsck("-y").status, 1);
    unsigned found = 0;
    for (uint64_t pos = 0; pos + 1 < img.geo.log_blocks; pos++) {
        const auto &d = img.at<lay_log_descriptor>(img.geo.log_start + pos);
        if (lay_get32(d.head.magic) != LAY_MAGIC_JDESC)
            continue;
        const auto &behind =
            img.at<lay_log_commit>(img.geo.log_start + pos + lay_get32(d.count) + 2);
        EXPECT_EQ(lay_get32(behind.head.magic), LAY_MAGIC_JCOMMIT);
        EXPECT_EQ(lay_get64(behind.head.tid), lay_get64(d.head.tid) + 1);
        found++;
    }
    EXPECT_GT(found, 1u);
}

/* --- Chunks ----------------------------------------------------------------------------------- */

class Chunks : public Repair
{
  protected:
    /* Moves the attributes into chunk 1, where fill() puts nothing. */
    void SetUp() override
    {
        fill_all(img);
        img.xattr_block = move(img.xattr_block, LAY_ADDR_CHUNK(1, 1));
        img.xattr_next = move(img.xattr_next, LAY_ADDR_CHUNK(1, 2));
        img.at<lay_xattr_block>(img.xattr_block).next = lay_put64(img.xattr_next);
        img.inode(INO_ATTR).xattr = lay_put64(img.xattr_block);
        img.seal_inode(INO_ATTR);
        img.seal(LAY_ADDR_CHUNK(0, 0));
        seal_chunk(9);
        expect_clean();
        before = list_files(path("img"));
    }
    uint64_t move(uint64_t from, uint64_t to)
    {
        std::memcpy(&img.at<uint8_t>(to), &img.at<uint8_t>(from), LAY_BLOCK_SIZE);
        img.at<lay_head>(to).block = lay_put64(to);
        mark(from, false);
        mark(to, true);
        return to;
    }
    void mark(uint64_t addr, bool used)
    {
        auto &entries = img.at<lay_entries>(LAY_ADDR_CHUNK(lay_addr_segment(addr), 0));
        img.mark(addr, 1, used);
        entries.free = lay_put32(lay_get32(entries.free) + (used ? -1 : 1));
    }
    void seal_chunk(uint64_t tid)
    {
        for (uint64_t b : {1, 2, 0})
            img.seal(LAY_ADDR_CHUNK(1, b), tid);
    }
    void lose_map()
    {
        std::memset(&img.at<uint8_t>(LAY_ADDR(LAY_KIND_MAP, 0)), 0xee, LAY_BLOCK_SIZE);
    }
    void expect_map(uint64_t chunks)
    {
        const auto &map = img.at<lay_map_block>(LAY_ADDR(LAY_KIND_MAP, 0));
        EXPECT_EQ(lay_get64(img.super().chunks), chunks);
        for (uint64_t i = 0; i < img.segments.size(); i++)
            EXPECT_EQ(lay_get64(map.slots[i].places[0]), img.segments[i]) << i;
    }
};

/* The map on the device is older than the chunk: a write of it was lost. */
TEST_F(Chunks, AreFoundThoughASoundMapLacksThem)
{
    lay_slot_set(&img.at<lay_map_block>(LAY_ADDR(LAY_KIND_MAP, 0)).slots[1], LAY_NONE, LAY_NONE);
    img.seal(LAY_ADDR(LAY_KIND_MAP, 0));
    expect_repaired();
    expect_map(2);
}

TEST_F(Chunks, AreFoundWithoutTheirEntries)
{
    lose_map();
    std::memset(&img.at<uint8_t>(LAY_ADDR_CHUNK(1, 0)), 0xee, LAY_BLOCK_SIZE);
    expect_repaired({}, "-p");
    expect_map(2);
}

/* A file has a copy of the device, as it was before: also of the chunk. */
TEST_F(Chunks, AreNotTakenFromTheDataOfAFile)
{
    seal_chunk(5);
    std::memcpy(&img.at<uint8_t>(img.gpu_data), &img.at<uint8_t>(img.segments[1]),
                LAY_SEGMENT_BLOCKS * LAY_BLOCK_SIZE);
    std::memset(&img.at<uint8_t>(img.gpu_data + 1), 0, LAY_BLOCK_SIZE);
    seal_chunk(9);
    before = list_files(path("img"));
    lose_map();
    expect_repaired({}, "-p");
    expect_map(2);
}

/* A chunk that was unmapped has left its entries where a file has space, but no data yet. */
TEST_F(Chunks, AreNotFoundAgainWhenTheyWereUnmapped)
{
    auto &old = img.at<lay_entries>(img.gpu_data);
    lay_head_init(&old.head, LAY_MAGIC_ENTRIES, img.geo.uuid, LAY_ADDR_CHUNK(2, 0), 0);
    std::memset(old.used, 0, sizeof(old.used));
    std::memset(old.ages, 0, sizeof(old.ages));
    std::memset(old.reserved3, 0, sizeof(old.reserved3));
    old.reserved = lay_put32(0);
    old.reserved2 = lay_put64(0);
    old.used[0] = 1;
    old.free = lay_put32(LAY_SEGMENT_BLOCKS - 1);
    lay_seal(&old, 7);
    before = list_files(path("img"));
    img.super().chunks = lay_put64(3);
    img.seal_super();
    lose_map();
    expect_repaired();
    expect_map(2);
}

TEST_F(Chunks, AreMappedWhenARepairNeedsBlocks)
{
    use_all_chunks(img);
    img.at<lay_head>(img.dir_leaf).crc = lay_put32(1);
    expect_repaired();
    expect_map(3);
}

/* With nothing but blocks that damaged entries do not prove free, nothing else is overwritten. */
TEST_F(Chunks, LoseNoBlockWhenEntriesAndANodeAreDamaged)
{
    std::memset(&img.at<uint8_t>(LAY_ADDR_CHUNK(0, 0)), 0xee, LAY_BLOCK_SIZE);
    std::memset(&img.at<uint8_t>(LAY_ADDR_CHUNK(1, 0)), 0xee, LAY_BLOCK_SIZE);
    std::memset(&img.at<uint8_t>(img.dir_root), 0xee, LAY_BLOCK_SIZE);
    std::memset(&img.at<uint8_t>(img.extent_root), 0xee, LAY_BLOCK_SIZE);
    expect_repaired();
}

/* Of a chunk whose blocks are all lost, what was in it is reported, and no more. */
TEST_F(Chunks, AreReportedWithWhatIsLost)
{
    std::memset(&img.at<uint8_t>(img.segments[1]), 0xee, LAY_SEGMENT_BLOCKS * LAY_BLOCK_SIZE);
    std::string damaged = read_file(path("img"));
    EXPECT_EQ(run({FSCK, "-p", "-f", path("img")}).status, 4);
    EXPECT_TRUE(read_file(path("img")) == damaged);
    std::string said = expect_repaired({"/attr"});
    EXPECT_NE(said.find("Loss: inode 7, /attr: extended attributes may be lost"), std::string::npos)
        << said;
    expect_map(2);
}

/* --- Flipped bits ----------------------------------------------------------------------------- */

class FlippedBit : public Repair, public ::testing::WithParamInterface<int>
{
  protected:
    void SetUp() override
    {
        fill_all(img);
        std::vector<uint8_t> good = img.copy(img.root_leaf);
        std::memset(&img.at<uint8_t>(img.root_leaf), 0xee, LAY_BLOCK_SIZE);
        img.log({good, img.copy(img.inode_blocks[0])});
        img.log({img.copy(img.inode_blocks[1])});
        img.log({});
    }
    void flip(uint64_t block, unsigned bit)
    {
        uint8_t &byte = (&img.at<uint8_t>(block))[bit / 8];
        byte = static_cast<uint8_t>(byte ^ 1u << bit % 8);
    }
};

/* Labels and every block of the log, one after the other. */
TEST_P(FlippedBit, LosesNothing)
{
    before = files();
    std::vector<uint64_t> blocks = {0, LAY_LABEL_SECOND};
    for (uint64_t pos = 0; pos < 10; pos++)
        blocks.push_back(img.geo.log_start + pos);
    std::string damaged = read_file(path("img"));
    for (uint64_t block : blocks) {
        unsigned bit = (static_cast<unsigned>(block) * 7919u + 1009u * GetParam()) % 32768u;
        flip(block, bit);
        SCOPED_TRACE("block " + std::to_string(block) + " bit " + std::to_string(bit));
        Result r = fsck("-y");
        EXPECT_TRUE(r.status == 0 || r.status == 1) << r.out << r.err;
        expect_clean();
        expect_lost({});
        std::memcpy(&img.at<uint8_t>(0), damaged.data(), damaged.size());
    }
}

INSTANTIATE_TEST_SUITE_P(Bits, FlippedBit, ::testing::Range(0, 8));

/* --- A damaged log ---------------------------------------------------------------------------- */

class DamagedLog : public Repair
{
  protected:
    /* The second transaction of three is damaged; the others name files anew. */
    void SetUp() override
    {
        fill();
        img.log({img.copy(img.root_leaf)});
        img.log({img.copy(img.inode_blocks[0])});
        auto &leaf = img.at<lay_node>(img.root_leaf);
        std::vector<uint8_t> old = img.copy(img.root_leaf);
        add_name(leaf, img.geo, "third", INO_FILE, DT_REG);
        std::vector<uint8_t> third = img.copy(img.root_leaf);
        img.log({third, inode_image(), img.copy(img.geo.supers[0])});
        std::memcpy(&img.at<uint8_t>(img.root_leaf), old.data(), old.size());
        damaged = img.geo.log_start + 5;
        whole = img.copy(damaged);
        std::memset(&img.at<uint8_t>(damaged) + 100, 0x5a, 300);
    }
    std::vector<uint8_t> inode_image()
    {
        std::vector<uint8_t> b = img.copy(img.inode_blocks[0]);
        auto *ib = reinterpret_cast<lay_inode_block *>(b.data());
        ib->inodes[INO_FILE].nlink = lay_put32(3);
        ib->inodes[LAY_INO_ROOT].map.tree.entries = lay_put64(8);
        return b;
    }
    std::string log_bytes()
    {
        return std::string(reinterpret_cast<char *>(&img.at<uint8_t>(img.geo.log_start)),
                           img.geo.log_blocks << LAY_BLOCK_SHIFT);
    }
    /* Writes the log that fsck has kept, with the damaged block whole again, to a file. */
    void mend()
    {
        std::string log = kept();
        size_t at = (damaged - img.geo.log_start) << LAY_BLOCK_SHIFT;
        std::memcpy(&log[at], whole.data(), whole.size());
        write_file(path("log"), log);
    }
    Result replay() { return run({FSCK, "-y", "--replay", path("log"), path("img")}); }
    /* Expects that fsck does not apply the log and writes nothing; returns what fsck says. */
    Result expect_not_applied()
    {
        std::string image = read_file(path("img"));
        Result r = replay();
        EXPECT_TRUE(read_file(path("img")) == image);
        return r;
    }
    void replay_mended(const char *says)
    {
        mend();
        Result r = replay();
        EXPECT_TRUE(r.status == 0 || r.status == 1) << r.out << r.err;
        EXPECT_NE(r.out.find(says), std::string::npos) << r.out;
    }
    /* The bytes of a file that fsck made, from its inline extents. */
    std::string kept()
    {
        for (uint64_t ino = INO_ORPHAN + 1; ino < 16; ino++) {
            const lay_inode &inode = img.inode(ino);
            std::string bytes;
            for (unsigned i = 0; i < lay_get16(inode.map_count); i++) {
                const lay_extent &e = inode.map.extents[i];
                bytes.append(reinterpret_cast<char *>(&img.at<uint8_t>(lay_get64(e.block))),
                             size_t{lay_get32(e.len)} << LAY_BLOCK_SHIFT);
            }
            if (lay_get64(inode.size) >= img.geo.log_blocks << LAY_BLOCK_SHIFT)
                return bytes;
        }
        return "";
    }

    std::vector<uint8_t> whole;
    uint64_t damaged;
};

TEST_F(DamagedLog, IsReplayedUpToTheGapAndKept)
{
    const std::string log = log_bytes();
    Result r = expect_exit(fsck("-y"), 1, "F1002 transaction 3");
    EXPECT_NE(r.out.find("The damaged log is kept: lost+found/journal-3\n"), std::string::npos)
        << r.out;
    expect_clean();
    expect_lost({});
    EXPECT_TRUE(files().count("/lost+found/journal-3"));
    EXPECT_EQ(kept().substr(0, log.size()), log);
}

TEST_F(DamagedLog, ListsWhatTheRestWouldHaveChanged)
{
    Result r = expect_exit(fsck("-n"), 4, "Given up: changes of inode 1 /\n");
    EXPECT_NE(r.out.find("Given up: changes of inode 2 /hard\n"), std::string::npos) << r.out;
}

TEST_F(DamagedLog, IsAppliedWhenItIsMended)
{
    EXPECT_EQ(fsck("-y").status, 1);
    replay_mended("3 kept transactions applied");
    expect_clean();
    EXPECT_TRUE(files().count("/third"));
    expect_lost({"/third", "/file", "/hard"});
}

/* A checkpoint had put blocks in place whose ages were in the part that is lost. */
TEST_F(DamagedLog, NamesTheAgesOfLaterBlocksInPlace)
{
    lay_seal(&img.at<lay_head>(img.inode_blocks[1]), 9);
    lay_seal(&img.at<lay_head>(img.extent_leaf), 9);
    lay_seal(&img.at<lay_head>(img.geo.bitmap_start), 9);
    std::string said = expect_repaired();
    EXPECT_EQ(said.find("F334"), std::string::npos) << said;
    EXPECT_EQ(said.find("Loss"), std::string::npos) << said;
}

/* The chunk that the rest maps is kept free until then. */
TEST_F(DamagedLog, IsAppliedWithAChunkThatItMaps)
{
    const uint64_t place = 3072;
    std::vector<uint8_t> map = img.copy(LAY_ADDR(LAY_KIND_MAP, 0)),
                         bits = img.copy(img.geo.bitmap_start),
                         entries = img.copy(LAY_ADDR_CHUNK(1, 0)),
                         super = img.copy(img.geo.supers[0]);
    auto *bm = reinterpret_cast<lay_bitmap *>(bits.data());
    auto *sb = reinterpret_cast<lay_super *>(super.data());
    lay_slot_set(&reinterpret_cast<lay_map_block *>(map.data())->slots[2], place, LAY_NONE);
    reinterpret_cast<lay_head *>(entries.data())->block = lay_put64(LAY_ADDR_CHUNK(2, 0));
    std::memset(bm->bits + place / 8, 0xff, LAY_SEGMENT_BLOCKS / 8);
    bm->free = lay_put32(lay_get32(bm->free) - LAY_SEGMENT_BLOCKS);
    sb->area.free_blocks = lay_put64(lay_get64(sb->area.free_blocks) - LAY_SEGMENT_BLOCKS);
    sb->chunks = lay_put64(3);
    img.log({map, bits, entries, super});
    EXPECT_EQ(fsck("-y").status, 1);
    replay_mended("4 kept transactions applied");
    EXPECT_EQ(lay_get64(img.super().chunks), 3u);
    expect_clean();
    expect_lost({"/third", "/file", "/hard"});
}

TEST_F(DamagedLog, IsNotAppliedWhileItIsDamaged)
{
    EXPECT_EQ(fsck("-y").status, 1);
    write_file(path("log"), kept());
    Result r = expect_exit(expect_not_applied(), 4);
    EXPECT_EQ(r.err, "fsck.gpunvme: " + path("img") + ": the log in the file is still damaged\n");
}

TEST_F(DamagedLog, IsNotAppliedAfterAMount)
{
    EXPECT_EQ(fsck("-y").status, 1);
    mend();
    list_files(path("img"), true);
    expect_exit(expect_not_applied(), 4, "", "written by a mount since this log was kept");
}

TEST_F(DamagedLog, IsNotAppliedWithAnUnknownReadOnlyFeature)
{
    EXPECT_EQ(fsck("-y").status, 1);
    mend();
    img.label().ro_compat = lay_put64(0x40);
    img.seal_label();
    Result r = expect_not_applied();
    EXPECT_EQ(r.out.find("applied"), std::string::npos) << r.out;
}

TEST_F(DamagedLog, OfAnotherFileSystemIsRefused)
{
    EXPECT_EQ(fsck("-y").status, 1);
    Image other(path("other"), 0x33);
    write_file(path("log"), kept());
    expect_exit(run({FSCK, "-y", "--replay", path("log"), path("other")}), 4, "",
                "the file is no log of this file system");
    EXPECT_EQ(run({FSCK, "-y", "--replay", path("none"), path("other")}).status, 4);
    EXPECT_EQ(run({FSCK, "-p", "--replay", path("log"), path("other")}).status, 16);
}

/* --- What nobody writes to -------------------------------------------------------------------- */

TEST_F(Repair, WritesNothingWithAnUnknownReadOnlyFeature)
{
    fill_all(img);
    img.inode(INO_FILE).nlink = lay_put32(7);
    img.seal_inode(INO_FILE);
    img.label().ro_compat = lay_put64(0x40);
    img.seal_label();
    std::string before = read_file(path("img"));
    for (const char *mode : {"-p", "-y"}) {
        Result r = expect_exit(fsck(mode), 4);
        EXPECT_EQ(r.err, "fsck.gpunvme: " + path("img") +
                             ": has unknown read-only features 0x40, nothing is written; use a "
                             "newer version to repair it\n");
    }
    EXPECT_TRUE(read_file(path("img")) == before);
}

TEST_F(Repair, KeepsABlock0OfAnotherFileSystem)
{
    fill_all(img);
    std::memset(&img.at<uint8_t>(0), 0x5c, LAY_BLOCK_SIZE);
    std::string before = read_file(path("img"));
    for (const char *mode : {"-n", "-p", "-y"}) {
        expect_exit(fsck(mode), 8, "", "holds no gpunvmefs file system");
    }
    EXPECT_THROW(list_files(path("img")), std::runtime_error);
    EXPECT_EQ(run({FSCK, "-n", "--reclaim", path("img")}).status, 4);
    EXPECT_TRUE(read_file(path("img")) == before);
}

/* Its label is sound, so that its version counts, whatever the second copy is. */
TEST_F(Repair, KeepsABlock0OfANewerFileSystem)
{
    fill_all(img);
    img.label().version_major = lay_put16(LAY_VERSION_MAJOR + 1);
    lay_seal(&img.label(), 0);
    std::string before = read_file(path("img"));
    for (const char *mode : {"-n", "-p", "-y"}) {
        expect_exit(fsck(mode), 8, "", "has a newer format");
    }
    EXPECT_TRUE(read_file(path("img")) == before);
}

TEST_F(Repair, MakesRoomForLostFound)
{
    fill();
    /* No slot is free: seven inodes without a name, and no orphan. */
    auto &block = img.at<lay_inode_block>(img.inode_blocks[1]);
    for (uint64_t ino = INO_ORPHAN; ino < 16; ino++) {
        img.inode(ino) = img.inode(INO_ORPHAN);
        img.inode(ino).generation = lay_put32(1);
        img.inode(ino).nlink = lay_put32(1);
        img.inode(ino).next_orphan = lay_put64(0);
    }
    img.super().orphan = lay_put64(LAY_NONE);
    img.super().free_inode_block = lay_put64(LAY_NONE);
    img.seal_super();
    block.used = 0xff;
    img.seal(img.inode_blocks[1]);
    expect_repaired();
    Files after = files();
    for (uint64_t ino = INO_ORPHAN; ino < 16; ino++)
        EXPECT_TRUE(after.count("/lost+found/#" + std::to_string(ino))) << ino;
}

/* --- Options ---------------------------------------------------------------------------------- */

TEST_F(Repair, PreenTrustsAnOrderlyUnmount)
{
    auto &bm = img.at<lay_bitmap>(img.geo.bitmap_start);
    img.mark(3000, 1, true);
    bm.free = lay_put32(lay_get32(bm.free) - 1);
    img.seal(img.geo.bitmap_start);
    Result r = expect_exit(fsck("-p"), 0);
    EXPECT_EQ(r.out, path("img") + ": clean, unmounted in order\n");
    expect_exit(run({FSCK, "-p", "-f", path("img")}), 1);
    expect_clean();
}

TEST_F(Repair, PreenChecksAfterACrashAndAfterAnInterruptedRepair)
{
    EXPECT_EQ(fsck("-a").out, path("img") + ": clean, unmounted in order\n");
    img.set_clean(false);
    EXPECT_EQ(fsck("-a").out, path("img") + ": clean\n");
    img.super().state = lay_put32(LAY_STATE_ERROR);
    img.set_clean(true);
    EXPECT_EQ(fsck("-a").status, 1);
    EXPECT_EQ(lay_get32(img.super().state), 0u);
    EXPECT_EQ(fsck("-a").out, path("img") + ": clean, unmounted in order\n");
}

/* Adds the output of the terminal; false: none came for 100 ms. */
bool read_terminal(int fd, std::string *out)
{
    pollfd p = {fd, POLLIN, 0};
    char buf[4096];
    ssize_t n = poll(&p, 1, 100) > 0 ? read(fd, buf, sizeof(buf)) : 0;
    if (n > 0)
        out->append(buf, static_cast<size_t>(n));
    return n > 0;
}

/* Runs fsck.gpunvme on a terminal, with these answers, for at most 30 s. */
Result on_terminal(const std::string &image, const std::string &answers)
{
    int fd;
    pid_t pid = forkpty(&fd, nullptr, nullptr, nullptr);
    if (pid == 0) {
        execl(FSCK, FSCK, image.c_str(), nullptr);
        _exit(127);
    }
    EXPECT_EQ(write(fd, answers.data(), answers.size()), static_cast<ssize_t>(answers.size()));
    Result r{-1, "", ""};
    int status = 0;
    pid_t ended = 0;
    /* A terminal without a program need not report its end. */
    for (int i = 0; i < 300 && ended == 0; i++) {
        while (read_terminal(fd, &r.out))
            ;
        ended = waitpid(pid, &status, WNOHANG);
    }
    if (ended == 0) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    read_terminal(fd, &r.out);
    close(fd);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return r;
}

class OnTerminal : public Repair
{
  protected:
    void SetUp() override
    {
        fill_all(img);
        img.inode(INO_FILE).nlink = lay_put32(7);
        img.seal_inode(INO_FILE);
        add_name(img.at<lay_node>(img.root_leaf), img.geo, "gone", 14, DT_REG);
        img.inode(LAY_INO_ROOT).map.tree.entries = lay_put64(8);
        img.seal(img.root_leaf);
        img.seal(img.inode_blocks[0]);
    }
};

TEST_F(OnTerminal, MakesAcceptedRepairs)
{
    expect_exit(on_terminal(path("img"), "y\ny\ny\n"), 1, "Remove? [y/n/a]");
    expect_clean();
}

TEST_F(OnTerminal, SkipsDeclinedRepairs)
{
    expect_exit(on_terminal(path("img"), "n\ny\n"), 4);
    Result r = expect_exit(fsck("-n"), 4, "F703 ");
    EXPECT_NE(r.out.find("F406 "), std::string::npos) << "not marked: " << r.out;
    EXPECT_EQ(r.out.find("F710 "), std::string::npos) << r.out;
}

TEST_F(OnTerminal, AsksNoFurtherQuestionsAfterAll)
{
    expect_exit(on_terminal(path("img"), "a\n"), 1);
    expect_clean();
}

TEST_F(OnTerminal, WritesNothingWithoutAYes)
{
    std::string before = read_file(path("img"));
    EXPECT_EQ(on_terminal(path("img"), "n\nn\n").status, 4);
    EXPECT_TRUE(read_file(path("img")) == before);
}

/* More groups than a pass handles between two looks at the terminal. */
TEST_F(Repair, ShowsItsProgressOnATerminal)
{
    ASSERT_EQ(run({MKFS, "-s", "256G", path("large")}).status, 0);
    expect_exit(on_terminal(path("large"), ""), 0, "bitmaps      [===");
    EXPECT_EQ(run({FSCK, "-n", path("large")}).err, "") << "no terminal";
}

// --- Large attributes, and file systems in which no block is free --------------------------------

using RepairOfXattrs = Repair;

// Records of large values: the length of the value, and its parts.
void add_head(lay_xattr_block &xb, const std::string &name, uint32_t len)
{
    const le32 value = lay_put32(len);
    add_xattr(xb, "\2" + name, std::string(reinterpret_cast<const char *>(&value), sizeof(value)));
}
void add_part(lay_xattr_block &xb, const std::string &name, unsigned number, size_t len)
{
    add_xattr(xb, std::string("\1") + static_cast<char>(32 + number) + name, std::string(len, 'p'));
}

// Only values that lack something go.
TEST_F(RepairOfXattrs, KeepsWholeLargeValues)
{
    img.fill();
    auto &xb = img.at<lay_xattr_block>(img.xattr_next);
    add_head(xb, "user.whole", 50);
    add_part(xb, "user.whole", 0, 50);
    add_head(xb, "user.nothing", 0);
    img.seal(img.xattr_next);
    expect_clean();
    add_head(xb, "user.short", 50);
    add_part(xb, "user.short", 0, 49);
    add_head(xb, "user.lacks", 50);
    add_part(xb, "user.second", 1, 50);
    add_head(xb, "user.toomuch", 50);
    add_part(xb, "user.toomuch", 0, 50);
    add_part(xb, "user.toomuch", 1, 50);
    add_head(xb, "user.long", 1 << 30);
    add_xattr(xb, "\2user.odd", "12345");
    add_xattr(xb, "\1", "part");
    add_xattr(xb, "\2", "head");
    img.seal(img.xattr_next);
    Result r =
        expect_exit(fsck("-y"), 1,
                    "F805 inode 7: large extended attributes lack a part, or parts belong to "
                    "none (values: 7)");
    EXPECT_NE(r.out.find("/attr: extended attributes may be lost"), std::string::npos) << r.out;
    expect_clean();
    Result dump = run({DUMP, "-i", "7", path("img")});
    size_t names = 0;
    for (size_t at = 0; (at = dump.out.find("name=", at)) != std::string::npos; at++)
        names++;
    EXPECT_EQ(names, 5u) << dump.out;
    for (const char *name : {"user.one", "user.two", "user.whole", "user.nothing"})
        EXPECT_NE(dump.out.find(name), std::string::npos) << name << dump.out;
}

// No block of data or metadata is free.
class RepairFull : public RepairOfXattrs
{
  protected:
    RepairFull()
    {
        fill_all(img);
        take_data();
        take_metadata();
        Result r = fsck("-y"); // corrects counts and the list of attributes' owners
        EXPECT_EQ(r.status, 1) << r.out << r.err;
        expect_clean();
        before = files();
    }

  private:
    // Past the end of a file.
    void take_data()
    {
        lay_inode &file = img.inode(INO_FILE);
        const uint8_t *bits = img.at<lay_bitmap>(img.geo.bitmap_start).bits;
        unsigned count = lay_get16(file.map_count);
        uint64_t blocks = lay_get64(file.blocks);
        for (uint64_t b = 0, end; b < img.geo.blocks; b = end) {
            for (end = b; end < img.geo.blocks && !(bits[end / 8] >> end % 8 & 1); end++)
                continue;
            if (end == b && end++)
                continue;
            lay_extent e = {};
            e.file_block = lay_put64((1 << 20) + b);
            e.block = lay_put64(b);
            e.len = lay_put32(static_cast<uint32_t>(end - b));
            e.flags = lay_put16(LAY_EXTENT_UNWRITTEN);
            ASSERT_LT(count, LAY_INLINE_EXTENTS);
            file.map.extents[count++] = e;
            blocks += end - b;
            img.mark(b, end - b, true);
        }
        file.map_count = lay_put16(static_cast<uint16_t>(count));
        file.blocks = lay_put64(blocks);
        img.seal_inode(INO_FILE);
        img.seal(img.geo.bitmap_start);
    }
    // Chains of empty blocks of attributes, which some inodes can have.
    void take_metadata()
    {
        std::vector<uint64_t> owners = {INO_GPU, INO_SUB, INO_DIR, INO_TREE, INO_FILE};
        uint64_t next = 0, owner = 0;
        unsigned left = 0;
        for (uint64_t s = 0; s < img.segments.size(); s++) {
            for (unsigned b = 1; b < LAY_SEGMENT_BLOCKS; b++) {
                uint64_t addr = LAY_ADDR_CHUNK(s, b);
                if (img.at<lay_entries>(LAY_ADDR_CHUNK(s, 0)).used[b / 8] >> b % 8 & 1)
                    continue;
                if (left-- == 0) {
                    end_chain(owner, next);
                    ASSERT_FALSE(owners.empty());
                    owner = owners.back();
                    owners.pop_back();
                    next = 0;
                    left = LAY_XATTR_BLOCKS_MAX - 1;
                }
                auto &xb = img.at<lay_xattr_block>(addr);
                std::memset(&xb, 0, sizeof(xb));
                lay_head_init(&xb.head, LAY_MAGIC_XATTR, img.geo.uuid, addr, owner);
                xb.next = lay_put64(next);
                img.mark(addr, 1, true);
                img.seal(addr);
                next = addr;
            }
        }
        end_chain(owner, next);
    }
    void end_chain(uint64_t owner, uint64_t first)
    {
        if (owner) {
            img.inode(owner).xattr = lay_put64(first);
            img.seal_inode(owner);
        }
    }
};

TEST_F(RepairFull, AttributesAreBuiltInTheirOwnBlocks)
{
    img.at<uint8_t>(img.xattr_next) ^= 3;
    expect_repaired({"/attr"});
    EXPECT_NE(run({DUMP, "-i", "7", path("img")}).out.find("user.one"), std::string::npos);
}

TEST_F(RepairFull, TheRootServesForLostAndFound)
{
    img.inode(INO_ORPHAN).nlink = lay_put32(1);
    img.seal_inode(INO_ORPHAN);
    expect_repaired({"/#9"});
    EXPECT_EQ(list_files(path("img")).count("/#9"), 1u);
}

} // namespace
