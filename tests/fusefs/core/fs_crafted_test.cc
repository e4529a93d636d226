/* SPDX-License-Identifier: BSD-2-Clause */
// Images whose checksums are right and whose contents are not: what an attacker would have mounted.
#include <string.h>

#include <algorithm>
#include <functional>

#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/image_repair.h"

namespace
{

class FsCrafted : public FsTest
{
  protected:
    void SetUp() override
    {
        FsTest::SetUp();
        check_at_end = false;
        ASSERT_EQ(image_geometry(device.bytes(), &geo), 0);
    }
    lay_super &super() { return at<lay_super>(geo.supers[0]); }
    // The first image of a block that recovery would find.
    uint8_t *logged(uint64_t block)
    {
        uint64_t tail = lay_get64(image_newest_commit(device.bytes(), &geo)->tail_pos);
        for (uint64_t pos = tail; pos < geo.log_blocks; pos++) {
            auto *head = &at<lay_head>(geo.log_start + pos);
            if (image_is_metadata(reinterpret_cast<uint8_t *>(head)) &&
                lay_get64(head->block) == block)
                return reinterpret_cast<uint8_t *>(head);
        }
        return nullptr;
    }

    // Lets `change` change the slot of an inode, and seals the block again.
    void change_inode(uint64_t ino, const std::function<void(lay_inode &)> &change)
    {
        for (uint64_t block = 1; block < geo.blocks; block++) {
            auto &ib = at<lay_inode_block>(block);
            if (lay_get32(ib.head.magic) != LAY_MAGIC_INODES ||
                lay_get64(ib.head.owner) != ino - ino % LAY_INODES_PER_BLOCK)
                continue;
            change(ib.inodes[ino % LAY_INODES_PER_BLOCK]);
            image_seal_block(device.bytes(), &geo, reinterpret_cast<uint8_t *>(&ib));
        }
    }
    void fill_log(uint64_t pos, uint64_t n, const lay_log_commit *commit);

