/* SPDX-License-Identifier: BSD-2-Clause */
// A program that reads a file on leased queues until it is killed:
// copy_kernel_child MOUNTPOINT FILE. Writes a byte to stdout after each hundred
// correct reads. Ends when stdout is closed.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "gpunvme/gpunvme.h"

namespace
{

constexpr size_t kPage = 4096, kBuffer = 4u << 20;

struct Reader {
    gpunvme *g = nullptr;
    gpunvme_buffer *buffer = nullptr;
    gpunvme_direct *direct = nullptr;
    gpunvme_file *file = nullptr;
    int64_t *bytes = nullptr;
    cudaStream_t stream = nullptr;
    int fd = -1;
    std::mt19937_64 rng{1};

    bool open(const char *mountpoint, const char *path)
    {
        fd = ::open(path, O_RDONLY | O_CLOEXEC);
        return fd >= 0 && gpunvme_connect(mountpoint, &g) == 0 &&
               gpunvme_alloc(g, kBuffer, &buffer) == 0 &&
               gpunvme_direct_open(g, nullptr, &direct) == 0 &&
               gpunvme_file_open(direct, fd, &file) == 0 &&
               cudaHostAlloc(reinterpret_cast<void **>(&bytes), sizeof(*bytes),
                             cudaHostAllocMapped) == cudaSuccess &&
               cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
    }

    // Reads one page into the buffer and compares it with the file.
    bool read_one()
    {
        std::vector<char> got(kPage), want(kPage);
        uint64_t offset = rng() % (gpunvme_file_size(file) / kPage) * kPage;
        size_t at = rng() % (kBuffer / kPage) * kPage;
        char *dst = static_cast<char *>(gpunvme_buffer_addr(buffer)) + at;

        *bytes = -1;
        return gpunvme_read_async(file, dst, kPage, offset, stream, bytes) == 0 &&
               cudaStreamSynchronize(stream) == cudaSuccess && *bytes == (int64_t)kPage &&
               gpunvme_copy_out(buffer, at, got.data(), kPage) == 0 &&
               pread(fd, want.data(), kPage, (off_t)offset) == (ssize_t)kPage && got == want;
    }
};

} // namespace

int main(int argc, char **argv)
{
    Reader reader;
    bool right = argc == 3 && reader.open(argv[1], argv[2]);

    while (right) {
        for (unsigned i = 0; i < 100 && right; i++)
            right = reader.read_one();
        if (right && write(STDOUT_FILENO, "r", 1) != 1)
            return 0;
    }
    fprintf(stderr, "copy_kernel_child: %s, bytes %lld\n", gpunvme_error(),
            reader.bytes ? (long long)*reader.bytes : -1);
    return 1;
}
