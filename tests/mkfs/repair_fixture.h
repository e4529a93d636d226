/* SPDX-License-Identifier: BSD-2-Clause */
/* The fixture of tests that damage an image and have fsck.gpunvme repair it. */
#ifndef TESTS_MKFS_REPAIR_FIXTURE_H
#define TESTS_MKFS_REPAIR_FIXTURE_H

#include <gtest/gtest.h>

#include <string>

#include "tests/mkfs/mkfs_rig.h"

class Repair : public ToolTest
{
  protected:
    /* Runs fsck.gpunvme with one option. repair_test.cc defines it. */
    Result fsck(const std::string &option);
    void expect_clean()
    {
        Result r = fsck("-n");
        EXPECT_EQ(r.status, 0) << r.out << r.err;
    }
    Image img{path("img")};
};

#endif
