/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Adds two vectors that lie in one file, the first and the second half of its
 * 32-bit words, through a cache of an eighth of the file in GPU memory. The
 * kernel reads the file as if it were memory; no thread knows what the cache
 * holds. The sums are compared with those of the host. The mount must have a GPU
 * and the option direct=.
 *
 *     example_array /mnt/vectors.bin
 */
#include <errno.h>
#include <fcntl.h>
#include <gpunvme/gpunvme.h>
#include <gpunvme/gpunvme_array.cuh>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 128u
#define BLOCKS  64u

static int failed(const char *object, const char *why)
{
    fprintf(stderr, "example_array: %s: %s\n", object, why);
    return -1;
}

static bool cuda_ok(cudaError_t err)
{
    return err == cudaSuccess || failed("CUDA", cudaGetErrorString(err)) == 0;
}

__global__ void __launch_bounds__(THREADS)
    add(const struct gpunvme_device_cache *cache, uint32_t *sums, uint64_t n, int *error)
{
    gpunvme_array<uint32_t> a(cache, 0, n), b(cache, n * sizeof(uint32_t), n);

    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        uint32_t x, y;
        int err = a.get(i, &x);

        if (!err)
            err = b.get(i, &y);
        if (err)
            *error = -err;
        else
            sums[i] = x + y;
    }
}

/* Compares the sums with those of the words that read(2) returns. */
static int compare(const char *path, const uint32_t *sums, uint64_t n)
{
    size_t bytes = n * sizeof(uint32_t), wrong = 0;
    uint32_t *words = (uint32_t *)malloc(2 * bytes);
    FILE *file = fopen(path, "rb");

    if (!words || !file || fread(words, 1, 2 * bytes, file) != 2 * bytes)
        wrong = n + 1;
    for (uint64_t i = 0; i < n && wrong <= n; i++)
        wrong += sums[i] != words[i] + words[n + i];
    if (file)
        fclose(file);
    free(words);
    return wrong ? failed(path, "the sums are not those of the host") : 0;
}

static int run(struct gpunvme_cache *c, const char *path, uint32_t *sums, uint64_t n, int *error)
{
    struct gpunvme_cache_stats stats;
    cudaStream_t stream;
    bool ok;

    if (!cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)))
        return -1;
    add<<<BLOCKS, THREADS, 0, stream>>>(gpunvme_cache_device(c), sums, n, error);
    ok = cuda_ok(cudaGetLastError()) && cuda_ok(cudaStreamSynchronize(stream));
    cudaStreamDestroy(stream);
    if (!ok)
        return -1;
    if (*error)
        return failed(path, strerror(*error));
    if (compare(path, sums, n))
        return -1;
    if (gpunvme_cache_stats(c, &stats, sizeof(stats)))
        return failed("cache", gpunvme_error());
    fprintf(stderr, "%llu hits, %llu lines read\n", (unsigned long long)stats.hits,
            (unsigned long long)stats.misses);
    printf("%llu sums, equal to those of the host\n", (unsigned long long)n);
    return 0;
}

static int open_and_run(struct gpunvme *g, int fd, const char *path)
{
    struct gpunvme_cache *c = NULL;
    struct gpunvme_file *f;
    uint32_t *sums = NULL;
    int *error = NULL, rc = -1;
    uint64_t n;

    if (gpunvme_file_open(g, fd, GPUNVME_FILE_DIRECT, &f))
        return failed(path, gpunvme_error());
    n = (uint64_t)gpunvme_file_size(f) / 2 / sizeof(uint32_t);
    if (gpunvme_cache_open(f, n + 65536, 4096, &c))
        return failed("cache", gpunvme_error());
    if (cuda_ok(cudaHostAlloc(&sums, n * sizeof(*sums), 0)) &&
        cuda_ok(cudaHostAlloc(&error, sizeof(*error), 0))) {
        memset(sums, 0, n * sizeof(*sums));
        *error = 0;
        rc = run(c, path, sums, n, error);
    }
    gpunvme_cache_close(c);
    cudaFreeHost(error);
    cudaFreeHost(sums);
    return rc;
}

int main(int argc, char **argv)
{
    struct gpunvme *g = NULL;
    int fd, rc = -1;

    if (argc != 2) {
        fprintf(stderr, "usage: example_array FILE\n");
        return 2;
    }
    fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        failed(argv[1], strerror(errno));
    else if (gpunvme_open(NULL, &g))
        failed("mount", gpunvme_error());
    else
        rc = open_and_run(g, fd, argv[1]);
    gpunvme_close(g);
    if (fd >= 0)
        close(fd);
    return rc ? 1 : 0;
}
