/* SPDX-License-Identifier: BSD-2-Clause */
// What a repair makes of damaged metadata: files read as they were, or not at all.
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <random>

#include "layout/layout.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/image_repair.h"
#include "tests/fusefs/core/sealed_blocks.h"
#include "tests/rounds.h"

namespace
{

constexpr uint64_t kBlock = LAY_BLOCK_SIZE;

// Returns the extents of a block, whatever they belong to.
std::vector<lay_extent *> extents_in(uint8_t *bytes)
{
    std::vector<lay_extent *> all;
    auto *node = reinterpret_cast<lay_node *>(bytes);
    if (lay_get32(node->head.magic) == LAY_MAGIC_EXTENTS) {
        for (unsigned i = 0; i < lay_get16(node->count); i++)
            all.push_back(&node->u.extents[i]);
        return all;
    }
    auto *block = reinterpret_cast<lay_inode_block *>(bytes);
    for (lay_inode &inode : block->inodes) {
        if (lay_get16(inode.map_kind) != LAY_MAP_INLINE || !S_ISREG(lay_get32(inode.mode)))
            continue;
        for (unsigned i = 0; i < lay_get16(inode.map_count); i++)
            all.push_back(&inode.map.extents[i]);
    }
    return all;
}

class FsLoss : public FsTest
{
  protected:
    void SetUp() override
    {
        opts.log = [](int, const char *) {};
        FsTest::SetUp();
        add("secret", S_IFREG | 0600, 64, 64);
        for (int i = 0; i < 12; i++)
            add("public" + std::to_string(i), S_IFREG | 0644, 1 + i % 3, 8);
        add_pieces("pieces");
        ASSERT_EQ(ffs_sync(fs), 0);
        unmount();
        ASSERT_EQ(fsck(), "");
        ASSERT_EQ(image_geometry(device.bytes(), &geo), 0);
        sound = device.image();
        find_metadata();
    }
    void TearDown() override
    {
        check_at_end = false;
        device.put(sound);
        FsTest::TearDown();
    }
    void add(const std::string &name, uint32_t mode, uint64_t blocks, uint64_t step)
    {
        std::string data = pattern(files.size() + 1, blocks * kBlock);
        Inode f = create(name, mode);
        for (uint64_t at = 0; at < blocks; at += step)
            write(f, at * kBlock, data.substr(at * kBlock, step * kBlock));
        files[name] = data;
    }
    // Every second block is a hole, so that the file has a tree of extents.
    void add_pieces(const std::string &name)
    {
        std::string data(600 * kBlock, '\0');
        Inode f = create(name);
        for (uint64_t b = 0; b < 600; b += 2) {
            std::string block = pattern(1000 + b, kBlock);
            write(f, b * kBlock, block);
            data.replace(b * kBlock, kBlock, block);
        }
        truncate(f, data.size());
        files[name] = data;
    }
    void find_metadata()
    {
        for (uint64_t b = 1; b < geo.blocks; b++) {
            if (is_in_log(geo, b))
                continue;
            const auto *head = &at<lay_head>(b);
            if (!is_sealed(at(b)))
                continue;
            if (lay_get32(head->magic) == LAY_MAGIC_INODES && !extents_in(at(b)).empty())
                inode_blocks.push_back(b);
            if (lay_get32(head->magic) == LAY_MAGIC_EXTENTS)
                (lay_get16(at<lay_node>(b).level) ? roots : leaves).push_back(b);
        }
    }
    // The JSON of a repair of the same damage, without spaces.
    std::string device_report(const std::function<void()> &damage)
    {
        std::string file = ::testing::TempDir() + "report." + std::to_string(getpid());
        device.put(sound);
        damage();
        fsck("-y --report=" + file);
        std::ifstream in(file);
        std::string all{std::istreambuf_iterator<char>(in), {}};
        unlink(file.c_str());
        all.erase(std::remove_if(all.begin(), all.end(), [](char c) { return isspace(c); }),
                  all.end());
        return all;
    }
    // What the report in lost+found says.
    std::string report()
    {
        std::string all;
        Inode dir = lookup("lost+found");
        for (const std::string &name : names(dir)) {
            if (name.rfind("report-", 0) == 0)
                all += read_all(lookup(dir, name));
        }
        return all;
    }
    // Damages the image, repairs it, and compares every block of every file.
    void try_damage(const std::function<void()> &damage)
    {
        device.put(sound);
        damage();
        std::string said = fsck("-y");
        EXPECT_NE(said.find("exit 1"), std::string::npos) << said;
        EXPECT_EQ(fsck(), "");
        lost = 0;
        ASSERT_EQ(mount(), 0);
        for (const auto &[name, data] : files)
            compare(name, data);
        kept = lost > 0 ? report() : "";
        EXPECT_NE(said.find(kept), std::string::npos) << kept;
        unmount();
        ASSERT_FALSE(HasFailure()) << said;
    }
    void compare(const std::string &name, const std::string &data)
    {
        ffs_inode *inode = nullptr;
        if (ffs_lookup(root, name.c_str(), &inode) != 0) {
            lost += data.size() / kBlock;
            return;
        }
        for (uint64_t b = 0; b < data.size() / kBlock; b++) {
            std::string got(kBlock, 0);
            ssize_t n = ffs_read(inode, b * kBlock, got.data(), kBlock);
            lost += n < 0;
            if (n == -EIO || got == data.substr(b * kBlock, kBlock))
                continue;
            ADD_FAILURE() << name << " block " << b << " has other bytes";
            break;
        }
        ffs_iput(inode, 1);
    }

