/* SPDX-License-Identifier: BSD-2-Clause */
// Makes files whose contents show where they belong, and judges those of a damaged file system.
#ifndef TESTS_MEDIA_FILES_H
#define TESTS_MEDIA_FILES_H

#include <stdint.h>

#include <map>
#include <string>
#include <vector>

#include "fusefs/core/ffs.h"

// What a path must show.
struct MediaFile {
    uint64_t ino = 0;
    uint32_t mode = 0, uid = 0;
    std::string data;      // of a regular file, or the target of a symbolic link
    std::string attribute; // value of MEDIA_XATTR; empty: none
};
using MediaFiles = std::map<std::string, MediaFile>;

#define MEDIA_XATTR "user.media"

// A block of a file: its number and version are in its content.
std::string media_block(uint32_t file, uint32_t version, uint64_t block);

// Makes files, directories and links of every kind; then changes most of them.
void media_populate(struct ffs *fs);
void media_change(struct ffs *fs);
// Changes a few more, so that the log holds something.
void media_touch(struct ffs *fs);

// Everything below the root. Throws when something cannot be read.
MediaFiles media_list(struct ffs *fs);

enum MediaVerdict {
    MEDIA_SAME,
    MEDIA_ERROR,   // EIO or EUCLEAN, and everything that could be read is the same
    MEDIA_MOVED,   // the same, but it or a directory above it is in lost+found
    MEDIA_GONE,    // not found
    MEDIA_DIFFERS, // without an error
    MEDIA_WRONG,   // a block has the content of another file, or of none
};
// Compares a file with what it was, found by its path.
MediaVerdict media_judge(struct ffs *fs, const std::string &path, const MediaFile &want);
// Compares a file after a repair. fsck may have moved it, or a directory above it, to lost+found.
MediaVerdict media_judge_repaired(struct ffs *fs, const std::string &path, const MediaFiles &all);
const char *media_verdict_name(MediaVerdict verdict);

#endif
