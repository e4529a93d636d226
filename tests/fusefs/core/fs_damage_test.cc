/* SPDX-License-Identifier: BSD-2-Clause */
// Metadata that cannot be read, or not as it was written: what is corrected, and what is lost.
#include <errno.h>
#include <string.h>

#include "tests/fusefs/core/fs_everything.h"
#include "tests/fusefs/core/sealed_blocks.h"
#include "tests/rounds.h"

namespace
{

class FsDamage : public FsEverything
{
  protected:
    explicit FsDamage(uint64_t bytes = 64u << 20) : FsEverything(bytes) {}
    void SetUp() override
    {
        data_csum = true;
        log.clear();
        opts.log = [](int, const char *line) { log.emplace_back(line); };
        FsTest::SetUp();
        make();
    }
    // One of everything, unmounted.
    void make()
    {
        make_everything();
        geo = *ffs_geometry(fs);
        unmount();
    }
    std::vector<uint64_t> blocks(uint32_t magic)
    {
        return sealed_blocks(device.bytes(), geo, magic);
    }
    // One of the kind that a mount does not read.
    uint64_t block_of(uint32_t magic)
    {
        return blocks(magic).at(magic == LAY_MAGIC_INODES ? 1 : 0);
    }
    // The entries of the segment that one of these blocks is in.
    uint64_t entries_of(uint32_t magic)
    {
        uint64_t block = block_of(magic);
        const auto *head = reinterpret_cast<const lay_head *>(at(block));
        return block - lay_addr_index(lay_get64(head->block));
    }

