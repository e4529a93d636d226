/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocates and verifies memory that benchmarks read to, of a GPU or of the host. */
#include "bench/lib/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef GPUNVME_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#include "bench/lib/bench_report.h"
#include "bench/lib/kernels.h"
#include "support/page.h"

const char *bench_gpu_name(void)
{
#ifdef GPUNVME_HAVE_CUDA
    static struct cudaDeviceProp gpu;

    if (cudaGetDeviceProperties(&gpu, 0) == cudaSuccess)
        return gpu.name;
    cudaGetLastError();
#endif
    return NULL;
}

int bench_gpu_select(const uint8_t uuid[16])
{
    static const uint8_t cpu[15];

    if (memcmp(uuid, cpu, sizeof(cpu)) == 0)
        return 0;
#ifdef GPUNVME_HAVE_CUDA
    struct cudaDeviceProp gpu;

    for (int i = 0; cudaGetDeviceProperties(&gpu, i) == cudaSuccess; i++) {
        if (memcmp(gpu.uuid.bytes, uuid, sizeof(gpu.uuid.bytes)) == 0)
            return cudaSetDevice(i) == cudaSuccess && cudaFree(NULL) == cudaSuccess ? 0 : -EIO;
    }
    cudaGetLastError();
#endif
    return -ENODEV;
}

int bench_memory_alloc(struct bench_memory *m, bool on_gpu, uint64_t len)
{
    *m = (struct bench_memory){.on_gpu = on_gpu, .len = len};
#ifdef GPUNVME_HAVE_CUDA
    if (on_gpu)
        return cudaMalloc(&m->addr, len) == cudaSuccess ? 0 : -ENOMEM;
#endif
    m->addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m->addr != MAP_FAILED)
        return 0;
    m->addr = NULL;
    return -ENOMEM;
}

void bench_memory_free(struct bench_memory *m)
{
#ifdef GPUNVME_HAVE_CUDA
    if (m->on_gpu)
        cudaFree(m->addr);
#endif
    if (!m->on_gpu && m->addr)
        munmap(m->addr, m->len);
    m->addr = NULL;
}

void *bench_host_alloc(bool gpu, size_t len)
{
    size_t pages = page_whole(len);
    void *p = NULL;

#ifdef GPUNVME_HAVE_CUDA
    if (gpu && cudaHostAlloc(&p, pages, cudaHostAllocDefault) != cudaSuccess)
        p = NULL;
#endif
    if (!gpu)
        p = aligned_alloc(PAGE_BYTES, pages);
    if (p)
        memset(p, 0, pages);
    return p;
}

void bench_host_free(bool gpu, void *p)
{
#ifdef GPUNVME_HAVE_CUDA
    if (gpu)
        cudaFreeHost(p);
#endif
    if (!gpu)
        free(p);
}

/* Copies the places to the GPU, because its kernels look one up for every word. */
static int publish_places(struct pattern_pieces *p, bool gpu)
{
#ifdef GPUNVME_HAVE_CUDA
    size_t bytes = p->n * sizeof(*p->places);

    if (gpu && cudaMalloc((void **)&p->gpu_places, bytes) != cudaSuccess)
        return -ENOMEM;
    if (gpu && cudaMemcpy(p->gpu_places, p->places, bytes, cudaMemcpyHostToDevice) != cudaSuccess)
        return -EIO;
#endif
    (void)p;
    (void)gpu;
    return 0;
}

int bench_pieces_make(struct pattern_pieces *p, bool gpu, uint64_t seed, uint64_t len,
                      uint64_t bytes, uint64_t from, uint64_t span, bool random)
{
    uint64_t state = seed;

    bench_pieces_free(p, gpu);
    *p = (struct pattern_pieces){.seed = seed, .bytes = bytes, .n = len / bytes};
    p->places = calloc(p->n, sizeof(*p->places));
    for (uint64_t i = 0; p->places && i < p->n; i++) {
        state = pattern_word(state, i);
        p->places[i] = from + (random ? state : i) % (span / bytes) * bytes;
    }
    if (!p->places || publish_places(p, gpu))
        return bench_fail("memory", "not enough of it");
    return 0;
}

