/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A CUDA driver without a GPU (libcuda.so.1): device memory is memory that the process cannot touch
 * but through the driver's copies, and streams are threads.
 */
#ifndef TESTS_CUFILE_FAKE_CUDA_H
#define TESTS_CUFILE_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

typedef void *fake_stream;

/* As cuda.h has them, 0 or an error. */
int cuMemAlloc_v2(unsigned long long *out, size_t len);
int cuMemFree_v2(unsigned long long addr);
int cuMemcpyDtoH_v2(void *dst, unsigned long long src, size_t len);
int cuMemcpyHtoD_v2(unsigned long long dst, const void *src, size_t len);
int cuStreamCreate(fake_stream *out, unsigned flags);
int cuStreamDestroy_v2(fake_stream stream);
int cuStreamSynchronize(fake_stream stream);
int cuLaunchHostFunc(fake_stream stream, void (*fn)(void *), void *arg);

/* `count` allocations of `segment` bytes one behind the other, without IPC, as VMM makes them. */
int fake_cuda_alloc_vmm(unsigned long long *out, size_t segment, size_t count);
/* cuMemExportToShareableHandle() fails, as for memory that was created without such handles. */
void fake_cuda_refuse_exports(int on);
/* Streams say that they are being captured. */
void fake_cuda_capture(int on);
/* cuStreamWaitValue32() fails: the GPU cannot wait for memory. */
void fake_cuda_refuse_waits(int on);
/* Copies made by streams so far. */
uint64_t fake_cuda_copies(void);

__END_DECLS

#endif
