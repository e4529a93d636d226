/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory for tests: of the host, or of a GPU. */
#include "tests/cuda/gq_test_mem.h"

#include <string.h>
#include <sys/mman.h>

#ifdef GPUNVME_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

bool test_mem_alloc(bool is_cuda, size_t len, struct test_mem *out)
{
    *out = (struct test_mem){.is_cuda = is_cuda, .len = len};
#ifdef GPUNVME_HAVE_CUDA
    if (is_cuda)
        return cudaMalloc(&out->addr, len) == cudaSuccess;
#endif
    out->addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return !is_cuda && out->addr != MAP_FAILED;
}

void test_mem_free(struct test_mem *m)
{
#ifdef GPUNVME_HAVE_CUDA
    if (m->is_cuda) {
        cudaFree(m->addr);
        return;
    }
#endif
    munmap(m->addr, m->len);
}

void test_mem_write(const struct test_mem *m, size_t offset, const void *src, size_t len)
{
    char *at = (char *)m->addr + offset;

#ifdef GPUNVME_HAVE_CUDA
    if (m->is_cuda) {
        cudaMemcpy(at, src, len, cudaMemcpyHostToDevice);
        cudaDeviceSynchronize();
        return;
    }
#endif
    if (len > 0) /* nothing may come from nowhere */
        memcpy(at, src, len);
}

void test_mem_read(const struct test_mem *m, size_t offset, void *dst, size_t len)
{
    const char *at = (const char *)m->addr + offset;

#ifdef GPUNVME_HAVE_CUDA
    if (m->is_cuda) {
        cudaMemcpy(dst, at, len, cudaMemcpyDeviceToHost);
        return;
    }
#endif
    if (len > 0)
        memcpy(dst, at, len);
}

bool test_mem_export(const struct test_mem *m, unsigned char ipc[64])
{
#ifdef GPUNVME_HAVE_CUDA
    cudaIpcMemHandle_t handle;

    if (!m->is_cuda || cudaIpcGetMemHandle(&handle, m->addr) != cudaSuccess)
        return false;
    memcpy(ipc, &handle, sizeof(handle));
    return true;
#else
    (void)m;
    (void)ipc;
    return false;
#endif
}
