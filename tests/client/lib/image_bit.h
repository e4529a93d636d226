/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_CLIENT_LIB_IMAGE_BIT_H
#define TESTS_CLIENT_LIB_IMAGE_BIT_H

#include <cstdint>
#include <fcntl.h>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "gpunvme/gpunvme.h"

// Changes a bit of the file's byte at `offset` in the image, behind the mount.
inline void flip_in_image(const std::string &image, int fd, uint64_t offset)
{
    struct gpunvme_extent e;
    char c;

    ASSERT_EQ(gpunvme_extents(fd, offset / 4096 * 4096, &e, 1), 1);
    auto at = static_cast<off_t>(e.device + (offset - e.file_offset));
    int raw = open(image.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(pread(raw, &c, 1, at), 1);
    c ^= 8;
    ASSERT_EQ(pwrite(raw, &c, 1, at), 1);
    close(raw);
}

#endif
