/* SPDX-License-Identifier: BSD-2-Clause */
// A program that reads a file into its own host memory until it is killed: host_child MOUNTPOINT
// FILE. Writes a byte to stdout after each read that was right. Ends when stdout does.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "client/lib/connection.h"

int main(int argc, char **argv)
{
    connection *g = nullptr;
    gpunvme_buffer *b = nullptr;
    struct stat st = {};
    int fd = argc == 3 ? open(argv[2], O_RDONLY | O_CLOEXEC) : -1;

    if (fd < 0 || fstat(fd, &st) != 0 || connection_open(argv[1], &g) != 0 ||
        buffer_alloc_host(g, static_cast<size_t>(st.st_size), &b) != 0) {
        fprintf(stderr, "host_child: %s\n", gpunvme_error());
        return 1;
    }
    size_t size = buffer_len(b);
    std::vector<char> want(size);
    bool right = pread(fd, want.data(), size, 0) == static_cast<ssize_t>(size);
    while (right) {
        memset(buffer_addr(b), 0, size);
        right = transfer_read(b, fd, 0, 0, size, nullptr) == static_cast<ssize_t>(size) &&
                memcmp(buffer_addr(b), want.data(), size) == 0;
        if (right && write(STDOUT_FILENO, "r", 1) != 1)
            return 0;
    }
    fprintf(stderr, "host_child: %s\n", gpunvme_error());
    return 1;
}