    lay_geometry geo = {};
    static thread_local std::vector<std::string> log;
};

thread_local std::vector<std::string> FsDamage::log;

constexpr uint32_t KINDS[] = {LAY_MAGIC_INODES, LAY_MAGIC_EXTENTS, LAY_MAGIC_DIR,
                              LAY_MAGIC_XATTR,  LAY_MAGIC_SYMLINK, LAY_MAGIC_SUMS};

TEST_F(FsDamage, ATransientMisreadIsOnlyCounted)
{
    for (uint32_t kind : KINDS) {
        for (uint8_t flips : {1, 3}) {
            ASSERT_EQ(mount(), 0);
            long before = device.changes();
            device.misread(block_of(kind), flips);
            EXPECT_EQ(read_everything(), 0);
            EXPECT_EQ(counts().reread, 1u) << std::hex << kind;
            EXPECT_EQ(counts().corrected + counts().damaged, 0u);
            EXPECT_EQ(device.changes(), before) << "nothing is written";
            write(create("more"), 0, "data");
            EXPECT_EQ(ffs_unlink(root, "more"), 0);
            unmount();
        }
    }
    EXPECT_TRUE(log.empty()) << log[0];
    ASSERT_EQ(mount(), 0);
}

TEST_F(FsDamage, AFlippedBitIsCorrectedOnTheDevice)
{
    for (uint32_t kind : KINDS) {
        for (unsigned byte : {0u, 5u, 9u, 33u, 60u, 300u, 4095u}) {
            log.clear();
            ASSERT_EQ(mount(), 0);
            uint8_t *block = at(block_of(kind));
            block[byte] ^= 0x20;
            EXPECT_EQ(read_everything(), 0) << std::hex << kind << " byte " << std::dec << byte;
            EXPECT_EQ(counts().corrected, 1u);
            EXPECT_EQ(counts().damaged, 0u);
            EXPECT_TRUE(is_sealed(block)) << "written again";
            ASSERT_EQ(log.size(), 1u);
            EXPECT_NE(log[0].find("bit 5 of byte " + std::to_string(byte)), std::string::npos);
            unmount();
            EXPECT_EQ(fsck(), "");
        }
    }
    ASSERT_EQ(mount(), 0);
}

TEST_F(FsDamage, AReadOnlyMountCorrectsInMemory)
{
    opts.read_only = true;
    for (uint32_t kind : KINDS) {
        ASSERT_EQ(mount(), 0);
        uint64_t block = block_of(kind);
        at(block)[100] ^= 1;
        long before = device.changes();
        EXPECT_EQ(read_everything(), 0);
        EXPECT_EQ(counts().corrected, 1u);
        unmount();
        EXPECT_EQ(device.changes(), before);
        EXPECT_FALSE(is_sealed(at(block)));
        at(block)[100] ^= 1;
    }
    opts.read_only = false;
    ASSERT_EQ(mount(), 0);
}

TEST_F(FsDamage, AFlippedBitOfABitmapIsCorrected)
{
    uint64_t block = blocks(LAY_MAGIC_BITMAP).at(0);
    at(block)[1000] ^= 8;
    ASSERT_EQ(mount(), 0);
    write(create("more"), 0, "data");
    EXPECT_EQ(counts().corrected, 1u);
    EXPECT_TRUE(is_sealed(at(block)));
}

// Its age is 0: the device may hold anything there.
TEST_F(FsDamage, ACheckSumBlockThatWasNeverWrittenIsNotRead)
{
    uint64_t written = 0;
    for (uint64_t i = 0; i < geo.sums_blocks; i++) {
        uint8_t *block = at(geo.sums_start + i);
        written += is_sealed(block);
        if (!is_sealed(block))
            memset(block, 0x5a, LAY_BLOCK_SIZE);
    }
    ASSERT_LT(written, geo.sums_blocks);
    ASSERT_EQ(mount(), 0);
    const std::string data = pattern(1, 40u << 20);
    EXPECT_EQ(write(create("long"), 0, data), 40 << 20);
    remount();
    EXPECT_EQ(read_all(lookup("long")), data);
    EXPECT_EQ(counts().corrected, 0u);
    EXPECT_EQ(counts().damaged, 0u);
}

TEST_F(FsDamage, AFlippedBitOfEntriesIsCorrected)
{
    uint64_t block = entries_of(LAY_MAGIC_XATTR);
    at(block)[100] ^= 8;
    expect_everything();
    EXPECT_EQ(counts().corrected, 1u) << "they have the ages of what is read";
    EXPECT_EQ(ffs_removexattr(lookup("attr"), SLOW), 0);
    EXPECT_EQ(counts().corrected, 1u);
}

TEST_F(FsDamage, DamagedEntriesCostChangesOfTheirSegment)
{
    at(entries_of(LAY_MAGIC_XATTR))[100] ^= 3;
    expect_everything();
    Inode f = create("more");
    EXPECT_EQ(ffs_setxattr(f, SLOW, std::string(3000, 'v').data(), 3000, 0), 0)
        << "in another segment";
    EXPECT_EQ(ffs_removexattr(f, SLOW), 0);
    EXPECT_EQ(ffs_removexattr(lookup("attr"), SLOW), -EUCLEAN);
    EXPECT_EQ(write(f, 0, "data"), 4);
    for (int i = 0; i < 200; i++)
        create("name" + std::to_string(i));
    f.reset();
    remount();
    EXPECT_EQ(read_all(lookup("more")), "data");
    EXPECT_EQ(read_everything(), 0);
    check_at_end = false;
}

TEST_F(FsDamage, AFlippedBitOfTheChunkMapIsCorrected)
{
    uint64_t block = blocks(LAY_MAGIC_MAP).at(0);
    at(block)[100] ^= 8;
    expect_everything();
    EXPECT_EQ(counts().corrected, 2u) << "before the mount writes, and when it does";
    EXPECT_TRUE(is_sealed(at(block)));
    unmount();
    EXPECT_EQ(fsck(), "");
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(counts().corrected, 0u);
}

TEST_F(FsDamage, ADamagedChunkMapIsRefused)
{
    uint8_t *block = at(blocks(LAY_MAGIC_MAP).at(0));
    block[100] ^= 3;
    EXPECT_EQ(mount(), -EUCLEAN);
    block[100] ^= 3;
    ASSERT_EQ(mount(), 0);
}

TEST_F(FsDamage, ABlockThatStaysBadCostsItsOwnObjects)
{
    uint64_t block = blocks(LAY_MAGIC_EXTENTS).at(0);
    at(block)[100] ^= 3;
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(read_everything(), -EUCLEAN);
    EXPECT_EQ(counts().damaged, 1u);
    EXPECT_EQ(write(lookup("file"), 0, "new"), -EUCLEAN) << "what cannot be read is not changed";
    EXPECT_EQ(counts().damaged, 1u) << "it is counted once";
    EXPECT_EQ(log.size(), 1u);
    write(create("more"), 0, "data");
    EXPECT_EQ(read_all(lookup("more")), "data");
    EXPECT_EQ(ffs_unlink(root, "link"), 0);
    EXPECT_EQ(ffs_unlink(root, "file"), 0) << "its blocks stay in use";
    unmount();
    ASSERT_EQ(mount(), 0) << "also with the orphan";
    EXPECT_EQ(read_all(lookup("more")), "data");
    EXPECT_EQ(lookup_error(root, "file"), -ENOENT);
    check_at_end = false;
    unmount();
    EXPECT_NE(fsck().find("F406"), std::string::npos) << "the superblock asks for fsck";
}

TEST_F(FsDamage, AReadOnlyMountOnlyTellsOfDamage)
{
    uint64_t block = blocks(LAY_MAGIC_EXTENTS).at(0);
    at(block)[100] ^= 3;
    opts.read_only = true;
    ASSERT_EQ(mount(), 0);
    long before = device.changes();
    EXPECT_EQ(read_everything(), -EUCLEAN);
    EXPECT_EQ(counts().damaged, 1u);
    EXPECT_EQ(ffs_sync(fs), 0);
    unmount();
    EXPECT_EQ(device.changes(), before);
    at(block)[100] ^= 3;
    opts.read_only = false;
    ASSERT_EQ(mount(), 0);
}

TEST_F(FsDamage, ADamagedChecksumBlockCostsReadsOfItsData)
{
    uint64_t block = block_of(LAY_MAGIC_SUMS);
    at(block)[100] ^= 3;
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(read_everything(), -EIO);
    Inode f = create("elsewhere");
    EXPECT_EQ(write(f, 0, pattern(7, 100000)), 100000);
    EXPECT_EQ(read_all(f), pattern(7, 100000));
    f.reset();
    remount();
    EXPECT_EQ(read_all(lookup("elsewhere")), pattern(7, 100000));
    EXPECT_EQ(ffs_unlink(root, "file"), 0);
    check_at_end = false;
}

TEST_F(FsDamage, ADamagedInodeBlockOnTheFreeListStopsNoCreation)
{
    ASSERT_EQ(mount(), 0);
    for (int i = 0; i < 40; i++)
        create("many" + std::to_string(i));
    unmount();
    for (uint64_t block : blocks(LAY_MAGIC_INODES)) {
        const auto *ib = reinterpret_cast<const lay_inode_block *>(at(block));
        if (ib->used != 0xff && lay_get64(ib->head.owner) != 0)
            at(block)[100] ^= 3;
    }
    ASSERT_EQ(mount(), 0);
    for (int i = 0; i < 300; i++)
        write(create("new" + std::to_string(i)), 0, "data");
    EXPECT_GT(counts().damaged, 0u);
    remount();
    EXPECT_EQ(read_all(lookup("new299")), "data");
    check_at_end = false;
}

class FsDamageGroups : public FsDamage
{
  protected:
    FsDamageGroups() : FsDamage(512u << 20) {}
};

TEST_F(FsDamageGroups, ADamagedBitmapCostsItsGroup)
{
    std::vector<uint64_t> bitmaps = blocks(LAY_MAGIC_BITMAP);
    ASSERT_GT(bitmaps.size(), 0u);
    at(bitmaps[0])[1000] ^= 3;
    expect_everything();
    Inode f = create("more");
    EXPECT_EQ(write(f, 0, pattern(1, 1 << 20)), 1 << 20) << "in another group";
    EXPECT_EQ(read_all(f), pattern(1, 1 << 20));
    EXPECT_EQ(truncate(f, 0), 0);
    EXPECT_EQ(truncate(lookup("file"), 0), -EUCLEAN) << "its blocks are in the damaged group";
    EXPECT_EQ(write(f, 0, "again"), 5);
    f.reset();
    remount();
    EXPECT_EQ(read_all(lookup("more")), "again");
    check_at_end = false;
}

// A drive that has acknowledged and lost the write of a block: an older state of it, sound in
// itself, is found when it is first read, and never taken for the present one (R10).
class FsStale : public FsDamage
{
  protected:
    FsStale() : FsDamage(32u << 20) {}
    void SetUp() override
    {
        FsDamage::SetUp();
        change('a');
        old = device.image();
        change('b');
        now = device.image();
        check_at_end = false;
    }
    // Every kind of block changes, and keeps its place.
    void change(char version)
    {
        ASSERT_EQ(mount(), 0);
        Inode d = lookup("dir"), f = lookup("file"), x = lookup("attr");
        for (int i = 0; i < 200; i++)
            create(d, version + std::to_string(i));
        for (uint64_t i = 0; i < 100; i++)
            write(f, (i + 100 * (1 + version - 'a')) * 8192, "data");
        EXPECT_EQ(ffs_setxattr(x, "user.constant", "", 0, 0), 0);
        EXPECT_EQ(ffs_setxattr(x, "user.x", std::string(300, version).data(), 300, 0), 0);
        d.reset(), f.reset(), x.reset();
        unmount();
    }
    // Uses what only changes need: bitmaps, entries, free inodes.
    void exercise()
    {
        const std::string value(3000, 'z');
        Inode d, f;
        for (int i = 0; i < 20; i++) {
            if (ffs_mknod(root, ("new" + std::to_string(i)).c_str(), S_IFREG, 0, &cred, f.out()))
                continue;
            ffs_setxattr(f, "user.x", value.data(), value.size(), 0);
            write(f, 0, value);
        }
        if (ffs_lookup(root, "dir", d.out()) == 0) {
            for (int i = 0; i < 200; i++)
                ffs_unlink(d, ("b" + std::to_string(i)).c_str());
        }
        for (const char *name : {"file", "attr", "link"})
            ffs_unlink(root, name);
        ffs_sync(fs);
    }
    const uint8_t *in(const Image &image, uint64_t block) { return &image[block * 4096]; }
    // The blocks in use of which both images have a sound state.
    std::vector<uint64_t> changed_blocks(uint32_t magic)
    {
        std::vector<uint64_t> changed;
        for (uint64_t block : sealed_blocks(now.data(), geo, magic)) {
            const auto *was = reinterpret_cast<const lay_head *>(in(old, block));
            const auto *is = reinterpret_cast<const lay_head *>(in(now, block));
            const uint64_t addr = lay_get64(is->block), index = lay_addr_index(addr);
            const auto *entries = reinterpret_cast<const lay_entries *>(in(now, block - index));
            if (was->block.le == is->block.le && was->magic.le == is->magic.le &&
                is_sealed(in(old, block)) && memcmp(was, is, 4096) != 0 &&
                (lay_addr_kind(addr) != LAY_KIND_CHUNK ||
                 entries->used[index / 8] >> index % 8 & 1))
                changed.push_back(block);
        }
        return changed;
    }
    void put_old(uint64_t block)
    {
        device.put(now);
        memcpy(at(block), in(old, block), 4096);
    }

