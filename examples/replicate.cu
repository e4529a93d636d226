/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Loads a file into the memory of several GPUs, and reads each byte once. A
 * thread for each GPU reads that GPU's share of the file and copies it to the
 * others, through NVLink where they have it. Processes with a GPU each would
 * read their shares in the same way, and exchange them by ncclAllGather().
 *
 *     example_replicate /mnt/model.bin 0 1
 */
#include <errno.h>
#include <fcntl.h>
#include <gpunvme/gpunvme.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <thread>

#define CHUNK    ((uint64_t)64 << 20)
#define GPUS_MAX 16

/* Each GPU has memory for the whole file. */
struct replica {
    int device;
    char *memory;
    int rc; /* of the thread that reads this GPU's share */
};

struct load {
    struct gpunvme_file *file;
    uint64_t size;
    struct replica gpus[GPUS_MAX];
    int n_gpus;
};

static int failed(const char *object, const char *why)
{
    fprintf(stderr, "example_replicate: %s: %s\n", object, why);
    return -1;
}

static bool cuda_ok(cudaError_t err)
{
    return err == cudaSuccess || failed("CUDA", cudaGetErrorString(err)) == 0;
}

/* Copies bytes that this GPU has read to all others, in the thread's stream. */
static int copy_to_others(const struct load *l, const struct replica *from, uint64_t at, uint64_t n)
{
    for (int i = 0; i < l->n_gpus; i++) {
        const struct replica *to = &l->gpus[i];

        if (to != from &&
            !cuda_ok(cudaMemcpyPeerAsync(to->memory + at, to->device, from->memory + at,
                                         from->device, n, cudaStreamPerThread)))
            return -1;
    }
    return 0;
}

/* Reads bytes [at, end), and copies each chunk while it reads the next one. */
static int read_share(const struct load *l, const struct replica *gpu, uint64_t at, uint64_t end)
{
    while (at < end) {
        uint64_t n = end - at < CHUNK ? end - at : CHUNK;
        ssize_t got = gpunvme_read(l->file, gpu->memory + at, n, at, NULL);

        if (got <= 0)
            return failed("file", got ? gpunvme_error() : "it has become shorter");
        if (copy_to_others(l, gpu, at, (uint64_t)got))
            return -1;
        at += (uint64_t)got;
    }
    return cuda_ok(cudaStreamSynchronize(cudaStreamPerThread)) ? 0 : -1;
}

/* Shares begin at multiples of 4 KiB, at which reads are fastest. */
static void run_gpu(struct load *l, int i)
{
    uint64_t share = (l->size / (uint64_t)l->n_gpus + 4096) & ~(uint64_t)4095;
    uint64_t at = share * (uint64_t)i < l->size ? share * (uint64_t)i : l->size;
    uint64_t end = l->size - at < share ? l->size : at + share;
    struct replica *gpu = &l->gpus[i];

    gpu->rc = cuda_ok(cudaSetDevice(gpu->device)) ? read_share(l, gpu, at, end) : -1;
}

__device__ unsigned long long total;

__global__ void sum_words(const uint64_t *words, uint64_t n)
{
    unsigned long long mine = 0;

    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        mine += words[i];
    atomicAdd(&total, mine);
}

/* Prints a sum that the GPU computes over its copy of the file. */
static int print_sum(const struct load *l, const struct replica *gpu)
{
    unsigned long long sum = 0;

    if (!cuda_ok(cudaSetDevice(gpu->device)) ||
        !cuda_ok(cudaMemcpyToSymbol(total, &sum, sizeof(sum))))
        return -1;
    sum_words<<<64, 256>>>((const uint64_t *)gpu->memory, l->size / sizeof(uint64_t));
    if (!cuda_ok(cudaMemcpyFromSymbol(&sum, total, sizeof(sum))))
        return -1;
    printf("GPU %d: %" PRIu64 " bytes, sum of words %llx\n", gpu->device, l->size, sum);
    return 0;
}

/* Allocates the memory, and lets the GPU reach that of the others directly. */
static int prepare(struct load *l, struct replica *gpu)
{
    if (!cuda_ok(cudaSetDevice(gpu->device)) || !cuda_ok(cudaMalloc(&gpu->memory, l->size)))
        return -1;
    for (int i = 0; i < l->n_gpus; i++) {
        if (l->gpus[i].device != gpu->device)
            cudaDeviceEnablePeerAccess(l->gpus[i].device, 0);
    }
    cudaGetLastError(); /* without peer access CUDA copies through host memory */
    return 0;
}

static int load(struct load *l)
{
    std::thread threads[GPUS_MAX];
    int rc = 0;

    for (int i = 0; i < l->n_gpus; i++) {
        if (prepare(l, &l->gpus[i]))
            return -1;
    }
    for (int i = 0; i < l->n_gpus; i++)
        threads[i] = std::thread(run_gpu, l, i);
    for (int i = 0; i < l->n_gpus; i++)
        threads[i].join();
    for (int i = 0; i < l->n_gpus; i++) {
        if (l->gpus[i].rc || print_sum(l, &l->gpus[i]))
            rc = -1;
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct load l = {};
    struct gpunvme *g = NULL;
    int fd, rc = -1;

    if (argc < 3 || argc > 2 + GPUS_MAX) {
        fprintf(stderr, "usage: example_replicate FILE GPU...\n");
        return 2;
    }
    for (l.n_gpus = 0; l.n_gpus < argc - 2; l.n_gpus++)
        l.gpus[l.n_gpus].device = atoi(argv[2 + l.n_gpus]);
    fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        failed(argv[1], strerror(errno));
        return 1;
    }
    if (gpunvme_open(NULL, &g) || gpunvme_file_open(g, fd, 0, &l.file)) {
        failed(argv[1], gpunvme_error());
    } else {
        l.size = (uint64_t)gpunvme_file_size(l.file);
        rc = load(&l);
    }
    gpunvme_close(g); /* nothing accesses the memory afterwards */
    for (int i = 0; i < l.n_gpus; i++)
        cudaFree(l.gpus[i].memory);
    close(fd);
    return rc ? 1 : 0;
}
