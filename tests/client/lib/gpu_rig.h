/* SPDX-License-Identifier: BSD-2-Clause */
// A mount on a machine with a GPU, leases of it, and a buffer in the memory of the GPU.
#ifndef TESTS_CLIENT_LIB_GPU_RIG_H
#define TESTS_CLIENT_LIB_GPU_RIG_H

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/client/lib/mount_rig.h"

namespace gpu_rig
{

constexpr size_t kPage = 4096, kMiB = 1u << 20, kFile = 64 * kMiB + 1232, kRoom = 96 * kMiB;
constexpr size_t kHole = 20 * kMiB, kHoleLength = 300000;
constexpr unsigned kResults = 256;
constexpr unsigned char kGuard = 0x5a;

// n zeros in memory that host and GPU share; null when there is none.
template <typename T> T *pinned(size_t n)
{
    void *p = nullptr;

    return cudaHostAlloc(&p, n * sizeof(T), cudaHostAllocMapped) == cudaSuccess
               ? static_cast<T *>(memset(p, 0, n * sizeof(T)))
               : nullptr;
}

class GpuRig : public mount_rig::Connection
{
  protected:
    // A fatal failure, or a skip, ends it early. Of queues and their entries 0 is the default.
    void start(const std::string &options, uint32_t queues = 0, uint32_t depth = 0);
    // Of kRoom bytes: 0 or -errno.
    virtual int alloc(struct gpunvme_buffer **out) { return buffer_alloc(g_, kRoom, out); }
    void TearDown() override;

    void punch_hole();
    // Changes a bit of the file's byte at `offset`, in the image.
    void flip(uint64_t offset);
    unsigned char *memory() { return static_cast<unsigned char *>(buffer_addr(buffer_)); }
    // Fills the buffer with kGuard, in the stream.
    void poison();
    // n bytes at dst, of any memory, are those of the file at offset.
    ::testing::AssertionResult holds(const unsigned char *dst, size_t n, uint64_t offset);
    // What a read in the stream returns, in the call or when it has ended.
    int64_t read_async(unsigned char *dst, size_t n, uint64_t offset);

    cudaStream_t stream_ = nullptr;
    int64_t *bytes_ = nullptr; // kResults of them, in memory that the GPU reaches
    std::vector<unsigned char> file_ = std::vector<unsigned char>(kFile);

  private:
    void make_file();
};

} // namespace gpu_rig

#endif
