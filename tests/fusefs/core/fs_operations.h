/* SPDX-License-Identifier: BSD-2-Clause */
// A short use of the whole file system, for tests in which any part of it may fail.
#ifndef TESTS_FUSEFS_CORE_FS_OPERATIONS_H
#define TESTS_FUSEFS_CORE_FS_OPERATIONS_H

#include <string>

#include "fusefs/core/ffs.h"

// Changes names that end in `tag`, and syncs. Whatever each operation returns; the point is that
// all of them return.
void fs_every_operation(struct ffs *fs, ffs_inode *root, const std::string &tag);

#endif
