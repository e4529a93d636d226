/* SPDX-License-Identifier: BSD-2-Clause */
// Runs fsck.gpunvme for the tests of repairs.
#include "tests/mkfs/repair_fixture.h"

Result Repair::fsck(const std::string &option)
{
    return run({FSCK, option, path("img")});
}

std::string Repair::expect_repaired(const std::vector<std::string> &lost, const std::string &option)
{
    Result r = run({FSCK, option, "-f", path("img")});

    EXPECT_EQ(r.status, 1) << r.out << r.err;
    expect_clean();
    expect_lost(lost);
    return r.out;
}
