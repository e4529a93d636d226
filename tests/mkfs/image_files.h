/* SPDX-License-Identifier: BSD-2-Clause */
/* What a file system holds, as text that can be compared. */
#ifndef TESTS_MKFS_IMAGE_FILES_H
#define TESTS_MKFS_IMAGE_FILES_H

#include <map>
#include <string>
#include <vector>

#include "blockdev/bdev.h"

/* Path to type, permissions, size, a checksum of the data, attributes and target. */
using Files = std::map<std::string, std::string>;

/* By a mount for reading or, with `write`, one for writing, which is unmounted again. */
Files list_files(bd_dev *dev, bool write = false);
Files list_files(const std::string &image, bool write = false);
/*
 * The first file that is gone, changed or new, in words; empty: there is none. Files below a path
 * of `lost`, and below lost+found, may differ.
 */
std::string difference(const Files &before, const Files &after,
                       const std::vector<std::string> &lost);

#endif