    lay_geometry geo = {};
    std::map<std::string, std::string> files;
    Image sound;
    std::vector<uint64_t> inode_blocks, leaves, roots;
    uint64_t lost = 0; // blocks of the last image that could not be read
    std::string kept;  // report of the last image
    std::mt19937_64 random{11};
};

// The address of an extent becomes that of another file's block, or of a free one.
TEST_F(FsLoss, OfAnAddressGivesNoFileAnothersBytes)
{
    uint64_t secret = 0;
    for (uint64_t b : inode_blocks) {
        for (const lay_extent *e : extents_in(at(b)))
            secret = lay_get32(e->len) >= 32 ? lay_get64(e->block) : secret;
    }
    ASSERT_NE(secret, 0u);
    for (int round = test_rounds(40, 400); round-- > 0;) {
        const auto &blocks = round % 2 ? inode_blocks : leaves;
        uint64_t block = blocks[random() % blocks.size()];
        SCOPED_TRACE("round " + std::to_string(round) + " block " + std::to_string(block));
        try_damage([&] {
            auto all = extents_in(at(block));
            lay_extent *e = all[random() % all.size()];
            uint64_t other =
                round % 4 < 2 ? secret + random() % 32 : 1 + random() % (geo.blocks - 1);
            e->block = lay_put64(other);
            e->len = lay_put32(1);
        });
    }
}

// An inode block that is gone takes its files, and the report names them.
TEST_F(FsLoss, OfAnInodeBlockIsReported)
{
    uint64_t block = inode_blocks.back();
    auto damage = [&] { memset(at(block), 0, kBlock); };
    try_damage(damage);
    EXPECT_GT(lost, 0u);
    EXPECT_NE(kept.find(", /pieces: the file is lost"), std::string::npos) << kept;
    EXPECT_EQ(kept.find("/secret"), std::string::npos) << kept;
    std::string json = device_report(damage);
    EXPECT_NE(json.find("\"kind\":\"file\""), std::string::npos) << json;
}

// A lost node leaves no zeros: the ranges that it had are damaged.
TEST_F(FsLoss, OfANodeIsNoHole)
{
    ASSERT_GE(leaves.size(), 2u);
    ASSERT_GE(roots.size(), 1u);
    for (uint64_t leaf : leaves) {
        try_damage([&] { memset(at(leaf), 0, kBlock); });
        EXPECT_GT(lost, 0u);
        EXPECT_LT(lost, 600u) << "the other leaves are there";
        EXPECT_NE(kept.find(", /pieces: bytes "), std::string::npos) << kept;
        EXPECT_NE(kept.find(" cannot be read"), std::string::npos) << kept;
        try_damage([&] { memset(at(leaf) + 2048, 0xee, 2048); });
    }
    try_damage([&] { memset(&at<uint8_t>(roots[0]), 0xee, kBlock); });
    EXPECT_EQ(lost, 0u) << "the leaves are found";
}

TEST_F(FsLoss, OfTheHeadOfAnInodeBlockIsNone)
{
    for (uint64_t block : inode_blocks) {
        try_damage([&] { at<lay_head>(block).owner = lay_put64(random()); });
        EXPECT_EQ(lost, 0u);
        try_damage([&] { memset(at(block), 0x5a, sizeof(lay_head)); });
        EXPECT_EQ(lost, 0u);
    }
}

// The checksum block of the files, damaged so that no single bit explains it.
class FsLossOfSums : public FsLoss
{
  protected:
    void SetUp() override
    {
        data_csum = true;
        FsLoss::SetUp();
        for (uint64_t b : inode_blocks) {
            for (const lay_extent *e : extents_in(at(b)))
                block = lay_get32(e->len) >= 32 ? lay_get64(e->block) : block;
        }
        ASSERT_NE(block, 0u);
        sums = geo.sums_start + block / LAY_SUMS_ENTRIES;
    }
    le32 &entry(uint64_t of) { return at<lay_sums>(sums).sums[of % LAY_SUMS_ENTRIES]; }
    uint64_t block = 0, sums = 0; // of the file "secret"
};

TEST_F(FsLossOfSums, KeepsThoseThatMatch)
{
    try_damage([&] {
        entry(block + 1) = lay_put32(lay_get32(entry(block + 1)) ^ 3);
        at<uint8_t>(block + 5) ^= 1; // of which the kept checksum tells
    });
    EXPECT_EQ(lost, 2u);
    EXPECT_NE(kept.find(", /secret: bytes 4096 to 8191: cannot be read"), std::string::npos);
    EXPECT_NE(kept.find(", /secret: bytes 20480 to 24575: cannot be read"), std::string::npos);
}

TEST_F(FsLossOfSums, OfABlockWithNoneGoesOn)
{
    try_damage([&] { memset(at(sums), 0x5a, kBlock); });
    EXPECT_EQ(lost, 0u);
}

TEST_F(FsLossOfSums, IsNotForThePreen)
{
    entry(block + 1) = lay_put32(lay_get32(entry(block + 1)) ^ 3);
    const Image damaged = device.image();
    EXPECT_NE(fsck("-p -f").find("exit 4"), std::string::npos);
    EXPECT_TRUE(device.has(damaged));
}

} // namespace
