/* SPDX-License-Identifier: BSD-2-Clause */
// The background scrub: what it finds where nobody else reads, and that it disturbs nobody.
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "support/clock.h"
#include "tests/fusefs/core/fs_everything.h"
#include "tests/fusefs/core/sealed_blocks.h"

namespace
{

constexpr uint64_t FAST = 1ull << 40; // bytes per second

class FsScrubber : public FsEverything
{
  protected:
    FsScrubber() : FsEverything(64u << 20) {}
    void SetUp() override
    {
        data_csum = true;
        logged = 0;
        opts.log = [](int, const char *line) { logged += strstr(line, "damaged") != nullptr; };
        FsTest::SetUp();
        make_everything();
        remount();
        geo = *ffs_geometry(fs);
    }
    uint64_t block_of(uint32_t magic) { return sealed_blocks(device.bytes(), geo, magic).at(0); }

    lay_geometry geo = {};
    static std::atomic<int> logged; // lines about damage
};

std::atomic<int> FsScrubber::logged;

TEST_F(FsScrubber, CorrectsOneFlippedBitOfEachKindOfBlock)
{
    std::vector<uint64_t> flipped = {0, LAY_LABEL_SECOND, geo.supers[0], geo.supers[1]};
    for (uint32_t magic :
         {LAY_MAGIC_MAP, LAY_MAGIC_BITMAP, LAY_MAGIC_SUMS, LAY_MAGIC_AGES, LAY_MAGIC_ENTRIES,
          LAY_MAGIC_INODES, LAY_MAGIC_EXTENTS, LAY_MAGIC_DIR, LAY_MAGIC_XATTR, LAY_MAGIC_SYMLINK})
        flipped.push_back(block_of(magic));
    for (uint64_t block : flipped)
        at(block)[300] ^= 0x20;
    scrub();
    for (uint64_t block : flipped)
        EXPECT_TRUE(is_sealed(at(block))) << block;
    EXPECT_EQ(scrub_counts().found, flipped.size());
    EXPECT_EQ(scrub_counts().corrected, flipped.size());
    EXPECT_EQ(counts().damaged, 0u);
    scrub();
    EXPECT_EQ(scrub_counts().found, flipped.size()) << "there is nothing left to find";
}

TEST_F(FsScrubber, CountsDamageAndLogsItOnce)
{
    uint64_t block = block_of(LAY_MAGIC_XATTR);
    at(block)[300] ^= 3;
    scrub(3);
    EXPECT_GE(scrub_counts().found, 3u);
    EXPECT_EQ(scrub_counts().corrected, 0u);
    EXPECT_EQ(counts().damaged, 1u);
    EXPECT_EQ(logged, 1);
    at(block)[300] ^= 3;
    check_at_end = false; // the superblock asks for it
}

TEST_F(FsScrubber, FindsAnOlderVersionOfABlock)
{
    uint64_t block = block_of(LAY_MAGIC_XATTR);
    auto *head = reinterpret_cast<lay_head *>(at(block));
    const lay_head before = *head;
    lay_seal(head, lay_get64(head->tid) + 1);
    scrub();
    EXPECT_EQ(counts().damaged, 1u) << "it is sound by itself";
    *head = before;
    check_at_end = false;
}

TEST_F(FsScrubber, WritesALostCopyOfTheSuperblockAgain)
{
    for (unsigned lost : {0u, 1u}) {
        memset(at(geo.supers[lost]), 0, 4096);
        scrub();
        EXPECT_EQ(memcmp(at(geo.supers[0]), at(geo.supers[1]), 4096), 0);
        EXPECT_TRUE(is_sealed(at(geo.supers[lost])));
    }
    EXPECT_EQ(scrub_counts().corrected, 2u);
    EXPECT_EQ(counts().damaged, 0u);
}

TEST_F(FsScrubber, NeverOverwritesWhatIsNoLabel)
{
    const std::string other(4096, 'x'), label(reinterpret_cast<char *>(at(0)), 4096);
    memcpy(at(0), other.data(), 4096);
    scrub();
    EXPECT_EQ(memcmp(at(0), other.data(), 4096), 0);
    EXPECT_EQ(counts().damaged, 1u);
    memcpy(at(0), label.data(), 4096);
    check_at_end = false;
}

TEST_F(FsScrubber, CountsWrongDataAndLeavesIt)
{
    Inode f = lookup("file");
    ffs_segment segment;
    ASSERT_EQ(ffs_extents(f, 0, &segment, 1), 1);
    device.bytes()[segment.device] ^= 1;
    const uint8_t wrong = device.bytes()[segment.device];
    scrub();
    EXPECT_EQ(scrub_counts().found, 1u);
    EXPECT_EQ(scrub_counts().corrected, 0u);
    EXPECT_EQ(device.bytes()[segment.device], wrong);
    EXPECT_EQ(logged, 1);
    device.bytes()[segment.device] ^= 1;
}

TEST_F(FsScrubber, KeepsTheRate)
{
    write(create("long"), 0, pattern(1, 4 << 20));
    const uint64_t rate = 16 << 20, begun = now_ns();
    scrub(1, rate);
    const double seconds = static_cast<double>(now_ns() - begun) / NS_PER_S;
    EXPECT_GT(scrub_counts().bytes, 4u << 20);
    EXPECT_LT(static_cast<double>(scrub_counts().bytes), 1.1 * rate * seconds + (1 << 20));
    EXPECT_GT(scrub_counts().last, 0u);
}

// The first block alone would take an hour.
TEST_F(FsScrubber, EndsAtOnce)
{
    ASSERT_EQ(ffs_scrub_start(fs, 1, 0), 0);
    ffs_scrub_stop(fs);
    ASSERT_EQ(ffs_scrub_start(fs, 1, 0), 0);
    while (scrub_counts().bytes == 0)
        usleep(200);
    ASSERT_EQ(ffs_scrub_start(fs, 1, 0), 0) << "in place of the first";
    unmount();
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(scrub_counts().passes, 0u);
}

// Files come and go, with commits and checkpoints all the time, while the scrub reads.
class FsScrubberWriter : public FsScrubber
{
  protected:
    void write_and_scrub()
    {
        opts.no_thread = false;
        opts.commit_ms = 1;
        device.before_submit = [](bd_io *ios, size_t) {
            if (ios[0].op != BD_READ)
                usleep(2000);
            return 0;
        };
        ASSERT_EQ(mount(), 0);
        ASSERT_EQ(ffs_scrub_start(fs, FAST, 0), 0);
        for (uint64_t i = 0; i < 300 || scrub_counts().passes < 5; i++)
            step(i);
        ffs_scrub_stop(fs);
        EXPECT_EQ(scrub_counts().found, 0u);
        EXPECT_EQ(counts().damaged, 0u);
        EXPECT_EQ(logged, 0);
        unmount();
        device.before_submit = nullptr;
        ASSERT_EQ(mount(), 0);
    }

