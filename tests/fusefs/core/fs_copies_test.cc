/* SPDX-License-Identifier: BSD-2-Clause */
// Tests metadata with two places: a damaged place is read from the other one
// and written again.
#include <errno.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <future>

#include "tests/fusefs/core/fs_everything.h"
#include "tests/fusefs/core/sealed_blocks.h"
#include "tests/fusefs/core/space_probe.h"

namespace
{

enum Damage { ZERO, GARBAGE, OLD, MISDIRECTED, UNREADABLE, DAMAGES };
const char *const NAMES[] = {"zeros", "garbage", "an older state", "another block", "unreadable"};

// The kinds of blocks that read_everything() reads. A mount has already read
// the first inode block.
constexpr uint32_t READ[] = {LAY_MAGIC_EXTENTS, LAY_MAGIC_DIR,     LAY_MAGIC_XATTR,
                             LAY_MAGIC_SYMLINK, LAY_MAGIC_SUMS,    LAY_MAGIC_INODES,
                             LAY_MAGIC_MAP,     LAY_MAGIC_ENTRIES, LAY_MAGIC_AGES};

class FsCopies : public FsEverything
{
  protected:
    void SetUp() override
    {
        data_csum = meta_copies = true;
        FsTest::SetUp();
        make();
        check_at_end = false; // tests that want a check make it themselves
        sound = device.image();
    }
    void make()
    {
        make_everything();
        geo = *ffs_geometry(fs);
        unmount();
    }
    // Returns the two places of a block of this kind that is in use.
    std::vector<uint64_t> places_of(uint32_t magic)
    {
        std::map<uint64_t, std::vector<uint64_t>> by_address;
        for (uint64_t block : sealed_blocks(sound.data(), geo, magic)) {
            const auto *head = reinterpret_cast<const lay_head *>(&sound[block * 4096]);
            by_address[lay_get64(head->block)].push_back(block);
        }
        auto chosen = by_address.begin();
        if (magic == LAY_MAGIC_INODES)
            ++chosen;
        return chosen->second;
    }
    void damage(uint64_t block, Damage how)
    {
        auto *head = reinterpret_cast<lay_head *>(at(block));
        if (how == ZERO)
            memset(at(block), 0, 4096);
        else if (how == GARBAGE)
            memset(at(block) + 512, 0xa5, 2048);
        else if (how == OLD)
            lay_seal(head, lay_get64(head->tid) - 1);
        else if (how == MISDIRECTED)
            memcpy(at(block), at(geo.supers[0]), 4096);
        else
            device.make_unreadable(block);
    }
    void restore()
    {
        device.put(sound);
        device.make_unreadable(UINT64_MAX);
    }
    bool is_sound(uint64_t block) { return memcmp(at(block), &sound[block * 4096], 4096) == 0; }
    // Expects this exit status of fsck, and no output if it is 0.
    void expect_fsck(const char *how, int status)
    {
        std::string said = fsck(how), end = "exit " + std::to_string(status);
        if (status == 0)
            EXPECT_EQ(said, "");
        else
            EXPECT_EQ(said.substr(said.size() - end.size()), end) << said;
    }