    lay_geometry geo = {};
};

TEST_F(FsCrafted, AnUnsoundSuperblockDoesNotChangeTheGeometryInUse)
{
    unmount();
    super().area.bitmaps[0] = lay_put64(geo.blocks - 1);
    super().area.blocks = lay_put64(LAY_MAX_BLOCKS);
    image_seal_super(device.bytes(), &geo);
    EXPECT_EQ(mount(), -EUCLEAN);
}

TEST_F(FsCrafted, AnAttributeOfDamagedLengthIsRemovedWithItsParts)
{
    Inode f = create_with("f", "x");
    const uint64_t before = free_blocks();
    const std::string value(9000, 'v');
    ASSERT_EQ(ffs_setxattr(f, "user.a", value.data(), value.size(), 0), 0);
    f.reset();
    unmount();
    unsigned found = 0;
    for (uint64_t block = 1; block < geo.blocks; block++) {
        bool logged = block >= geo.log_start && block < geo.log_start + geo.log_blocks;
        if (logged || lay_get32(at<lay_head>(block).magic) != LAY_MAGIC_XATTR)
            continue;
        for (const lay_xattr *x = nullptr; (x = lay_xattr_next(&at<lay_xattr_block>(block), x));) {
            if (*lay_xattr_name(x) != LAY_XATTR_HEAD)
                continue;
            memset(const_cast<uint8_t *>(lay_xattr_value(x)), 0xff, sizeof(le32));
            image_seal_block(device.bytes(), &geo, &at<uint8_t>(block));
            found++;
            break;
        }
    }
    ASSERT_EQ(found, 1u);
    ASSERT_EQ(mount(), 0);
    f = lookup("f");
    EXPECT_EQ(ffs_getxattr(f, "user.a", nullptr, 0), -EIO);
    EXPECT_EQ(ffs_removexattr(f, "user.a"), 0);
    EXPECT_EQ(free_blocks(), before);
    f.reset();
    check_at_end = true;
}

// A commit that nobody would read acknowledges nothing.
TEST_F(FsCrafted, NumbersOfTransactionsEnd)
{
    unmount();
    lay_log_commit *newest = image_newest_commit(device.bytes(), &geo);
    newest->tail_tid = lay_put64(LAY_MAX_TID);
    lay_seal(newest, LAY_MAX_TID);
    EXPECT_EQ(mount(), -EOVERFLOW);
    EXPECT_EQ(image_newest_commit(device.bytes(), &geo), newest) << "none was written";
}

TEST_F(FsCrafted, AJournalledSuperblockThatDoesNotFitTheLabelIsRefused)
{
    const std::function<void(lay_super *)> changes[] = {
        [](lay_super *sb) {
            sb->area.blocks = lay_put64(lay_get64(sb->area.blocks) + LAY_GROUP_BLOCKS);
        },
        [](lay_super *sb) { sb->area.blocks = lay_put64(LAY_MIN_BLOCKS); },
        [](lay_super *sb) { sb->area.bitmaps[0] = lay_put64(LAY_LABEL_SECOND); },
        [](lay_super *sb) { sb->area.bitmaps[0] = lay_put64(lay_get64(sb->area.blocks)); },
    };
    write(create("f"), 0, "data");
    ASSERT_EQ(ffs_sync(fs), 0);
    crash();
    const Image crashed = device.image();
    for (const auto &change : changes) {
        device.put(crashed);
        uint8_t *image = logged(LAY_ADDR_SUPER);
        ASSERT_TRUE(image);
        change(reinterpret_cast<lay_super *>(image));
        image_repair_log(device.bytes(), &geo);
        EXPECT_EQ(mount(), -EUCLEAN);
        if (fs) {
            write(create("g"), 0, std::string(100000, 'g'));
            unmount();
        }
    }
}

// A leaf that two branches name: without a check for the range of the second, each level of such a
// tree multiplies the way to the end of the directory.
class TwoBranches : public FsCrafted
{
  protected:
    // Of a directory of 300 names, branch `from` names the leaf of branch `to`. Returns the key of
    // the second.
    uint64_t make(unsigned from, unsigned to)
    {
        Inode d = mkdir("d");
        for (int i = 0; i < 300; i++)
            create(d, "name" + std::to_string(i));
        uint64_t ino = ffs_ino(d), second = 0;
        d.reset();
        unmount();
        for (uint64_t block = 1; block < geo.blocks; block++) {
            auto &node = at<lay_node>(block);
            if (lay_get32(node.head.magic) != LAY_MAGIC_DIR || lay_get64(node.head.owner) != ino ||
                lay_get16(node.level) == 0)
                continue;
            second = lay_get64(node.u.branches[1].key);
            node.u.branches[from].child = node.u.branches[to].child;
            image_seal_block(device.bytes(), &geo, reinterpret_cast<uint8_t *>(&node));
        }
        EXPECT_EQ(mount(), 0);
        return second;
    }
    // Names from the position on, up to `most` of them.
    int list(uint64_t position, unsigned most, unsigned *names)
    {
        struct Names {
            unsigned n, most;
        } counted = {0, most};
        auto count = [](void *arg, const char *, size_t, uint64_t, uint8_t, uint64_t) {
            auto *c = static_cast<Names *>(arg);
            return ++c->n == c->most ? 1 : 0;
        };
        int err = ffs_readdir(lookup("d"), position, count, &counted);
        *names = counted.n;
        return err;
    }
};

TEST_F(TwoBranches, ANodeIsUsedInOneRangeOnly)
{
    unsigned names;
    make(1, 0);
    EXPECT_EQ(list(0, 1000, &names), -EUCLEAN);
    EXPECT_LT(names, 300u);
}

TEST_F(TwoBranches, ANodeOfALaterRangeIsNotUsedInAnEarlierOne)
{
    unsigned names;
    uint64_t second = make(0, 1);
    EXPECT_GE(list(second, 1, &names), 0);
    EXPECT_EQ(names, 1u) << "the leaf has been checked for its own range";
    EXPECT_EQ(list(0, 1000, &names), -EUCLEAN);
}

// The search of its predecessor visits the inodes of the list, and keeps a reference of none.
TEST_F(FsCrafted, AnInodeFalselyOnTheOrphanListTakesNoReference)
{
    const uint64_t ino = ffs_ino(create("liar"));
    unmount();
    change_inode(ino, [](lay_inode &slot) { slot.next_orphan = lay_put64(LAY_NONE); });
    ASSERT_EQ(mount(), 0);
    Inode open = create("open"), liar = lookup("liar");
    ASSERT_EQ(ffs_unlink(root, "open"), 0);
    ASSERT_EQ(ffs_unlink(root, "liar"), 0);
    liar.reset();
    EXPECT_EQ(write(open, 0, "data"), -EROFS) << "the damage has been found";
    EXPECT_EQ(attr(open).nlink, 0u);
}

// Each inode leaves the list before the next is finished, so the ring is found where it begins.
TEST_F(FsCrafted, AnOrphanListThatIsARingEnds)
{
    const uint64_t inos[] = {ffs_ino(create("f0")), ffs_ino(create("f1"))};
    unmount();
    for (int i = 0; i < 2; i++)
        change_inode(inos[i], [&](lay_inode &slot) { slot.next_orphan = lay_put64(inos[1 - i]); });
    super().orphan = lay_put64(inos[0]);
    image_seal_super(device.bytes(), &geo);
    EXPECT_EQ(mount(), -EUCLEAN);
}

// n positions of the log, from `pos` on, with records of the commit's transaction.
void FsCrafted::fill_log(uint64_t pos, uint64_t n, const lay_log_commit *commit)
{
    const uint64_t tid = lay_get64(commit->head.tid), addr = LAY_ADDR_CHUNK(0, 400);
    while (n > 0) {
        auto *desc = &at<lay_log_descriptor>(geo.log_start + pos);
        uint64_t count = std::min<uint64_t>(LAY_LOG_TAGS, n - 1);
        count -= n - 1 - count == 1; // a descriptor has an image
        lay_log_init(desc, LAY_MAGIC_JDESC, &geo, &commit->incarnation, pos);
        desc->count = lay_put32(static_cast<uint32_t>(count));
        pos = lay_log_after(&geo, pos);
        for (uint64_t i = 0; i < count; i++, pos = lay_log_after(&geo, pos)) {
            auto *image = &at<lay_head>(geo.log_start + pos);
            memset(image, 0, LAY_BLOCK_SIZE);
            lay_head_init(image, LAY_MAGIC_XATTR, geo.uuid, addr, LAY_INO_ROOT);
            lay_seal(image, tid);
            desc->tags[i].block = lay_put64(addr);
            desc->tags[i].age = lay_put32(lay_age(image));
        }
        lay_seal(desc, tid);
        n -= count + 1;
    }
}

TEST_F(FsCrafted, ATransactionIsNotLongerThanTheLog)
{
    // All positions but that of the newest commit, which says that the log begins behind it.
    crash();
    lay_log_commit *newest = image_newest_commit(device.bytes(), &geo);
    uint64_t tid = lay_get64(newest->head.tid),
             last = lay_addr_number(lay_get64(newest->head.block));
    fill_log(lay_log_after(&geo, last), geo.log_blocks - 1, newest);
    newest->tail_tid = lay_put64(tid);
    newest->tail_pos = lay_put64(lay_log_after(&geo, last));
    newest->blocks = lay_put32(static_cast<uint32_t>(geo.log_blocks));
    image_repair_log(device.bytes(), &geo);
    EXPECT_EQ(mount(), -EUCLEAN) << "it leaves no room for the commit of a mount";
}

class HoleInAUnit : public FsCrafted
{
  protected:
    // A GPU-bound file of these units, whose extents `change` spoils.
    void craft(unsigned units, const std::function<void(lay_inode &)> &change)
    {
        struct ffs_attr flags = {};
        flags.flags = LAY_INODE_GPU_BOUND;
        Inode f = create("f");
        ASSERT_EQ(ffs_setattr(f, &flags, FFS_SET_FLAGS, nullptr), 0);
        write(f, 0, std::string((units - 1) * (2u << 20) + 1, 'd'));
        const uint64_t ino = ffs_ino(f);
        f.reset();
        unmount();
        change_inode(ino, change);
    }
    void expect_refused(const std::string &data)
    {
        ASSERT_EQ(mount(), 0);
        EXPECT_EQ(write(lookup("f"), 200 * 4096, data), -EUCLEAN) << data.size();
        end_mount();
    }
};

// The rest of the unit alone, and with the next one.
TEST_F(HoleInAUnit, ThatReachesItsEndIsNotFilled)
{
    craft(1, [](lay_inode &inode) {
        inode.map.extents[0].len = lay_put32(100);
        inode.blocks = lay_put64(100);
    });
    expect_refused("x");
    expect_refused(std::string(3u << 20, 'x'));
}

// As long as a unit, from inside of one to inside of the next.
TEST_F(HoleInAUnit, OfTheSameLengthIsNotFilled)
{
    craft(2, [](lay_inode &inode) {
        lay_extent *e = inode.map.extents;
        ASSERT_EQ(lay_get16(inode.map_count), 1) << "the units are not adjacent";
        e[1] = {lay_put64(612), lay_put64(lay_get64(e[0].block) + 612), lay_put32(412), e[0].flags,
                e[0].device};
        e[0].len = lay_put32(100);
        inode.map_count = lay_put16(2);
        inode.blocks = lay_put64(512);
    });
    expect_refused(std::string(450 * 4096, 'x'));
}

// --- Chunks -------------------------------------------------------------------------------------

class CraftedChunks : public FsCrafted
{
  protected:
    lay_map_block &map() { return at<lay_map_block>(geo.map_start); }
    void expect_refused(const char *what)
    {
        image_seal_block(device.bytes(), &geo, reinterpret_cast<uint8_t *>(&map()));
        image_seal_super(device.bytes(), &geo);
        EXPECT_EQ(mount(), -EUCLEAN) << what;
        unmount();
    }
};

TEST_F(CraftedChunks, AMapThatCannotBeIsRefused)
{
    unmount();
    const Image sound = device.image();
    const uint64_t first = lay_get64(map().slots[0].places[0]);
    const struct {
        const char *what;
        std::function<void()> change;
    } changes[] = {
        {"two chunks at one place", [&] { lay_slot_set(&map().slots[1], first, LAY_NONE); }},
        {"a chunk that is not there", [&] { lay_slot_set(&map().slots[1], LAY_NONE, LAY_NONE); }},
        {"a chunk too many", [&] { lay_slot_set(&map().slots[2], first + 8 * 512, LAY_NONE); }},
        {"more chunks than the map has", [&] { super().chunks = lay_put64(3); }},
        {"fewer chunks than the map has", [&] { super().chunks = lay_put64(1); }},
        {"without chunk 0", [&] { lay_slot_set(&map().slots[0], LAY_NONE, LAY_NONE); }},
    };
    for (const auto &c : changes) {
        device.put(sound);
        c.change();
        expect_refused(c.what);
    }
}

// Space of a chunk that were free would be given to other data.
TEST_F(CraftedChunks, AnExtentInAChunkIsNotFreed)
{
    Inode f = create("f"), g = create("g");
    ASSERT_EQ(write(f, 0, std::string(8192, 'd')), 8192);
    uint64_t ino = ffs_ino(f), chunk = lay_get64(map().slots[1].places[0]);
    f.reset(), g.reset();
    unmount();
    change_inode(ino, [&](lay_inode &inode) {
        inode.map.extents[0].block = lay_put64(chunk + 510);
        inode.map.extents[0].len = lay_put32(1 + (chunk / 512) % 2);
        inode.blocks = lay_put64(1 + (chunk / 512) % 2);
    });
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(truncate(lookup("f"), 0), -EUCLEAN);
    EXPECT_EQ(write(lookup("g"), 0, "data"), -EROFS);
    end_mount();
}

TEST_F(CraftedChunks, AnAddressOfNoChunkCostsItsOwnObject)
{
    Inode f = create("f"), g = create("g");
    std::string value(3000, 'v');
    ASSERT_EQ(ffs_setxattr(f, "user.a", value.data(), value.size(), 0), 0);
    uint64_t ino = ffs_ino(f);
    f.reset(), g.reset();
    unmount();
    change_inode(ino, [&](lay_inode &inode) {
        inode.xattr = lay_put64(LAY_ADDR_CHUNK(lay_segments(&geo) - 1, 7));
    });
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(ffs_getxattr(lookup("f"), "user.a", value.data(), value.size()), -EUCLEAN);
    EXPECT_EQ(write(lookup("f"), 0, "data"), 4);
    EXPECT_EQ(ffs_setxattr(lookup("g"), "user.a", value.data(), value.size(), 0), 0);
    unmount();
}

// --- Blocks of another attempt ------------------------------------------------------------------

// A transaction that was begun twice leaves blocks of both attempts, each sound by itself.
class Splice : public FsCrafted
{
  protected:
    void SetUp() override
    {
        FsCrafted::SetUp();
        write(create("f"), 0, "data");
        ASSERT_EQ(ffs_sync(fs), 0);
        crash();
        image = logged(LAY_ADDR_SUPER);
        ASSERT_TRUE(image);
        auto *sb = reinterpret_cast<lay_super *>(image);
        sb->mounts = lay_put64(lay_get64(sb->mounts) + 1);
        image_repair_block(image);
    }
    // The tag of the image; the descriptor is before the first image.
    lay_tag *tag(lay_log_descriptor **desc)
    {
        uint8_t *at = image;
        unsigned index = 0;
        do {
            at -= LAY_BLOCK_SIZE;
            index++;
        } while (lay_get32(reinterpret_cast<lay_head *>(at)->magic) != LAY_MAGIC_JDESC);
        *desc = reinterpret_cast<lay_log_descriptor *>(at);
        return &(*desc)->tags[index - 1];
    }
    void expect_refused()
    {
        const Image before = device.image();
        EXPECT_EQ(mount(), -EUCLEAN);
        EXPECT_TRUE(device.has(before));
    }

    uint8_t *image = nullptr;
};

TEST_F(Splice, OfAnImageIsNoticedByItsTag)
{
    expect_refused();
}

TEST_F(Splice, OfAnImageAndItsDescriptorIsNoticedByTheCommit)
{
    lay_log_descriptor *desc;
    tag(&desc)->age = lay_put32(lay_age(image));
    image_repair_block(reinterpret_cast<uint8_t *>(desc));
    expect_refused();
}

TEST_F(Splice, OfAllOfTheTransactionIsTheTransaction)
{
    image_repair_log(device.bytes(), &geo);
    EXPECT_EQ(mount(), 0);
}

} // namespace
