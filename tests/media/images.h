/* SPDX-License-Identifier: BSD-2-Clause */
// File systems to be damaged, and the damage.
#ifndef TESTS_MEDIA_IMAGES_H
#define TESTS_MEDIA_IMAGES_H

#include <stdint.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/media/files.h"

constexpr uint64_t MEDIA_BYTES = 16u << 20;

// A file system as it is, and as it was when its files were first written.
struct MediaImage {
    bool data_csum, copies;
    bool crashed; // transactions in the log are not in place yet
    std::vector<uint8_t> now, old;
    MediaFiles files;
    std::map<std::string, std::vector<uint64_t>> blocks; // of each kind that is in use
};

MediaImage media_image(bool data_csum, bool copies, bool crashed);

enum MediaDamage {
    MEDIA_FLIP,
    MEDIA_ZERO,
    MEDIA_GARBAGE,
    MEDIA_SWAP,        // with a block of the same kind
    MEDIA_STALE,       // the block as it was before
    MEDIA_MISDIRECTED, // the block is overwritten by one of another kind
    MEDIA_HALF,        // the last write of the block did not reach all LBAs
    MEDIA_DAMAGES,
};
const char *media_damage_name(MediaDamage damage);

// Damage done to a copy of an image.
struct MediaCase {
    MediaDamage damage;
    std::string kind; // of the damaged block
    std::string text; // says what was done
    std::vector<uint8_t> bytes;
};
// Chooses a kind and a block. The same random numbers lead to the same case. A former case's memory
// is used again, because new memory costs a page fault for each page.
void media_case(const MediaImage &image, MediaDamage damage, std::mt19937_64 &random, MediaCase &c);

#endif