    lay_geometry geo = {};
    Image sound;
};

TEST_F(FsCopies, EveryKindHasTwoEqualPlaces)
{
    for (uint32_t magic : READ) {
        std::vector<uint64_t> places = places_of(magic);
        ASSERT_EQ(places.size(), 2u) << std::hex << magic;
        EXPECT_EQ(memcmp(at(places[0]), at(places[1]), 4096), 0);
        EXPECT_LT(places[0], geo.supers[1]) << "they are in different halves";
        EXPECT_GT(places[1], geo.supers[1]);
    }
    EXPECT_EQ(places_of(LAY_MAGIC_BITMAP).size(), 2u);
    expect_fsck("-n", 0);
}

// A damaged place of any kind is written again when its block is read.
TEST_F(FsCopies, AReadTakesTheOtherPlaceAndWritesTheFirstAgain)
{
    for (uint32_t magic : READ) {
        for (unsigned how = ZERO; how < DAMAGES; how++) {
            SCOPED_TRACE(std::string(reinterpret_cast<const char *>(&magic), 4) + ": " +
                         NAMES[how]);
            restore();
            uint64_t place = places_of(magic).at(0);
            damage(place, static_cast<Damage>(how));
            expect_everything();
            // A block of ages or entries may have been read before the mount
            // began to write.
            if (magic == LAY_MAGIC_AGES || magic == LAY_MAGIC_ENTRIES)
                scrub();
            EXPECT_EQ(counts().copied, 1u);
            EXPECT_EQ(counts().damaged + counts().corrected, 0u);
            unmount();
            EXPECT_TRUE(is_sealed(at(place)));
            expect_fsck("-n", 0);
        }
    }
}

TEST_F(FsCopies, TheScrubRepairsEitherPlace)
{
    std::vector<uint32_t> kinds(std::begin(READ), std::end(READ));
    kinds.push_back(LAY_MAGIC_BITMAP);
    for (unsigned place : {0u, 1u}) {
        for (unsigned how = ZERO; how < UNREADABLE; how++) {
            restore();
            ASSERT_EQ(mount(), 0);
            for (uint32_t magic : kinds)
                damage(places_of(magic).at(place), static_cast<Damage>(how));
            scrub();
            EXPECT_EQ(counts().copied, kinds.size()) << NAMES[how] << " in " << place;
            EXPECT_EQ(counts().damaged, 0u);
            for (uint32_t magic : kinds)
                EXPECT_TRUE(is_sealed(at(places_of(magic)[place])));
            unmount();
            expect_fsck("-n", 0);
        }
    }
}

TEST_F(FsCopies, AScrubOnRequestListsEachPlace)
{
    std::vector<uint32_t> kinds(std::begin(READ), std::end(READ));
    kinds.push_back(LAY_MAGIC_BITMAP);
    uint64_t all = 0;
    ASSERT_EQ(mount(), 0);
    create("in_the_log"); // put in place first
    EXPECT_TRUE(scrub_on_request(0, &all).empty());
    EXPECT_GT(all, 2 * kinds.size());
    unmount();
    for (unsigned place : {0u, 1u}) {
        for (bool read_only : {true, false}) {
            restore();
            opts.read_only = read_only;
            ASSERT_EQ(mount(), 0);
            for (uint32_t magic : kinds)
                damage(places_of(magic).at(place), GARBAGE);
            auto bad = scrub_on_request();
            EXPECT_EQ(bad.size(), kinds.size());
            for (uint32_t magic : kinds)
                EXPECT_EQ(bad.at(places_of(magic)[place]).copied, !read_only);
            EXPECT_EQ(counts().copied, read_only ? 0 : kinds.size());
            EXPECT_EQ(counts().damaged, 0u);
            EXPECT_EQ(scrub_on_request().size(), read_only ? kinds.size() : 0);
            unmount();
            expect_fsck("-n", read_only ? 4 : 0);
        }
    }
}

// One flipped bit is corrected if the mount may write, and what has no sound
// place stays bad.
TEST_F(FsCopies, AScrubOnRequestTellsWhatStaysBad)
{
    std::vector<uint64_t> places = places_of(LAY_MAGIC_EXTENTS),
                          link = places_of(LAY_MAGIC_SYMLINK);
    ASSERT_EQ(mount(), 0);
    at(places[0])[300] ^= 1;
    damage(link[0], ZERO);
    damage(link[1], GARBAGE);
    auto bad = scrub_on_request();
    EXPECT_EQ(bad.size(), 3u);
    EXPECT_TRUE(bad.at(places[0]).corrected);
    EXPECT_TRUE(is_sound(places[0]));
    for (uint64_t place : link)
        EXPECT_FALSE(bad.at(place).corrected || bad.at(place).copied || bad.at(place).unreadable);
    EXPECT_EQ(counts().damaged, 1u);
    device.make_broken(places[0]);
    bad = scrub_on_request();
    EXPECT_TRUE(bad.at(places[0]).unreadable);
    EXPECT_FALSE(bad.at(places[0]).copied);
    EXPECT_EQ(counts().unwritten, 1u);
    struct ffs_scrub_counts c = scrub_counts();
    EXPECT_EQ(c.found, 6u);
    EXPECT_EQ(c.corrected, 1u);
    EXPECT_EQ(c.passes, 0u);
    EXPECT_GT(c.bytes, 0u);
}

// Positions that no call has returned end the scrub or continue it somewhere.
TEST_F(FsCopies, AScrubOnRequestTakesAnyPosition)
{
    ASSERT_EQ(mount(), 0);
    for (uint64_t kind = 0; kind < 16; kind++) {
        for (uint64_t rest : {UINT64_C(0), UINT64_C(7), UINT64_C(1) << 52, UINT64_C(3) << 53,
                              (UINT64_C(1) << 60) - 1}) {
            struct ffs_scrub found = {};
            EXPECT_EQ(ffs_scrub_metadata(fs, kind << 60 | rest, &found), 0);
            EXPECT_EQ(found.nbad, 0u);
        }
    }
}

// A repair without space leaves chunks with one place. A scrub gives them
// another one.
class FsOnePlace : public FsCopies
{
  protected:
    void SetUp() override
    {
        FsCopies::SetUp();
        ASSERT_EQ(mount(), 0);
        chunks = space_drop_copies(fs);
        ASSERT_GT(chunks, 0u);
        unmount();
        expect_fsck("-n", 0);
        sound = device.image();
        ASSERT_EQ(places_of(LAY_MAGIC_EXTENTS).size(), 2u) << "the old copy has no reference";
    }
    uint64_t chunks_copied() { return scrub_counts().chunks; }
    // The first place of each kind of block is lost, and the other one is used.
    void expect_two_places()
    {
        std::vector<uint64_t> lost;
        unmount();
        expect_fsck("-n", 0);
        for (uint32_t magic : {LAY_MAGIC_EXTENTS, LAY_MAGIC_XATTR, LAY_MAGIC_SYMLINK})
            lost.push_back(places_of(magic).at(0));
        for (uint64_t place : lost)
            damage(place, ZERO);
        expect_everything();
        EXPECT_EQ(counts().copied, lost.size());
        unmount();
        expect_fsck("-n", 0);
    }

