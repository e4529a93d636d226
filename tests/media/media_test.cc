/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Damages one block of a file system, in every way that a medium may, and
 * looks at what a mount and fsck make of it. MEDIA_CASES sets the number of
 * cases (500), MEDIA_CASE runs a single one.
 */
#include <ctype.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#define _Atomic
#include "fusefs/core/storage.h"
#undef _Atomic
}
#include "mkfs/mkfs_core.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/image_check.h"
#include "tests/fusefs/core/sealed_blocks.h"
#include "tests/media/files.h"
#include "tests/printed.h"

namespace
{

constexpr uint64_t MEDIA_BYTES = 16u << 20;

// A file system as it is, and as it was when its files were first written.
struct MediaImage {
    bool data_csum, copies;
    bool crashed; // transactions in the log are not in place yet
    std::vector<uint8_t> now, old;
    MediaFiles files;
    std::map<std::string, std::vector<uint64_t>> blocks; // of each kind that is in use
};

enum MediaDamage {
    MEDIA_FLIP,
    MEDIA_ZERO,
    MEDIA_GARBAGE,
    MEDIA_SWAP,        // with a block of the same kind
    MEDIA_STALE,       // the block as it was before
    MEDIA_MISDIRECTED, // the block is overwritten by one of another kind
    MEDIA_HALF,        // the last write of the block did not reach all LBAs
    MEDIA_DAMAGES,
};

const char *media_damage_name(MediaDamage damage)
{
    static const char *const names[] = {"flip",  "zero",        "garbage", "swap",
                                        "stale", "misdirected", "half"};
    return names[damage];
}

// Damage done to a copy of an image.
struct MediaCase {
    MediaDamage damage;
    std::string kind; // of the damaged block
    std::string text; // says what was done
    std::vector<uint8_t> bytes;
};

constexpr size_t BLOCK = LAY_BLOCK_SIZE;

void must(int err, const std::string &what)
{
    if (err)
        throw std::runtime_error(what + ": error " + std::to_string(-err));
}

// --- Images --------------------------------------------------------------------------------------

class Builder
{
  public:
    Builder(bool data_csum, bool copies) : device_(MEDIA_BYTES)
    {
        mkfs_params params = {};
        mkfs_plan plan = {};
        memcpy(params.uuid, "media campaign \x01", 16);
        params.time_sec = 1700000000;
        params.data_csum = data_csum;
        params.meta_copies = copies;
        must(mkfs_format(device_.dev(), &params, &plan), "mkfs");
        opts_.no_thread = true;
    }
    struct ffs *mount()
    {
        struct reason why = {};
        must(ffs_mount(device_.dev(), &opts_, &fs_, &why), why.text);
        return fs_;
    }
    void unmount() { must(ffs_unmount(fs_), "unmount"); }
    std::vector<uint8_t> bytes() { return {device_.bytes(), device_.bytes() + device_.size()}; }
    void put(const std::vector<uint8_t> &bytes)
    {
        memcpy(device_.bytes(), bytes.data(), bytes.size());
    }