  private:
    // A checkpoint follows when nothing was committed for a turn.
    void step(uint64_t i)
    {
        const std::string name = "f" + std::to_string(i % 50), value(3000, 'w');
        Inode f = i % 100 < 50 ? create(name) : lookup(name);
        write(f, i * 4096 % (1 << 20), pattern(i, 9000));
        EXPECT_EQ(ffs_setxattr(f, "user.slow", value.data(), value.size(), 0), 0);
        if (i % 100 >= 50) {
            EXPECT_EQ(ffs_unlink(root, name.c_str()), 0);
        }
        if (i % 10 == 0)
            usleep(20000);
    }
};

TEST_F(FsScrubberWriter, NothingIsFound)
{
    unmount();
    write_and_scrub();
}

// Without data a pass is short, so that many of them meet the time of a checkpoint in which the
// ages that are named are ahead of what is in place.
TEST_F(FsScrubberWriter, NothingIsFoundDuringCheckpoints)
{
    unmount();
    data_csum = false;
    format();
    write_and_scrub();
}

TEST_F(FsScrubber, NeedsAWritableMount)
{
    opts.read_only = true;
    remount();
    EXPECT_EQ(ffs_scrub_start(fs, FAST, 0), -EROFS);
    ffs_scrub_stop(fs);
    opts.read_only = false;
}

} // namespace
