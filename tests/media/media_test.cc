/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Damages one block of a file system, in every way that a medium may, and
 * looks at what a mount and fsck make of it. MEDIA_CASES sets the number of
 * cases (500), MEDIA_CASE runs a single one.
 */
#include <gtest/gtest.h>
#include <string.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <regex>
#include <tuple>

#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/image_check.h"
#include "tests/media/images.h"
#include "tests/printed.h"

namespace
{

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

// The report has a line with the path or the number of the file, or of a directory above it.
bool Media::is_named(const std::string &path, bool or_above) const
{
    std::regex number("inode " + std::to_string(image().files.at(path).ino) + "\\b");
    if (report_.find(path) != std::string::npos || std::regex_search(report_, number))
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