  private:
    MemDevice device_;
    ffs_mount_opts opts_ = {};
    struct ffs *fs_ = nullptr;
};

const std::map<uint32_t, std::string> KINDS = {
    {LAY_MAGIC_LABEL, "label"},     {LAY_MAGIC_MMP, "mmp"},   {LAY_MAGIC_SUPER, "super"},
    {LAY_MAGIC_BITMAP, "bitmap"},   {LAY_MAGIC_SUMS, "sums"}, {LAY_MAGIC_INODES, "inodes"},
    {LAY_MAGIC_EXTENTS, "extents"}, {LAY_MAGIC_DIR, "names"}, {LAY_MAGIC_XATTR, "attributes"},
    {LAY_MAGIC_SYMLINK, "link"},    {LAY_MAGIC_MAP, "map"},   {LAY_MAGIC_ENTRIES, "entries"},
    {LAY_MAGIC_AGES, "ages"},
};

// Blocks that objects own, which are free again when the entries say so.
bool is_owned(const std::string &kind)
{
    return kind == "inodes" || kind == "extents" || kind == "names" || kind == "attributes" ||
           kind == "link";
}

// The entries of the segment that is there say that the block is in use.
bool is_used(const uint8_t *device, uint64_t block)
{
    uint64_t b = block % LAY_SEGMENT_BLOCKS;
    const auto *entries = reinterpret_cast<const lay_entries *>(device + (block - b) * BLOCK);

    return lay_get32(entries->head.magic) == LAY_MAGIC_ENTRIES &&
           (entries->used[b / 8] >> b % 8 & 1);
}

void find_metadata(const lay_geometry &geo, MediaImage &image)
{
    const uint8_t *at = image.now.data();
    for (const auto &[magic, kind] : KINDS) {
        for (uint64_t block : sealed_blocks(at, geo, magic)) {
            if (!is_owned(kind) || is_used(at, block))
                image.blocks[kind].push_back(block);
        }
    }
    for (uint64_t block = 0; block < geo.blocks; block++) {
        if (is_in_log(geo, block) && is_sealed(at + block * BLOCK))
            image.blocks["log"].push_back(block);
    }
}

void find_data(struct ffs *fs, MediaImage &image)
{
    for (const auto &[path, file] : image.files) {
        ffs_inode *inode;
        ffs_segment found[256];
        must(ffs_iget(fs, file.ino, &inode), path);
        ssize_t n = S_ISREG(file.mode) ? ffs_extents(inode, 0, found, 256) : 0;
        for (ssize_t i = 0; i < n; i++) {
            for (uint64_t b = 0; b < found[i].len && found[i].device != FFS_HOLE; b += BLOCK)
                image.blocks["data"].push_back((found[i].device + b) / BLOCK);
        }
        ffs_iput(inode, 1);
    }
}

MediaImage media_image(bool data_csum, bool copies, bool crashed)
{
    MediaImage image = {};
    Builder b(data_csum, copies);
    image.data_csum = data_csum;
    image.copies = copies;
    image.crashed = crashed;
    media_populate(b.mount());
    b.unmount();
    image.old = b.bytes();
    media_change(b.mount());
    b.unmount();
    struct ffs *fs = b.mount();
    if (crashed) {
        media_touch(fs);
        must(ffs_sync(fs), "sync");
        image.now = b.bytes();
    }
    image.files = media_list(fs);
    lay_geometry geo = *ffs_geometry(fs);
    find_data(fs, image);
    b.unmount();
    if (!crashed)
        image.now = b.bytes();
    find_metadata(geo, image);
    return image;
}

// --- Damage --------------------------------------------------------------------------------------

class Damager
{
  public:
    Damager(const MediaImage &image, std::mt19937_64 &random, MediaCase &c)
        : image_(image), random_(random), case_(c)
    {
        auto kind = image.blocks.begin();
        std::advance(kind, below(image.blocks.size()));
        case_.kind = kind->first;
        blocks_ = &kind->second;
        block_ = pick(*blocks_);
    }
    // False if this block cannot be damaged in this way.
    bool done(MediaDamage damage)
    {
        case_.text = case_.kind + " block " + std::to_string(block_) + ", ";
        switch (damage) {
        case MEDIA_FLIP:
            return flip();
        case MEDIA_ZERO:
            memset(at(block_), 0, BLOCK);
            break;
        case MEDIA_GARBAGE:
            garbage();
            break;
        case MEDIA_SWAP:
            return swap();
        case MEDIA_STALE:
            memcpy(at(block_), old(), BLOCK);
            break;
        case MEDIA_MISDIRECTED:
            return misdirect();
        default:
            return half();
        }
        case_.text += media_damage_name(damage);
        return changed();
    }

