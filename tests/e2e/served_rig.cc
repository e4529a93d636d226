/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/e2e/served_rig.h"

#include "tests/e2e/content.h"

int write_content(const std::string &path, uint64_t seed)
{
    std::vector<uint8_t> data(kFile);
    content_fill(seed, 0, data.data(), kFile);
    int fd = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, data.data(), kFile) != static_cast<ssize_t>(kFile)) {
        perror(path.c_str());
        abort();
    }
    return fd;
}

::testing::AssertionResult has_content(const std::string &path, uint64_t seed)
{
    std::vector<uint8_t> expected(kFile), got(kFile + 1);
    content_fill(seed, 0, expected.data(), kFile);
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, got.data(), got.size());
    close(fd);
    got.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return got == expected ? ::testing::AssertionSuccess()
                           : ::testing::AssertionFailure() << path << ": " << n << " bytes";
}
