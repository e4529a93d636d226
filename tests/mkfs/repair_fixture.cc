/* SPDX-License-Identifier: BSD-2-Clause */
// Runs fsck.gpunvme for the tests of repairs.
#include "tests/mkfs/repair_fixture.h"

#include "tests/fusefs/core/image_check.h"
#include "tests/printed.h"

Result Repair::fsck(const std::string &option)
{
    return run({FSCK, option, path("img")});
}

void Repair::expect_clean()
{
    bd_dev *dev;
    int64_t problems = 0;

    ASSERT_EQ(bd_file_open(path("img").c_str(), BD_OPEN_READ_ONLY | BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    std::string said = printed_by([&] { problems = image_check(dev); });
    bd_close(dev);
    EXPECT_EQ(problems, 0) << said;
}

std::string Repair::expect_repaired(const std::vector<std::string> &lost, const std::string &option)
{
    Result r = run({FSCK, option, "-f", path("img")});

    EXPECT_EQ(r.status, 1) << r.out << r.err;
    expect_clean();
    expect_lost(lost);
    return r.out;
}