  private:
    uint64_t below(uint64_t n) { return random_() % n; }
    uint64_t pick(const std::vector<uint64_t> &from) { return from[below(from.size())]; }
    uint8_t *at(uint64_t block) { return case_.bytes.data() + block * BLOCK; }
    const uint8_t *old() const { return image_.old.data() + block_ * BLOCK; }
    bool changed() { return memcmp(at(block_), image_.now.data() + block_ * BLOCK, BLOCK) != 0; }
    bool flip()
    {
        uint64_t bit = below(8 * BLOCK);
        at(block_)[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
        case_.text += "bit " + std::to_string(bit % 8) + " of byte " + std::to_string(bit / 8);
        return true;
    }
    void garbage()
    {
        for (size_t i = 0; i < BLOCK; i++)
            at(block_)[i] = static_cast<uint8_t>(random_() >> 32);
    }
    bool swap()
    {
        uint64_t other = pick(*blocks_);
        std::swap_ranges(at(block_), at(block_) + BLOCK, at(other));
        case_.text += "swapped with " + std::to_string(other);
        return changed();
    }
    bool misdirect()
    {
        auto kind = image_.blocks.begin();
        std::advance(kind, below(image_.blocks.size()));
        uint64_t other = pick(kind->second);
        memcpy(at(block_), image_.now.data() + other * BLOCK, BLOCK);
        case_.text += "overwritten by " + kind->first + " block " + std::to_string(other);
        return kind->first != case_.kind && changed();
    }
    // The first LBAs are those of before the last write.
    bool half()
    {
        uint64_t lbas = 1 + below(7);
        memcpy(at(block_), old(), lbas * 512);
        case_.text += std::to_string(lbas) + " LBAs of before the last write";
        return changed() && memcmp(at(block_), old(), BLOCK) != 0;
    }

    const MediaImage &image_;
    std::mt19937_64 &random_;
    MediaCase &case_;
    const std::vector<uint64_t> *blocks_;
    uint64_t block_;
};

// Chooses a kind and a block. The same random numbers lead to the same case. A former case's memory
// is used again, because new memory costs a page fault for each page.
void media_case(const MediaImage &image, MediaDamage damage, std::mt19937_64 &random, MediaCase &c)
{
    c.damage = damage;
    do {
        c.bytes = image.now;
    } while (!Damager(image, random, c).done(damage));
}

unsigned environment(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);
    return text ? static_cast<unsigned>(strtoul(text, nullptr, 10)) : otherwise;
}

enum Features {
    DEFAULT,
    CHECKSUMS,
    COPIES,
    FEATURES
}; // DEFAULT has none; COPIES has data_csum, too

constexpr unsigned SUITES = FEATURES * 2 * MEDIA_DAMAGES;
constexpr unsigned NO_CASE = UINT32_MAX;

class Media : public ::testing::TestWithParam<std::tuple<Features, bool, MediaDamage>>
{
  protected:
    void run_case(unsigned number);
    bool mounted_right();
    bool repaired_right();
    bool listed_right(const std::string &when);
    int mount(bool read_only);
    bool is_named(const std::string &path, bool or_above) const;
    bool must_be_whole() const;
    MediaVerdict worst_allowed() const;
    bool fails(const std::string &what);

    static const MediaImage &image()
    {
        static std::map<std::pair<Features, bool>, MediaImage> made;
        auto [features, crashed, damage] = GetParam();
        auto key = std::make_pair(features, crashed);
        if (!made.count(key))
            made[key] = media_image(features != DEFAULT, features == COPIES, crashed);
        return made[key];
    }

