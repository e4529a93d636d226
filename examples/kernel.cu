/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads a file from a running kernel: each warp reads blocks of 4 KiB at
 * pseudo-random offsets and counts the zero bytes in them. The mount must have
 * a GPU and the option direct=.
 *
 *     example_kernel /mnt/table.bin
 */
#include <errno.h>
#include <fcntl.h>
#include <gpunvme/gpunvme.h>
#include <gpunvme/gpunvme_device.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BLOCK   4096u
#define WARPS   32u
#define READS   256u /* per warp */
#define THREADS 128u

struct counts {
    unsigned long long bytes, zeros;
    int error; /* -errno of a failed read, or 0 */
};

static int failed(const char *object, const char *why)
{
    fprintf(stderr, "example_kernel: %s: %s\n", object, why);
    return -1;
}

static bool cuda_ok(cudaError_t err)
{
    return err == cudaSuccess || failed("CUDA", cudaGetErrorString(err)) == 0;
}

/*
 * Called by all threads of a warp. `room` is the warp's part of a registered
 * buffer.
 */
__device__ void read_one(const struct gpunvme_device_file *file, unsigned char *room,
                         uint64_t offset, struct counts *counts)
{
    int64_t n = gpunvme_pread_warp(file, room, BLOCK, offset);
    unsigned zeros = 0;

    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        zeros += room[i] == 0;
    zeros = __reduce_add_sync(0xffffffffu, zeros);
    if (threadIdx.x % 32 != 0)
        return;
    if (n < 0) {
        atomicExch(&counts->error, (int)-n);
    } else {
        atomicAdd(&counts->bytes, (unsigned long long)n);
        atomicAdd(&counts->zeros, (unsigned long long)zeros);
    }
}

__global__ void look_up(const struct gpunvme_device_file *file, unsigned char *buffer,
                        struct counts *counts)
{
    const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const uint64_t blocks = (gpunvme_size(file) + BLOCK - 1) / BLOCK;
    uint64_t next = warp + 1;

    for (unsigned i = 0; i < READS && blocks > 0; i++) {
        next = next * 6364136223846793005ull + 1442695040888963407ull;
        read_one(file, buffer + warp * BLOCK, (next >> 16) % blocks * BLOCK, counts);
    }
}

/*
 * Launches the kernel and waits for it. It does not use the default stream,
 * which would wait for all other streams of the process.
 */
static int count(const struct gpunvme_device_file *file, unsigned char *buffer,
                 struct counts *counts)
{
    cudaStream_t stream;
    bool ok;

    if (!cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)))
        return -1;
    look_up<<<WARPS * 32 / THREADS, THREADS, 0, stream>>>(file, buffer, counts);
    ok = cuda_ok(cudaGetLastError()) && cuda_ok(cudaStreamSynchronize(stream));
    cudaStreamDestroy(stream);
    if (!ok)
        return -1;
    if (counts->error)
        return failed("file", strerror(counts->error));
    printf("%llu bytes, %llu of them zero\n", counts->bytes, counts->zeros);
    return 0;
}

static int run(struct gpunvme *g, int fd, unsigned char *buffer, struct counts *counts)
{
    struct gpunvme_file *f;

    if (gpunvme_register(g, buffer, (size_t)WARPS * BLOCK) ||
        gpunvme_file_open(g, fd, GPUNVME_FILE_DIRECT, &f))
        return failed("mount", gpunvme_error());
    return count(gpunvme_file_device(f), buffer, counts);
}

int main(int argc, char **argv)
{
    struct gpunvme *g = NULL;
    unsigned char *buffer = NULL;
    struct counts *counts = NULL;
    int fd = -1, rc = -1;

    if (argc != 2) {
        fprintf(stderr, "usage: example_kernel FILE\n");
        return 2;
    }
    fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        failed(argv[1], strerror(errno));
    } else if (gpunvme_open(NULL, &g)) {
        failed("mount", gpunvme_error());
    } else if (cuda_ok(cudaMalloc(&buffer, (size_t)WARPS * BLOCK)) &&
               cuda_ok(cudaHostAlloc(&counts, sizeof(*counts), 0))) {
        memset(counts, 0, sizeof(*counts));
        rc = run(g, fd, buffer, counts);
    }
    gpunvme_close(g); /* nothing accesses the buffer afterwards */
    cudaFreeHost(counts);
    cudaFree(buffer);
    if (fd >= 0)
        close(fd);
    return rc ? 1 : 0;
}
