/* SPDX-License-Identifier: BSD-2-Clause */
/* fsck.gpunvme repairs large attributes, and file systems in which no block is free. */
#include <cstring>

#include "tests/mkfs/repair_fixture.h"

namespace
{

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