void bench_pieces_free(struct pattern_pieces *p, bool gpu)
{
#ifdef GPUNVME_HAVE_CUDA
    if (gpu)
        cudaFree(p->gpu_places);
#endif
    (void)gpu;
    free(p->places);
    p->places = NULL;
    p->gpu_places = NULL;
}

static int write_pattern(const struct bench_memory *m, uint64_t len, uint64_t seed, bool poison)
{
#ifdef GPUNVME_HAVE_CUDA
    if (m->on_gpu)
        return pattern_gpu_write(m->addr, len, seed, 0, poison);
#endif
    pattern_host_write(m->addr, len, seed, 0, poison);
    return 0;
}

int bench_fill(const struct bench_memory *m, uint64_t len, uint64_t seed)
{
    return write_pattern(m, len, seed, false);
}

int bench_poison(const struct bench_memory *m, uint64_t seed)
{
    return write_pattern(m, m->len, seed, true);
}

int bench_verify(const struct bench_memory *m, const struct pattern_pieces *p, const char *who)
{
    uint64_t wrong = 0;
    int err = 0;

#ifdef GPUNVME_HAVE_CUDA
    if (m->on_gpu)
        err = pattern_gpu_count_wrong(m->addr, p, &wrong);
#endif
    if (!m->on_gpu)
        wrong = pattern_host_count_wrong(m->addr, p);
    if (err)
        fprintf(stderr, "%s: verification: the GPU failed\n", who);
    if (wrong)
        fprintf(stderr, "%s: %" PRIu64 " words of 8 bytes are WRONG\n", who, wrong);
    return wrong ? -EIO : err;
}

int bench_copy_to(const struct bench_memory *m, uint64_t offset, const void *from, size_t len)
{
    char *to = (char *)m->addr + offset;

#ifdef GPUNVME_HAVE_CUDA
    if (m->on_gpu)
        return cudaMemcpy(to, from, len, cudaMemcpyHostToDevice) == cudaSuccess ? 0 : -EIO;
#endif
    memcpy(to, from, len);
    return 0;
}

int bench_gather(const struct bench_memory *m, const void *from, const struct pattern_pieces *p)
{
#ifdef GPUNVME_HAVE_CUDA
    if (m->on_gpu)
        return kernel_gather(m->addr, from, p);
#endif
    for (uint64_t i = 0; i < p->n; i++)
        memcpy((char *)m->addr + i * p->bytes, (const char *)from + p->places[i], p->bytes);
    return 0;
}

int bench_stream_open(struct bench_stream *s, bool gpu, size_t len)
{
    *s = (struct bench_stream){.gpu = gpu, .len = len, .buffer = bench_host_alloc(gpu, len)};
    if (!s->buffer)
        return -ENOMEM;
#ifdef GPUNVME_HAVE_CUDA
    if (gpu) {
        cudaStream_t stream;

        if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
            return -ENOMEM;
        s->cuda = stream;
    }
#endif
    return 0;
}

void bench_stream_close(struct bench_stream *s)
{
#ifdef GPUNVME_HAVE_CUDA
    if (s->cuda)
        cudaStreamDestroy(s->cuda);
#endif
    bench_host_free(s->gpu, s->buffer);
    *s = (struct bench_stream){.buffer = NULL};
}

int bench_stream_copy(struct bench_stream *s, const struct bench_memory *to, uint64_t offset,
                      size_t len)
{
#ifdef GPUNVME_HAVE_CUDA
    if (s->gpu)
        return cudaMemcpyAsync((char *)to->addr + offset, s->buffer, len, cudaMemcpyHostToDevice,
                               s->cuda) == cudaSuccess
                   ? 0
                   : -EIO;
#endif
    memcpy((char *)to->addr + offset, s->buffer, len);
    return 0;
}

int bench_stream_wait(struct bench_stream *s)
{
#ifdef GPUNVME_HAVE_CUDA
    if (s->gpu)
        return cudaStreamSynchronize(s->cuda) == cudaSuccess ? 0 : -EIO;
#endif
    (void)s;
    return 0;
}
