/* SPDX-License-Identifier: BSD-2-Clause */
// A file system that becomes larger or smaller, and a power cut in the middle of it.
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "mkfs/mkfs_core.h"
#include "tests/fusefs/core/storage_fixture.h"
#include "tests/rounds.h"

namespace
{

constexpr enum crash_fate FATES[] = {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM, CRASH_RANDOM};
constexpr uint64_t OLD = 6000, NEW = 40000; // blocks: one group, and two
constexpr uint64_t SMALL = 20000;
constexpr uint64_t LARGE = 100000; // a chunk map of two blocks
constexpr uint64_t ZOO = 24000;    // where the files of make_zoo() begin
constexpr uint64_t BALLAST = 400;
constexpr size_t LEN = 300000;
constexpr int NAMES = 4000;
constexpr const char *ATTRIBUTES[] = {"user.a", "user.b", "user.c", "user.d", "user.e", "user.f",
                                      "user.g", "user.h", "user.i", "user.j", "user.k", "user.l"};

// With a sanitizer only a long run takes every cut, others every fifth. All
// fates and losses of the log still occur, because 5 has no factor in common
// with their numbers.
size_t cut_step()
{
    return static_cast<size_t>(test_rounds(kSanitized ? 5 : 1, 1));
}

class Resize : public StorageTest
{
  protected:
    bool data_csum = getenv("DATA_CSUM") != nullptr;

