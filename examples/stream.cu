/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sums the 64-bit words of a file on the GPU. Two streams alternate: while one
 * reads a chunk, the kernel of the other one sums the previous chunk. The mount
 * must have a GPU and the option direct=.
 *
 *     example_stream /mnt/table.bin
 */
#include <errno.h>
#include <fcntl.h>
#include <gpunvme/gpunvme.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHUNK   ((size_t)16 << 20)
#define STREAMS 2

/*
 * Describes one stream. `words` is its part of the buffer, and `bytes` is the
 * result of its read, in pinned memory.
 */
struct half {
    cudaStream_t stream;
    uint64_t *words;
    int64_t *bytes;
};

static int failed(const char *object, const char *why)
{
    fprintf(stderr, "example_stream: %s: %s\n", object, why);
    return -1;
}

static bool cuda_ok(cudaError_t err)
{
    return err == cudaSuccess || failed("CUDA", cudaGetErrorString(err)) == 0;
}

__device__ unsigned long long total;

/*
 * Sums the words of a chunk. The preceding read in the stream stores *bytes;
 * words past the end of the file are not summed.
 */
__global__ void sum_words(const uint64_t *words, const int64_t *bytes)
{
    unsigned long long mine = 0;
    int64_t n = *bytes / (int64_t)sizeof(*words);

    for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        mine += words[i];
    atomicAdd(&total, mine);
}

/* Reports an error of the stream's last read. The stream must have ended. */
static int check(const struct half *h)
{
    return *h->bytes < 0 ? failed("file", strerror((int)-*h->bytes)) : 0;
}

/* Launches the read, for which the values are needed during the call only. */
static int submit(struct gpunvme_file *f, struct half *h, int64_t offset)
{
    const size_t len = CHUNK;
    const int64_t start = 0;
    struct gpunvme_stream_transfer t = {};

    t.addr = h->words;
    t.len = &len;
    t.file_offset = &offset;
    t.addr_offset = &start;
    t.bytes = h->bytes;
    return gpunvme_submit_stream(f, &t, h->stream);
}

static int sum_file(struct gpunvme_file *f, struct half *halves)
{
    const uint64_t size = (uint64_t)gpunvme_file_size(f);
    unsigned turn = 0;

    for (uint64_t at = 0; at < size; at += CHUNK, turn++) {
        struct half *h = &halves[turn % STREAMS];

        if (!cuda_ok(cudaStreamSynchronize(h->stream)) || check(h))
            return -1;
        if (submit(f, h, (int64_t)at))
            return failed("file", gpunvme_error());
        sum_words<<<64, 256, 0, h->stream>>>(h->words, h->bytes);
        if (!cuda_ok(cudaGetLastError()))
            return -1;
    }
    return 0;
}

/*
 * Waits even after an error, since the memory of a read must stay until its
 * stream has ended.
 */
static int finish(struct half *halves, int rc)
{
    for (int i = 0; i < STREAMS; i++) {
        if (!cuda_ok(cudaStreamSynchronize(halves[i].stream)) || check(&halves[i]))
            rc = -1;
    }
    return rc;
}

static int run(struct gpunvme *g, int fd, char *buffer, struct half *halves, int64_t *pinned)
{
    unsigned long long sum = 0;
    struct gpunvme_file *f;
    int rc;

    for (int i = 0; i < STREAMS; i++) {
        halves[i].words = (uint64_t *)(buffer + (size_t)i * CHUNK);
        halves[i].bytes = &pinned[i];
        if (!cuda_ok(cudaStreamCreateWithFlags(&halves[i].stream, cudaStreamNonBlocking)))
            return -1;
    }
    if (gpunvme_register(g, buffer, STREAMS * CHUNK) ||
        gpunvme_file_open(g, fd, GPUNVME_FILE_DIRECT, &f))
        return failed("mount", gpunvme_error());
    rc = finish(halves, sum_file(f, halves));
    if (rc == 0 && cuda_ok(cudaMemcpyFromSymbol(&sum, total, sizeof(sum))))
        printf("%" PRId64 " bytes, sum of words %llx\n", gpunvme_file_size(f), sum);
    else
        rc = -1;
    return rc;
}

int main(int argc, char **argv)
{
    struct half halves[STREAMS] = {};
    struct gpunvme *g = NULL;
    char *buffer = NULL;
    int64_t *pinned = NULL; /* results of the reads */
    int fd = -1, rc = -1;

    if (argc != 2) {
        fprintf(stderr, "usage: example_stream FILE\n");
        return 2;
    }
    fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        failed(argv[1], strerror(errno));
    } else if (gpunvme_open(NULL, &g)) {
        failed("mount", gpunvme_error());
    } else if (cuda_ok(cudaMalloc(&buffer, STREAMS * CHUNK)) &&
               cuda_ok(cudaHostAlloc(&pinned, STREAMS * sizeof(*pinned), 0))) {
        memset(pinned, 0, STREAMS * sizeof(*pinned));
        rc = run(g, fd, buffer, halves, pinned);
    }
    gpunvme_close(g); /* nothing accesses the buffer afterwards */
    for (int i = 0; i < STREAMS; i++) {
        if (halves[i].stream)
            cudaStreamDestroy(halves[i].stream);
    }
    cudaFreeHost(pinned);
    cudaFree(buffer);
    if (fd >= 0)
        close(fd);
    return rc ? 1 : 0;
}
