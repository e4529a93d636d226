/* SPDX-License-Identifier: BSD-2-Clause */
/* The fixture of tests that damage an image and have fsck.gpunvme repair it. */
#ifndef TESTS_MKFS_REPAIR_FIXTURE_H
#define TESTS_MKFS_REPAIR_FIXTURE_H

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/mkfs/image_files.h"
#include "tests/mkfs/mkfs_rig.h"
#include "tests/mkfs/problem_cases.h"

class Repair : public ToolTest
{
  protected:
    Result fsck(const std::string &option);
    /* Checks the image in this process, which takes a quarter of the time of fsck.gpunvme. */
    void expect_clean();
    void fill()
    {
        fill_all(img);
        before = files_of_all();
    }
    Files files() { return list_files(path("img")); }
    /* Expects that only files below these paths differ from those before. */
    void expect_lost(const std::vector<std::string> &lost)
    {
        EXPECT_EQ(difference(before, files(), lost), "");
    }
    /* Expects that a repair leaves a clean image and loses nothing else; returns its output. */
    std::string expect_repaired(const std::vector<std::string> &lost = {},
                                const std::string &option = "-y");

    Image img{path("img")};
    Files before;
};

#endif