    void SetUp() override { make_device(NEW); }
    // Grows to NEW blocks, with everything that a shrink moves.
    void grow_with_zoo()
    {
        ASSERT_EQ(grow(NEW), 0);
        ASSERT_EQ(mount(), 0) << why;
        make_zoo();
        ASSERT_EQ(unmount(), 0);
    }
    // Expects this size, and all that the file system had.
    void expect_size(uint64_t expected)
    {
        ASSERT_EQ(mount(), 0) << why;
        EXPECT_EQ(blocks(), expected);
        EXPECT_EQ(describe_zoo(), zoo);
        EXPECT_EQ(read_file("old"), std::string(LEN, 'o'));
    }
    // A file system of OLD blocks on a larger device.
    void make_device(uint64_t blocks)
    {
        mkfs_params params = {};
        struct mkfs_plan plan = {};
        memcpy(params.uuid, "storage-test-fs!", 16);
        params.bytes = OLD << LAY_BLOCK_SHIFT;
        params.time_sec = 1700000000;
        params.data_csum = data_csum;
        params.meta_copies = meta_copies;
        dev = std::make_unique<CrashDevice>(blocks << LAY_BLOCK_SHIFT, 512);
        ASSERT_EQ(mkfs_format(dev->dev(), &params, &plan), 0);
        ASSERT_EQ(mount(), 0) << why;
        add_file("old");
        zoo = describe_zoo();
        ASSERT_EQ(unmount(), 0);
    }
    void add_file(const std::string &name)
    {
        Inode file;
        ASSERT_EQ(new_file(name.c_str(), file.out()), 0);
        EXPECT_EQ(ffs_write(file, 0, std::string(LEN, name[0]).data(), LEN),
                  static_cast<ssize_t>(LEN));
    }
    std::string read_file(const std::string &name)
    {
        std::string data(LEN, 0);
        Inode file = lookup(name);
        ssize_t n = file ? ffs_read(file, 0, data.data(), LEN) : 0;
        return n == static_cast<ssize_t>(LEN) ? data : "";
    }
    std::string zoo; // what describe_zoo() says
    std::vector<std::string> fill_before(uint64_t from);
    void make_attributes(const char *name, size_t values, size_t len);
    void make_names();
    void make_data();
    void make_zoo();
    std::string describe_zoo();
    std::string describe_file(const char *name);
    std::string describe_sums(ffs_inode *file, size_t len);
    uint64_t blocks()
    {
        struct ffs_statfs s;
        ffs_statfs(fs, &s);
        return s.blocks;
    }
    int grow(uint64_t to)
    {
        int err = mount();
        if (err)
            return err;
        err = ffs_grow(fs, to);
        int end = unmount();
        return err ? err : end;
    }
    int shrink(uint64_t to)
    {
        opts.no_thread = true;
        int err = mount();
        if (err)
            return err;
        err = ffs_shrink(fs, to);
        int end = unmount();
        return err ? err : end;
    }
    // The fault of a device after a cut, or "".
    std::string check(CrashDevice *d, uint64_t one, uint64_t other)
    {
        std::string wrong;
        if (mount(d))
            return "mount: " + why;
        if (blocks() != one && blocks() != other)
            wrong = "neither size";
        if (describe_zoo() != zoo)
            wrong = "zoo";
        if (read_file("old") != std::string(LEN, 'o'))
            wrong = "data";
        add_file("new"); // the bitmaps can be used
        if (unmount())
            wrong = "unmount";
        if (wrong.empty() && image_check(d->dev()) != 0)
            wrong = "fsck";
        return wrong;
    }
    // Cuts the power after recorded operations, each time with so many fates of what was not
    // durable.
    void cut_everywhere(uint64_t one, uint64_t other, uint64_t fates = 1)
    {
        size_t ops = dev->ops();
        for (size_t at = 0; at <= ops; at += cut_step()) {
            for (uint64_t seed = at; seed < at + fates; seed++) {
                Device cut = dev->cut(at, FATES[seed % 4], seed);
                lose_log(cut.get(), seed % 3, seed);
                EXPECT_EQ(check(cut.get(), one, other), "")
                    << "after " << at << " of " << ops << " seed " << seed;
            }
        }
    }
    // First blocks of the chunks, by number, of a file system that is not mounted.
    std::vector<uint64_t> chunks()
    {
        const lay_geometry geo = geometry_of(dev.get());
        std::vector<uint64_t> places;
        const uint8_t *map = dev->peek() + (geo.map_start << LAY_BLOCK_SHIFT);
        for (const lay_slot &slot : reinterpret_cast<const lay_map_block *>(map)->slots)
            places.push_back(lay_slot_mapped(&slot) ? lay_get64(slot.places[0]) : LAY_NONE);
        return places;
    }
    // How many of them do not end before a block, and have blocks in use.
    uint64_t chunks_past(uint64_t end)
    {
        uint64_t n = 0;
        for (uint64_t place : chunks()) {
            if (place == LAY_NONE || place + LAY_SEGMENT_BLOCKS <= end)
                continue;
            const uint8_t *first = dev->peek() + (place << LAY_BLOCK_SHIFT);
            const auto *entries = reinterpret_cast<const lay_entries *>(first);
            n += lay_get32(entries->free) < LAY_SEGMENT_BLOCKS - 1;
        }
        return n;
    }
    // Of the last `n` operations: what a cut leaves needs no question to be repaired.
    void preen_cuts(size_t n, uint64_t one, uint64_t other)
    {
        size_t ops = dev->ops();
        for (size_t at = ops > n ? ops - n : 0; at <= ops; at += cut_step()) {
            for (uint64_t seed = 0; seed < 3; seed++) {
                Device cut = dev->cut(at, FATES[seed], seed);
                int64_t found = image_preen(cut->dev());
                EXPECT_GE(found, 0) << "after " << at << " of " << ops << " seed " << seed;
                EXPECT_EQ(image_check(cut->dev()), 0) << at << " seed " << seed;
                EXPECT_EQ(check(cut.get(), one, other), "") << at << " seed " << seed;
            }
        }
    }
};

// Files of all free blocks; those past `from` are removed again. Returns the names of the others.
std::vector<std::string> Resize::fill_before(uint64_t from)
{
    std::vector<std::string> before, past;
    ffs_map map;
    for (int err = 0; !err;) {
        Inode file;
        std::string name = "ballast" + std::to_string(before.size() + past.size());
        EXPECT_EQ(new_file(name.c_str(), file.out()), 0);
        err = ffs_fallocate(file, 0, 0, BALLAST << LAY_BLOCK_SHIFT);
        if (!err && ffs_write(file, 0, "x", 1) == 1 && ffs_map_read(file, 0, 1, &map) == 0) {
            (map.segments[0].device >> LAY_BLOCK_SHIFT < from ? before : past).push_back(name);
            ffs_map_release(&map);
        } else {
            past.push_back(name);
        }
    }
    for (const std::string &name : past)
        EXPECT_EQ(remove_file(name), 0);
    EXPECT_EQ(commit_freed(), 0);
    return before;
}

// Fills the first chunks, so that what follows needs further ones.
void Resize::make_attributes(const char *name, size_t values, size_t len)
{
    Inode file;
    ASSERT_EQ(new_file(name, file.out()), 0);
    for (size_t i = 0; i < values; i++) {
        const std::string value(len, static_cast<char>('a' + i));
        ASSERT_EQ(ffs_setxattr(file, ATTRIBUTES[i], value.data(), value.size(), 0), 0);
    }
}

void Resize::make_names()
{
    const ffs_cred cred = {};
    Inode dir, other;
    ASSERT_EQ(ffs_mkdir(root(), "names", S_IFDIR | 0755, &cred, dir.out()), 0);
    for (int i = 0; i < NAMES; i++) {
        std::string name = std::string(60, 'n') + std::to_string(i);
        ASSERT_EQ(ffs_mknod(dir, name.c_str(), S_IFREG | 0644, 0, &cred, other.out()), 0);
    }
    ASSERT_EQ(ffs_symlink(root(), "link", std::string(4090, 't').c_str(), &cred, other.out()), 0);
}

void Resize::make_data()
{
    Inode file;
    ASSERT_EQ(new_file("pieces", file.out()), 0); // a tree of extents
    for (uint64_t i = 0; i < 200; i++)
        ASSERT_EQ(ffs_write(file, i * 8192, &i, sizeof(i)), static_cast<ssize_t>(sizeof(i)));
    ASSERT_EQ(new_file("bound", file.out()), 0);
    ffs_attr attr = {};
    attr.flags = LAY_INODE_GPU_BOUND;
    ASSERT_EQ(ffs_setattr(file, &attr, FFS_SET_FLAGS, &attr), 0);
    for (uint64_t at : {uint64_t{0}, uint64_t{3} << 20, (uint64_t{5} << 20) + 4096})
        ASSERT_EQ(ffs_write(file, at, "bound", 5), 5);
    ASSERT_EQ(new_file("unwritten", file.out()), 0);
    ASSERT_EQ(ffs_fallocate(file, 0, 0, 100000), 0);
}

// Everything that can lie past a new end, behind files that are removed afterwards.
void Resize::make_zoo()
{
    const std::vector<std::string> ballast = fill_before(ZOO);
    for (const char *name : {"fat0", "fat1", "fat2", "fat3"})
        make_attributes(name, std::size(ATTRIBUTES), 60000);
    make_attributes("attributes", 2, 3000);
    make_names();
    make_data();
    for (const std::string &name : ballast)
        ASSERT_EQ(remove_file(name), 0);
    zoo = describe_zoo();
}

// How many checksums the blocks of a file have, and which ones.
std::string Resize::describe_sums(ffs_inode *file, size_t len)
{
    std::vector<uint32_t> sums((len + LAY_BLOCK_SIZE - 1) / LAY_BLOCK_SIZE);
    EXPECT_TRUE(sums.empty() || ffs_file_sums(file, 0, sums.size(), sums.data()) == 0);
    std::string text;
    size_t n = 0;
    for (uint32_t sum : sums) {
        n += sum != LAY_NO_SUM;
        text += std::to_string(sum) + " ";
    }
    return std::to_string(n) + "," + std::to_string(std::hash<std::string>{}(text));
}

std::string Resize::describe_file(const char *name)
{
    // The string is static, since filling it for each file would take most of
    // the time of the test.
    static std::string data(8 << 20, 0);
    std::string text = std::string(name) + ":";
    Inode file = lookup(name);
    if (!file)
        return text + "lost;";
    ssize_t n = ffs_read(file, 0, data.data(), data.size());
    std::string_view bytes(data.data(), n < 0 ? 0 : static_cast<size_t>(n));
    ffs_attr attr;
    ffs_getattr(file, &attr);
    text += std::to_string(n) + "," + std::to_string(attr.blocks) + "," +
            std::to_string(std::hash<std::string_view>{}(bytes)) + "," +
            describe_sums(file, bytes.size());
    for (const char *x : ATTRIBUTES) {
        ssize_t len = ffs_getxattr(file, x, data.data(), 1 << 16);
        text += "," + std::to_string(len) + (len > 0 ? data.substr(len - 1, 1) : "");
    }
    return text + ";";
}

std::string Resize::describe_zoo()
{
    std::string text;
    for (const char *name : {"old", "pieces", "bound", "attributes", "unwritten", "fat0", "fat3"})
        text += describe_file(name);
    std::string target(LAY_SYMLINK_MAX, 0);
    if (Inode link = lookup("link"))
        text += std::to_string(ffs_readlink(link, target.data(), target.size())) + target;
    if (Inode dir = lookup("names")) {
        int names = 0;
        ffs_readdir(
            dir, 0,
            [](void *arg, const char *, size_t, uint64_t, uint8_t, uint64_t) {
                ++*static_cast<int *>(arg);
                return 0;
            },
            &names);
        text += std::to_string(names);
    }
    return text;
}

TEST_F(Resize, AddsSpaceAndKeepsTheFiles)
{
    ASSERT_EQ(mount(), 0);
    uint64_t before = free_blocks();
    ASSERT_EQ(unmount(), 0);
    ASSERT_EQ(grow(NEW), 0);
    expect_sound();
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(blocks(), NEW);
    // One group more: a bitmap more, and checksums. The reserve grows with the size.
    EXPECT_GT(free_blocks() + 200, before + (NEW - OLD) - (NEW - OLD) / 1000 - 1);
    EXPECT_EQ(read_file("old"), std::string(LEN, 'o'));
    for (int i = 0; i < 300; i++)
        add_file("more" + std::to_string(i)); // 90 MB
    remount();
    EXPECT_EQ(read_file("more299"), std::string(LEN, 'm'));
    expect_sound();
}

TEST_F(Resize, CanBeRepeated)
{
    int names = 0;
    for (uint64_t to : {uint64_t{6100}, uint64_t{6100}, uint64_t{32257}, uint64_t{33000}, NEW}) {
        ASSERT_EQ(grow(to), 0) << to;
        ASSERT_EQ(image_check(dev->dev()), 0) << to;
        ASSERT_EQ(mount(), 0) << why;
        EXPECT_EQ(blocks(), to);
        EXPECT_EQ(read_file("old"), std::string(LEN, 'o'));
        add_file("to " + std::to_string(to + names++));
        ASSERT_EQ(unmount(), 0);
    }
}

// Growth gives the map more slots at a new place, and shrinking takes them back. A power cut leaves
// one of the sizes.
TEST_F(Resize, TheChunkMapFollowsTheSizeAlsoUnderPowerCuts)
{
    make_device(LARGE);
    const lay_geometry old = geometry_of(dev.get());
    dev->record();
    ASSERT_EQ(grow(LARGE), 0);
    EXPECT_GT(dev->ops(), 10u);
    cut_everywhere(OLD, LARGE, 4);
    expect_sound();
    const lay_geometry large = geometry_of(dev.get());
    EXPECT_EQ(old.map_blocks, 1u);
    EXPECT_EQ(large.map_blocks, 2u);
    EXPECT_NE(large.map_start, old.map_start);
    EXPECT_EQ(large.map_len, lay_area_blocks(2)) << "the levels above the map";
    ASSERT_EQ(mount(), 0) << why;
    make_zoo();
    ASSERT_EQ(unmount(), 0);
    EXPECT_GT(chunks_past(SMALL), 0u) << "a chunk moves";
    dev->record();
    ASSERT_EQ(shrink(SMALL), 0);
    EXPECT_GT(dev->ops(), 100u);
    cut_everywhere(LARGE, SMALL);
    expect_sound();
    EXPECT_EQ(geometry_of(dev.get()).map_blocks, 1u);
}

TEST_F(Resize, TheReserveFollowsTheSize)
{
    constexpr uint64_t HUGE_BLOCKS = uint64_t{40} << 20; // 160 GiB
    make_device(HUGE_BLOCKS);
    EXPECT_EQ(geometry_of(dev.get()).reserve, 1u);
    ASSERT_EQ(grow(HUGE_BLOCKS), 0);
    EXPECT_EQ(geometry_of(dev.get()).reserve, 2u);
    ASSERT_EQ(shrink(SMALL), 0);
    EXPECT_EQ(geometry_of(dev.get()).reserve, 1u);
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(describe_zoo(), zoo);
    expect_sound();
}

TEST_F(Resize, HandlesContinueDuringGrowth)
{
    ASSERT_EQ(mount(), 0);
    std::atomic<bool> stop{false};
    std::atomic<int> done{0};
    std::thread writer([&] {
        for (int i = 0; !stop; i++, done++) {
            add_file("beside" + std::to_string(i));
            if (i >= 20) { // more would not fit before the growth, if there are copies
                EXPECT_EQ(remove_file("beside" + std::to_string(i - 20)), 0);
            }
        }
    });
    for (uint64_t to = OLD + 500; to <= NEW; to += 2500) {
        int before = done;
        EXPECT_EQ(ffs_grow(fs, to), 0) << to;
        while (done == before)
            usleep(100);
    }
    stop = true;
    writer.join();
    EXPECT_EQ(read_file("old"), std::string(LEN, 'o'));
    expect_sound();
}

TEST_F(Resize, PinnedBlocksStayPinnedDuringGrowth)
{
    ASSERT_EQ(mount(), 0);
    ffs_map map;
    ASSERT_EQ(ffs_map_read(lookup("old"), 0, LEN, &map), 0);
    ASSERT_EQ(remove_file("old"), 0);
    ASSERT_EQ(ffs_grow(fs, NEW), 0);
    std::vector<char> held(LEN);
    for (int i = 0; i < 100; i++)
        add_file("more" + std::to_string(i));
    ASSERT_EQ(bd_read(dev->dev(), map.segments[0].device, held.data(), 4096), 0);
    EXPECT_EQ(held[0], 'o');
    ffs_map_release(&map);
    expect_sound();
}

TEST_F(Resize, ShrinksAndKeepsEverything)
{
    ASSERT_NO_FATAL_FAILURE(grow_with_zoo());
    const std::vector<uint64_t> places = chunks();
    EXPECT_GT(chunks_past(SMALL), 0u) << "a chunk moves";
    for (uint64_t to : {uint64_t{33000}, uint64_t{32256}, uint64_t{20001}, uint64_t{15000}}) {
        ASSERT_EQ(shrink(to), 0) << to;
        ASSERT_EQ(image_check(dev->dev()), 0) << to;
        EXPECT_EQ(chunks_past(to), 0u) << to;
        for (size_t i = 0; i < places.size(); i++)
            EXPECT_EQ(chunks()[i] == LAY_NONE, places[i] == LAY_NONE) << "number of chunk " << i;
        // Nothing past the end is needed.
        memset(dev->bytes() + (to << LAY_BLOCK_SHIFT), 0xee, (NEW - to) << LAY_BLOCK_SHIFT);
        expect_size(to);
        add_file("to " + std::to_string(to));
        ASSERT_EQ(unmount(), 0);
        ASSERT_EQ(image_check(dev->dev()), 0) << to;
    }
    EXPECT_EQ(shrink(LAY_MIN_BLOCKS - 1), -ENOSPC);
    EXPECT_EQ(shrink(NEW), -EINVAL);
    ASSERT_EQ(grow(NEW), 0);
    expect_sound();
}

// The log has images of blocks in the chunk that moves.
TEST_F(Resize, AnImageInTheLogFollowsItsChunk)
{
    ASSERT_NO_FATAL_FAILURE(grow_with_zoo());
    ASSERT_EQ(mount(), 0);
    uint64_t ino = NAMES;
    for (int i = 0; i < 30; i++, ino -= 8) {
        ASSERT_EQ(set_uid(ino, 77), 0);
        ASSERT_EQ(commit(), 0);
    }
    dev->record();
    ASSERT_EQ(ffs_shrink(fs, SMALL), 0);
    ASSERT_EQ(unmount(), 0);
    for (size_t at = 0; at <= 60; at++) { // chunks move first
        Device cut = dev->cut(at, FATES[at % 4], at);
        EXPECT_EQ(check(cut.get(), NEW, SMALL), "") << at;
        ASSERT_EQ(mount(cut.get()), 0) << why;
        for (uint64_t i = NAMES; i > ino; i -= 8)
            EXPECT_EQ(uid(i), 77) << "inode " << i << " after " << at;
        ASSERT_EQ(unmount(), 0);
    }
}

// With copies the chunk moves, because its other place is not damaged.
TEST_F(Resize, AChunkWithADamagedBlockDoesNotMove)
{
    ASSERT_NO_FATAL_FAILURE(grow_with_zoo());
    uint8_t *damaged = nullptr; // in a block in use of a chunk that has to move
    for (uint64_t place : chunks()) {
        uint8_t *first = dev->bytes() + (place << LAY_BLOCK_SHIFT);
        const auto *entries = reinterpret_cast<const lay_entries *>(first);
        for (unsigned b = 1; place != LAY_NONE && place >= SMALL && b < LAY_SEGMENT_BLOCKS; b++) {
            if (entries->used[b / 8] >> b % 8 & 1)
                damaged = first + b * LAY_BLOCK_SIZE + 1000;
        }
    }
    ASSERT_NE(damaged, nullptr);
    damaged[0] ^= 3;
    EXPECT_EQ(shrink(SMALL), meta_copies ? 0 : -EUCLEAN);
    if (meta_copies) {
        EXPECT_EQ(image_check(dev->dev()), 0) << "it has moved from its copy";
        return;
    }
    damaged[0] ^= 3;
    expect_size(NEW);
    ASSERT_EQ(unmount(), 0);
    EXPECT_EQ(shrink(SMALL), 0);
    expect_sound();
}

// Entries of zeros name no block, so that their own age shows the damage.
TEST_F(Resize, AChunkWithoutEntriesDoesNotMove)
{
    ASSERT_NO_FATAL_FAILURE(grow_with_zoo());
    std::vector<uint64_t> places = chunks();
    auto moves = std::find_if(places.begin(), places.end(),
                              [](uint64_t at) { return at != LAY_NONE && at >= SMALL; });
    ASSERT_NE(moves, places.end());
    memset(dev->bytes() + (*moves << LAY_BLOCK_SHIFT), 0, LAY_BLOCK_SIZE);
    EXPECT_EQ(shrink(SMALL), meta_copies ? 0 : -EUCLEAN);
    if (meta_copies) {
        EXPECT_EQ(image_check(dev->dev()), 0) << "they have moved from their copy";
    }
}

// A label that is written later has the new shape, and the mount after it finds a clean unmount.
TEST_F(Resize, TheLabelChangesAfterwards)
{
    ASSERT_EQ(mount(), 0) << why;
    ASSERT_EQ(ffs_grow(fs, NEW), 0);
    ASSERT_EQ(ffs_set_label(fs, "grown"), 0);
    ASSERT_EQ(unmount(), 0);
    const lay_geometry geo = geometry_of(dev.get());
    const uint64_t first = dev->reads(geo.log_start << LAY_BLOCK_SHIFT);
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(dev->reads(geo.log_start << LAY_BLOCK_SHIFT), first) << "the log is not read";
    EXPECT_EQ(blocks(), NEW);
    ASSERT_EQ(unmount(), 0);
    ASSERT_EQ(shrink(20000), 0);
    ASSERT_EQ(mount(), 0) << why;
    ASSERT_EQ(ffs_set_label(fs, "shrunk"), 0);
    ASSERT_EQ(unmount(), 0);
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(blocks(), 20000u);
    EXPECT_EQ(read_file("old"), std::string(LEN, 'o'));
    expect_sound();
}

TEST_F(Resize, APowerCutLeavesOnlySafeRepairs)
{
    dev->record();
    ASSERT_EQ(grow(NEW), 0);
    preen_cuts(SIZE_MAX, OLD, NEW);
    ASSERT_EQ(mount(), 0);
    make_zoo();
    ASSERT_EQ(unmount(), 0);
    dev->record();
    ASSERT_EQ(shrink(SMALL), 0);
    preen_cuts(40, NEW, SMALL);
}

TEST_F(Resize, AShrinkThatDoesNotFitChangesNothing)
{
    ASSERT_EQ(grow(NEW), 0);
    ASSERT_EQ(mount(), 0);
    make_zoo();
    for (int i = 0; i < 200; i++)
        add_file("more" + std::to_string(i)); // 15,000 blocks
    uint64_t least = ffs_shrink_least(fs);
    ASSERT_EQ(unmount(), 0);
    EXPECT_EQ(shrink(least - 1), -ENOSPC);
    expect_sound();
    expect_size(NEW);
    EXPECT_EQ(read_file("more199"), std::string(LEN, 'm'));
    ASSERT_EQ(unmount(), 0);
}

TEST_F(Resize, RefusesUnsupportedSizesAlsoInAdvance)
{
    ASSERT_EQ(mount(), 0) << why;
    const uint64_t least = ffs_grow_least(fs);
    const int tiny = data_csum ? -ERANGE : 0; // bitmaps need one block
    EXPECT_EQ(ffs_grow_check(fs, OLD + 1), tiny);
    for (auto [to, error] : {std::pair<uint64_t, int>{OLD - 1, -EINVAL},
                             {least - 1, tiny},
                             {LAY_MAX_BLOCKS + 1, -EFBIG},
                             {OLD, 0},
                             {least, 0}}) {
        EXPECT_EQ(ffs_grow_check(fs, to), error) << to;
        EXPECT_EQ(ffs_grow(fs, to), error) << to;
    }
    EXPECT_EQ(ffs_grow_check(fs, LAY_MAX_BLOCKS), 0);
    EXPECT_EQ(ffs_grow(fs, NEW + 1), -ENOSPC) << "the device ends";
    expect_sound();
    opts.read_only = true;
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(ffs_grow_check(fs, NEW), -EROFS);
    ASSERT_EQ(unmount(), 0);
}

} // namespace