    static MemDevice &device()
    {
        static MemDevice made(MEDIA_BYTES);
        return made;
    }
    MediaCase case_;
    std::string label_, report_;
    struct ffs *fs_ = nullptr;
    unsigned failures_ = 0;
};

bool Media::fails(const std::string &what)
{
    ADD_FAILURE() << label_ << ": " << what;
    failures_++;
    return false;
}

/*
 * Returns true if the damage must lose nothing. That holds for a flipped bit of
 * metadata, and with copies for all metadata that has two places. Block 0 says
 * whether the device is ours.
 */
bool Media::must_be_whole() const
{
    bool copied = image().copies && case_.kind != "label" && case_.kind != "mmp";
    return case_.kind != "data" && (case_.damage == MEDIA_FLIP || copied);
}

/*
 * The worst that needs no word. Data without checksums is not verified. Without
 * its newest commit, the log ends whole with the one before.
 */
MediaVerdict Media::worst_allowed() const
{
    if (must_be_whole())
        return MEDIA_SAME;
    if (case_.kind == "data")
        return image().data_csum ? MEDIA_ERROR : MEDIA_WRONG;
    return case_.kind == "log" && image().crashed ? MEDIA_DIFFERS : MEDIA_ERROR;
}

std::string shortened(const std::string &path)
{
    return path.substr(0, 12);
}

int Media::mount(bool read_only)
{
    ffs_mount_opts opts = {};
    struct reason why = {};
    opts.no_thread = true;
    opts.read_only = read_only;
    int err = ffs_mount(device().dev(), &opts, &fs_, &why);
    if (err)
        report_ += why.text;
    return err;
}

bool names_inode(const std::string &report, uint64_t ino)
{
    const std::string name = "inode " + std::to_string(ino);
    size_t at = report.find(name);
    // A longer number begins with this one.
    while (at != std::string::npos && isdigit(static_cast<unsigned char>(report[at + name.size()])))
        at = report.find(name, at + 1);
    return at != std::string::npos;
}

// The report has a line with the path or the number of the file, or of a directory above it.
bool Media::is_named(const std::string &path, bool or_above) const
{
    if (report_.find(path) != std::string::npos || names_inode(report_, image().files.at(path).ino))
        return true;
    std::string above = path.substr(0, path.rfind('/'));
    return or_above && !above.empty() && is_named(above, true);
}

// What a mount shows is right, or an error.
bool Media::mounted_right()
{
    int err = mount(false);
    if (err)
        return !must_be_whole() || fails("mount: " + report_);
    bool right = true;
    for (const auto &[path, file] : image().files) {
        MediaVerdict verdict = media_judge(fs_, path, file);
        if (verdict > worst_allowed())
            right = fails(shortened(path) + " is " + media_verdict_name(verdict) + " at the mount");
    }
    ffs_unmount(fs_);
    return right;
}

bool Media::listed_right(const std::string &when)
{
    if (mount(true))
        return fails("mount " + when + ": " + report_);
    bool right = true;
    for (const auto &[path, file] : image().files) {
        MediaVerdict verdict = media_judge_repaired(fs_, path, image().files);
        if (verdict > worst_allowed() &&
            (must_be_whole() || verdict == MEDIA_WRONG || !is_named(path, verdict == MEDIA_MOVED)))
            right =
                fails(shortened(path) + " (inode " + std::to_string(file.ino) + ") is " +
                      media_verdict_name(verdict) + " " + when + ", and the report is\n" + report_);
    }
    ffs_unmount(fs_);
    return right;
}

// fsck leaves what is right, EIO or in its report, and has nothing to do afterwards.
bool Media::repaired_right()
{
    int64_t found = 0, again = 0;
    report_ = printed_by([&] { found = image_fsck(device().dev()); });
    if (found == -EINVAL && case_.kind == "label")
        return true; /* block 0 is not ours any more */
    if (found < 0)
        return fails("fsck: error " + std::to_string(-found) + "\n" + report_);
    std::string second = printed_by([&] { again = image_check(device().dev()); });
    if (again != 0)
        return fails("the second fsck finds\n" + second + "after\n" + report_);
    return listed_right("after fsck");
}

void Media::run_case(unsigned number)
{
    std::mt19937_64 random(number);
    media_case(image(), std::get<2>(GetParam()), random, case_);
    label_ = "MEDIA_CASE=" + std::to_string(number) + ": " + case_.text;
    report_.clear();
    memcpy(device().bytes(), case_.bytes.data(), case_.bytes.size());
    if (!mounted_right())
        return;
    /* Every other repair begins with what a mount has left. */
    if (number % 2 == 0)
        memcpy(device().bytes(), case_.bytes.data(), case_.bytes.size());
    repaired_right();
}

TEST_P(Media, NeitherAMountNorFsckShowsWhatIsWrong)
{
    unsigned single = environment("MEDIA_CASE", NO_CASE);
    unsigned cases = (environment("MEDIA_CASES", 500) + SUITES - 1) / SUITES;
    if (single != NO_CASE) {
        run_case(single);
        return;
    }
    for (unsigned number = 0; number < cases; number++)
        run_case(number);
    if (failures_ > 0)
        std::cout << failures_ << " of " << cases << " cases\n";
}

TEST(MediaImages, HaveEveryKindOfBlock)
{
    MediaImage image = media_image(true, false, true);
    for (const char *kind : {"label", "mmp", "super", "bitmap", "sums", "map", "entries", "ages",
                             "inodes", "extents", "names", "attributes", "link", "log", "data"})
        EXPECT_TRUE(image.blocks.count(kind)) << kind;
}

std::string name_of(const ::testing::TestParamInfo<Media::ParamType> &info)
{
    static const char *const names[] = {"Default", "Checksums", "Copies"};
    auto [features, crashed, damage] = info.param;
    return std::string(names[features]) + (crashed ? "Crashed_" : "Clean_") +
           media_damage_name(damage);
}

INSTANTIATE_TEST_SUITE_P(All, Media,
                         ::testing::Combine(::testing::Range(DEFAULT, FEATURES), ::testing::Bool(),
                                            ::testing::Range(MEDIA_FLIP, MEDIA_DAMAGES)),
                         name_of);

} // namespace
