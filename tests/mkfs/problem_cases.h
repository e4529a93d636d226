/* SPDX-License-Identifier: BSD-2-Clause */
/* One damaged image, or more, for each problem that fsck.gpunvme knows. */
#ifndef TESTS_MKFS_PROBLEM_CASES_H
#define TESTS_MKFS_PROBLEM_CASES_H

#include <functional>
#include <string>
#include <vector>

#include "tests/mkfs/image_files.h"
#include "tests/mkfs/mkfs_rig.h"

struct ProblemCase {
    const char *id;
    const char *name;
    std::function<void(Image &)> spoil; /* of an image that Image::fill() made */
    /* Paths that the damage takes with it, or changes; the repair keeps every other path. */
    std::vector<std::string> lost = {};
    bool repaired_by_another = false; /* -y repairs something else first, and this is gone */
};

const std::vector<ProblemCase> &problem_cases();
/* Gives every free block of the chunks to the inode file, for inodes that are free. */
void use_all_chunks(Image &img);
/* Image::fill() with data that differ between blocks, and copies as a checkpoint leaves them. */
void fill_all(Image &img);
/* Names the files of such an image. */
const Files &files_of_all();

#endif