    uint64_t chunks = 0;
};

TEST_F(FsOnePlace, TheBackgroundScrubAddsTheOther)
{
    ASSERT_EQ(mount(), 0);
    scrub();
    EXPECT_EQ(chunks_copied(), chunks);
    scrub();
    EXPECT_EQ(chunks_copied(), chunks) << "there is nothing left to do";
    expect_two_places();
}

TEST_F(FsOnePlace, AScrubOnRequestAddsTheOther)
{
    ASSERT_EQ(mount(), 0);
    uint64_t added = 0;
    EXPECT_TRUE(scrub_on_request(0, nullptr, &added).empty());
    EXPECT_EQ(added, chunks);
    EXPECT_EQ(chunks_copied(), chunks);
    expect_two_places();
}

// Others go on while a chunk is copied, and the copy has what they have changed.
TEST_F(FsOnePlace, OthersWriteWhileAChunkIsCopied)
{
    ASSERT_EQ(mount(), 0);
    std::atomic<bool> begun{false};
    std::future<int> other;
    device.before_write = [&](const bd_io &io) {
        if (io.len < LAY_SEGMENT_BLOCKS * 4096 || begun.exchange(true))
            return;
        other = std::async(std::launch::async, [&] {
            for (int i = 0; i < 100; i++)
                create("meanwhile" + std::to_string(i));
            return ffs_sync(fs);
        });
        EXPECT_EQ(other.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    };
    EXPECT_TRUE(scrub_on_request().empty()) << "the scrub of the blocks behind it finds nothing";
    ASSERT_TRUE(begun);
    EXPECT_EQ(other.get(), 0);
    EXPECT_EQ(chunks_copied(), chunks);
    expect_two_places();
    EXPECT_EQ(mount(), 0);
    EXPECT_EQ(lookup_error(root, "meanwhile99"), 0);
}

TEST_F(FsOnePlace, AReadOnlyMountAddsNone)
{
    opts.read_only = true;
    ASSERT_EQ(mount(), 0);
    EXPECT_TRUE(scrub_on_request().empty());
    EXPECT_EQ(chunks_copied(), 0u);
    unmount();
    EXPECT_TRUE(device.has(sound));
}

TEST_F(FsOnePlace, ItWaitsForSpace)
{
    ASSERT_EQ(mount(), 0);
    Inode f = create("full");
    ssize_t n = 1;
    for (uint64_t at = 0; n > 0; at += static_cast<uint64_t>(n))
        n = write(f, at, std::string(1 << 20, 'f'));
    EXPECT_EQ(n, -ENOSPC);
    scrub();
    EXPECT_EQ(chunks_copied(), 0u);
    EXPECT_EQ(truncate(f, 0), 0);
    free_data();
    create("later");
    free_data(); // R9a: the freed space can be used from the second commit on
    scrub();
    EXPECT_EQ(chunks_copied(), chunks);
    f.reset();
    expect_two_places();
}

TEST_F(FsOnePlace, ADamagedChunkKeepsOne)
{
    ASSERT_EQ(mount(), 0);
    damage(places_of(LAY_MAGIC_SYMLINK).at(0), GARBAGE);
    scrub();
    EXPECT_EQ(chunks_copied(), chunks - 1);
    EXPECT_EQ(counts().damaged, 1u);
}

// Commits and checkpoints go on while chunks are copied, and none of their
// writes is missing in the copy.
TEST_F(FsOnePlace, WritersGoOn)
{
    opts.no_thread = false;
    opts.commit_ms = 1;
    for (int turn = 0; turn < 5; turn++) {
        restore();
        ASSERT_EQ(mount(), 0);
        ASSERT_EQ(ffs_scrub_start(fs, 1ull << 40, 0), 0);
        for (uint64_t i = 0; i < 50 || chunks_copied() < chunks; i++) {
            std::string name = "new" + std::to_string(i % 50);
            if (i >= 50) {
                EXPECT_EQ(ffs_unlink(root, name.c_str()), 0);
            }
            Inode f = create(name);
            EXPECT_EQ(ffs_setxattr(f, SLOW, std::string(3000, 'n').data(), 3000, 0), 0);
            usleep(100);
        }
        ffs_scrub_stop(fs);
        EXPECT_EQ(counts().copied + counts().damaged, 0u);
        unmount();
        expect_fsck("-n", 0);
    }
    opts.no_thread = true;
}

// Every write of the change may be the last one.
TEST_F(FsOnePlace, ACrashMeanwhileLosesNothing)
{
    bool whole = false;
    for (long n = 0; !whole; n += n < 60 ? 1 : 7) {
        SCOPED_TRACE(n);
        restore();
        ASSERT_EQ(mount(), 0);
        create("new");
        device.fail(MemDevice::FAIL_FROM, n);
        struct ffs_scrub found = {};
        while (ffs_scrub_metadata(fs, found.next, &found) == 0 && found.next != 0)
            continue;
        whole = device.countdown() >= 0;
        device.fail(MemDevice::FAIL_FROM, 0);
        end_mount();
        device.fail(MemDevice::FAIL_NONE, 0);
        expect_everything();
        EXPECT_TRUE(scrub_on_request().empty());
        unmount();
        expect_fsck("-n", 0);
    }
}

TEST_F(FsCopies, ATransientErrorWritesNothing)
{
    ASSERT_EQ(mount(), 0);
    long before = device.changes();
    device.misread(places_of(LAY_MAGIC_EXTENTS)[0], 3);
    EXPECT_EQ(read_everything(), 0);
    EXPECT_EQ(counts().reread, 1u);
    EXPECT_EQ(counts().copied + counts().damaged, 0u);
    EXPECT_EQ(device.changes(), before);
}

TEST_F(FsCopies, AReadOnlyMountReadsTheCopyAndWritesNothing)
{
    uint64_t place = places_of(LAY_MAGIC_EXTENTS)[0];
    damage(place, ZERO);
    const Image before = device.image();
    opts.read_only = true;
    expect_everything();
    EXPECT_EQ(counts().copied + counts().damaged, 0u);
    unmount();
    EXPECT_TRUE(device.has(before));
}

// The result is that without copies: one flipped bit is corrected, and other
// damage gives EIO for the object.
TEST_F(FsCopies, BothPlacesAreWrong)
{
    for (uint32_t magic : {LAY_MAGIC_EXTENTS, LAY_MAGIC_XATTR, LAY_MAGIC_SYMLINK}) {
        restore();
        std::vector<uint64_t> places = places_of(magic);
        at(places[0])[300] ^= 3;
        at(places[1])[301] ^= 1;
        expect_everything();
        EXPECT_EQ(counts().corrected, 1u);
        EXPECT_EQ(counts().copied, 1u);
        unmount();
        EXPECT_TRUE(is_sound(places[0]) && is_sound(places[1]));
        expect_fsck("-n", 0);

        damage(places[0], ZERO);
        damage(places[1], GARBAGE);
        ASSERT_EQ(mount(), 0);
        EXPECT_EQ(read_everything(), -EUCLEAN);
        EXPECT_EQ(counts().damaged, 1u);
        unmount();
    }
}

TEST_F(FsCopies, APreeningFsckWritesOnePlaceFromTheOther)
{
    std::vector<uint32_t> kinds(std::begin(READ), std::end(READ));
    kinds.push_back(LAY_MAGIC_BITMAP);
    for (unsigned place : {0u, 1u}) {
        for (unsigned how = ZERO; how < UNREADABLE; how++) {
            restore();
            for (uint32_t magic : kinds)
                damage(places_of(magic).at(place), static_cast<Damage>(how));
            expect_fsck("-n", 4);
            expect_fsck("-p -f", 1);
            expect_fsck("-n", 0);
            expect_everything();
            EXPECT_EQ(counts().copied, 0u);
            unmount();
        }
    }
}

// A search finds both places of each chunk.
TEST_F(FsCopies, TheMapIsLost)
{
    for (uint64_t place : places_of(LAY_MAGIC_MAP))
        damage(place, ZERO);
    expect_fsck("-y", 1);
    expect_fsck("-n", 0);
    for (uint64_t place : places_of(LAY_MAGIC_EXTENTS)) {
        ASSERT_EQ(mount(), 0);
        damage(place, ZERO);
        EXPECT_EQ(read_everything(), 0);
        unmount();
        expect_fsck("-p -f", place > geo.supers[1]);
    }
}

// A place that can be neither read nor written costs nothing, neither in fsck
// nor in a mount that writes, and is repaired when it can be written again.
class FsBrokenPlace : public FsCopies, public ::testing::WithParamInterface<uint32_t>
{
  protected:
    std::vector<uint64_t> places()
    {
        return GetParam() == LAY_MAGIC_SUPER ? std::vector(geo.supers, geo.supers + 2)
                                             : places_of(GetParam());
    }
    void break_place(uint64_t place)
    {
        restore();
        damage(place, OLD);
        device.make_broken(place);
    }
    void mend()
    {
        device.make_broken(UINT64_MAX);
        expect_fsck("-p -f", 1);
        expect_fsck("-n", 0);
    }
};

TEST_P(FsBrokenPlace, FsckReportsItAndGoesOn)
{
    for (uint64_t place : places()) {
        break_place(place);
        const std::string finding = "F203 block " + std::to_string(place) + ": ";
        for (int run = 0; run < 2; run++) {
            std::string said;
            EXPECT_EQ(preen(&said), -ENOTRECOVERABLE) << said;
            EXPECT_NE(said.find(finding), std::string::npos) << said;
            EXPECT_EQ(said.find("F203"), said.rfind("F203")) << said;
            EXPECT_EQ(said.find("F406"), std::string::npos) << "nothing is inconsistent" << said;
        }
        expect_everything();
        unmount();
        mend();
    }
}

TEST_P(FsBrokenPlace, AMountReadsTheOtherPlaceAndWritesIt)
{
    for (uint64_t place : places()) {
        break_place(place);
        expect_everything();
        write(create("new"), 0, pattern(7, 10000));
        unmount();
        ASSERT_EQ(mount(), 0);
        EXPECT_EQ(read(lookup("new"), 0, 10000), pattern(7, 10000));
        scrub();
        EXPECT_GT(counts().unwritten, 0u);
        EXPECT_EQ(counts().damaged, 0u);
        unmount();
        mend();
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds, FsBrokenPlace,
                         ::testing::Values(LAY_MAGIC_SUPER, LAY_MAGIC_MAP, LAY_MAGIC_BITMAP,
                                           LAY_MAGIC_SUMS, LAY_MAGIC_AGES, LAY_MAGIC_ENTRIES,
                                           LAY_MAGIC_INODES, LAY_MAGIC_EXTENTS, LAY_MAGIC_DIR,
                                           LAY_MAGIC_XATTR, LAY_MAGIC_SYMLINK));

// If both places of a block fail, a mount stops writing, and fsck does not succeed.
TEST_F(FsCopies, NoPlaceCanBeWritten)
{
    std::vector<uint64_t> places = places_of(LAY_MAGIC_ENTRIES);
    ASSERT_EQ(mount(), 0);
    create("new");
    device.make_broken(places[0], places[1]);
    EXPECT_EQ(end_mount(), -EIO);
    device.make_broken(UINT64_MAX);
    expect_everything();
    lookup("new");
    unmount();
    device.make_broken(places[0], places[1]);
    std::string said;
    EXPECT_EQ(preen(&said), -EIO) << said;
    device.make_broken(UINT64_MAX);
    expect_fsck("-p", 1);
    expect_fsck("-n", 0);
}

// Only a block that cannot be read is passed over.
TEST_F(FsCopies, AnyOtherErrorOfTheDeviceEndsACheck)
{
    bool whole = false;
    for (long n = 0; !whole; n++) {
        device.fail(MemDevice::FAIL_ONCE, n, -ETIMEDOUT);
        int64_t got = 0;
        std::string said = printed_by([&] { got = image_check(device.dev()); });
        whole = device.countdown() >= 0;
        ASSERT_EQ(got, whole ? 0 : -ETIMEDOUT) << "transfer " << n << said;
    }
}

// Either half of the device loses its metadata: one place of each area and
// chunk.
TEST_F(FsCopies, HalfOfTheDeviceIsLost)
{
    for (bool second : {false, true}) {
        restore();
        for (uint32_t magic : READ) {
            for (uint64_t block : sealed_blocks(sound.data(), geo, magic)) {
                if ((block > geo.supers[1]) == second)
                    memset(at(block), 0x5a, 4096);
            }
        }
        expect_fsck("-p -f", 1);
        expect_fsck("-n", 0);
        expect_everything();
        unmount();
    }
}

} // namespace
