/* SPDX-License-Identifier: BSD-2-Clause */
// Where the fields of each kind of metadata block are, for mutations that change one field.
#ifndef TESTS_FUSEFS_IMAGE_FIELDS_H
#define TESTS_FUSEFS_IMAGE_FIELDS_H

#include <cstddef>
#include <cstdint>
#include <vector>

struct ImageField {
    uint16_t offset; // in the block
    uint8_t size;    // 1, 2, 4 or 8 bytes
};

// Fields of a block with this magic; a block's arrays count as the fields of their elements.
const std::vector<ImageField> &image_fields(uint32_t magic);

#endif