    Image old, now;
};

TEST_F(FsStale, StatesOfEveryKindAreFound)
{
    for (uint32_t magic :
         {LAY_MAGIC_BITMAP, LAY_MAGIC_SUMS, LAY_MAGIC_MAP, LAY_MAGIC_ENTRIES, LAY_MAGIC_AGES,
          LAY_MAGIC_INODES, LAY_MAGIC_EXTENTS, LAY_MAGIC_DIR, LAY_MAGIC_XATTR}) {
        std::vector<uint64_t> blocks = changed_blocks(magic);
        EXPECT_FALSE(blocks.empty()) << std::hex << magic;
        blocks.resize(std::min<size_t>(blocks.size(), static_cast<size_t>(test_rounds(3, 8))));
        for (uint64_t block : blocks) {
            put_old(block);
            int err = mount();
            if (err) {
                EXPECT_EQ(err, -EUCLEAN) << block;
                continue;
            }
            read_everything();
            exercise();
            EXPECT_GT(counts().damaged, 0u) << "block " << block << " of " << std::hex << magic;
            end_mount();
        }
    }
    device.put(now);
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(read_everything(), 0);
    exercise();
    EXPECT_EQ(counts().damaged, 0u);
}

// A change of the size that moves all areas would make it the present state.
TEST_F(FsStale, AStateIsNotCopiedByAShrink)
{
    const uint64_t smaller = geo.blocks - LAY_SUMS_ENTRIES;
    for (uint32_t magic : {LAY_MAGIC_SUMS, LAY_MAGIC_BITMAP}) {
        for (uint64_t block : changed_blocks(magic)) {
            put_old(block);
            ASSERT_EQ(mount(), 0);
            EXPECT_EQ(ffs_shrink(fs, smaller), -EUCLEAN) << block;
            EXPECT_EQ(ffs_geometry(fs)->blocks, geo.blocks);
            end_mount();
        }
    }
    device.put(now);
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(ffs_shrink(fs, smaller), 0);
    EXPECT_EQ(read_everything(), 0);
}

} // namespace
