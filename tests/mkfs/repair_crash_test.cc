/* SPDX-License-Identifier: BSD-2-Clause */
/* The power fails after every write of a repair: the next repair ends as the first would have. */
#include <memory>
#include <set>

#include "tests/fusefs/core/crash_device.h"
#include "tests/fusefs/core/image_check.h"
#include "tests/mkfs/image_files.h"
#include "tests/mkfs/problem_cases.h"
#include "tests/printed.h"
#include "tests/rounds.h"

namespace
{

using Device = std::unique_ptr<CrashDevice>;

class RepairCrash : public ToolTest, public ::testing::WithParamInterface<ProblemCase>
{
  protected:
    /* fsck prints its findings; here they are shown when the test fails. */
    int64_t quietly(CrashDevice *d, int64_t (*run)(bd_dev *))
    {
        int64_t result = 0;
        said = printed_by([&] { result = run(d->dev()); });
        return result;
    }
    void spoil_and_load()
    {
        Image img(path("img"));
        fill_all(img);
        GetParam().spoil(img);
        dev = std::make_unique<CrashDevice>(IMAGE_BYTES, 512);
        static const std::string zeros(LAY_BLOCK_SIZE, 0);
        static std::string bytes;
        read_file(path("img"), bytes);
        for (size_t at = 0; at < bytes.size(); at += LAY_BLOCK_SIZE) {
            if (bytes.compare(at, LAY_BLOCK_SIZE, zeros) != 0) {
                ASSERT_EQ(bd_write(dev->dev(), at, &bytes[at], LAY_BLOCK_SIZE, 0), 0);
            }
        }
    }
    void expect_repaired(CrashDevice *d)
    {
        ASSERT_GE(quietly(d, image_fsck), 0) << said;
        ASSERT_EQ(quietly(d, image_check), 0) << said;
        ASSERT_EQ(difference(files_of_all(), list_files(d->dev(), true), GetParam().lost), "");
        ASSERT_EQ(quietly(d, image_check), 0) << said;
    }

    Device dev;
    std::string said;
};

TEST_P(RepairCrash, IsRepairedByTheNextRun)
{
    static const crash_fate fates[] = {CRASH_RANDOM, CRASH_DROP, CRASH_KEEP};
    spoil_and_load();
    dev->record();
    ASSERT_GT(quietly(dev.get(), image_fsck), 0) << said;
    size_t ops = dev->ops();
    ASSERT_GT(ops, 3u);
    /*
     * Each cut has one fate of the unflushed writes, in long runs all of them. With a sanitizer
     * every fourth cut is tried, since the ordinary build tries all in the same run. Nine cuts of
     * ten leave the same media as an earlier cut, so the test skips them.
     */
    size_t each = static_cast<size_t>(test_rounds(1, 3));
    size_t step = static_cast<size_t>(test_rounds(kSanitized ? 4 : 1, 1));
    std::set<uint64_t> tried;
    for (size_t cut = 0; cut <= ops; cut += step) {
        for (size_t k = 0; k < each; k++) {
            Device d = dev->cut(cut, fates[(cut + k) % 3], cut);
            if (!tried.insert(d->hash()).second)
                continue;
            SCOPED_TRACE("cut after " + std::to_string(cut) + " of " + std::to_string(ops) +
                         ", fate " + std::to_string((cut + k) % 3));
            ASSERT_NO_FATAL_FAILURE(expect_repaired(d.get()));
        }
    }
}

/*
 * Long runs fail each write in turn, other runs only the first, middle and last
 * one.
 */
TEST_P(RepairCrash, DoesNotSucceedWithoutAWrite)
{
    spoil_and_load();
    dev->record();
    ASSERT_GT(quietly(dev.get(), image_fsck), 0) << said;
    const size_t ops = dev->ops();
    const size_t step = static_cast<size_t>(test_rounds(static_cast<int>(ops / 2), 1));
    for (size_t fails = 0; fails < ops; fails += step) {
        Device d = dev->cut(0, CRASH_KEEP, 0);
        d->fail_writes(static_cast<long>(fails));
        EXPECT_LT(quietly(d.get(), image_fsck), 0) << "write " << fails << " of " << ops << said;
    }
}

/*
 * When a repair maps a copy of blocks that two files shared, all bytes of the
 * copy are on the device.
 */
using CopyCrash = RepairCrash;

TEST_P(CopyCrash, IsWholeWhenItIsMapped)
{
    spoil_and_load();
    dev->record();
    ASSERT_GT(quietly(dev.get(), image_fsck), 0) << said;
    const Files after = list_files(dev->dev());
    size_t ops = dev->ops();
    for (size_t cut = 0; cut <= ops; cut++) {
        for (crash_fate fate : {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM}) {
            Device d = dev->cut(cut, fate, cut);
            ASSERT_GE(quietly(d.get(), image_fsck), 0) << said;
            ASSERT_EQ(difference(after, list_files(d->dev()), {}), "")
                << "cut after " << cut << " of " << ops << ", fate " << fate;
        }
    }
}

std::vector<ProblemCase> cases_of_copies()
{
    std::vector<ProblemCase> found;
    for (const ProblemCase &c : problem_cases()) {
        if (std::string(c.id) == "F304")
            found.push_back(c);
    }
    return found;
}

INSTANTIATE_TEST_SUITE_P(Table, CopyCrash, ::testing::ValuesIn(cases_of_copies()),
                         [](const auto &info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Table, RepairCrash, ::testing::ValuesIn(problem_cases()),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace
