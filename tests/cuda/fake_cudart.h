/* SPDX-License-Identifier: BSD-2-Clause */
// Defines calls of the CUDA runtime that succeed without a device. The linker's --wrap puts them
// into tests. Memory of a device is the host's. One source of a program includes this.
#ifndef TESTS_CUDA_FAKE_CUDART_H
#define TESTS_CUDA_FAKE_CUDART_H

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

namespace fake_cudart
{

int selected;    // device
void *allocated; // the last memory that was allocated

} // namespace fake_cudart

#define FAKE_CUDART_SUCCEEDS(name, ...)    \
    cudaError_t __wrap_##name(__VA_ARGS__) \
    {                                      \
        return cudaSuccess;                \
    }

extern "C" {

FAKE_CUDART_SUCCEEDS(cudaGetLastError)
FAKE_CUDART_SUCCEEDS(cudaHostRegister, void *, size_t, unsigned)
FAKE_CUDART_SUCCEEDS(cudaHostUnregister, void *)
FAKE_CUDART_SUCCEEDS(cudaStreamDestroy, cudaStream_t)
FAKE_CUDART_SUCCEEDS(cudaStreamSynchronize, cudaStream_t)

cudaError_t __wrap_cudaSetDevice(int device)
{
    fake_cudart::selected = device;
    return cudaSuccess;
}

cudaError_t __wrap_cudaGetDevice(int *device)
{
    *device = fake_cudart::selected;
    return cudaSuccess;
}

// Allocates whole pages of zeros.
cudaError_t __wrap_cudaHostAlloc(void **out, size_t len, unsigned)
{
    len = (len + 4095) / 4096 * 4096;
    *out = fake_cudart::allocated = aligned_alloc(4096, len);
    return *out && memset(*out, 0, len) ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t __wrap_cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

// Nothing looks at a stream.
cudaError_t __wrap_cudaStreamCreateWithFlags(cudaStream_t *out, unsigned)
{
    *out = reinterpret_cast<cudaStream_t>(&fake_cudart::selected);
    return cudaSuccess;
}

} // extern "C"

#endif
