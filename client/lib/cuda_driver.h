/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the CUDA driver API at run time. An application that links libgpunvme
 * needs no CUDA. An application that uses CUDA shares its driver and contexts
 * with the library. Functions return 0 or -errno and set gpunvme_error(). A
 * context is current only during a call.
 */
#ifndef CLIENT_LIB_CUDA_DRIVER_H
#define CLIENT_LIB_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_driver;

/* Returns -ENODEV if there is no driver or no device. */
int cuda_driver_open(struct cuda_driver **out);
void cuda_driver_close(struct cuda_driver *cu);

/* Returns the number of devices that this process sees. */
int cuda_driver_devices(struct cuda_driver *cu);

struct cuda_device_info {
    char name[128];
    char bus_id[32]; /* "0000:3B:00.0" */
    int version;     /* newest CUDA version that the driver supports: 12040 is 12.4 */
};
int cuda_driver_describe(struct cuda_driver *cu, int device, struct cuda_device_info *out);

#define CUDA_NO_DEVICE (-1)

/* Stores the ordinal of the GPU that has the memory, or CUDA_NO_DEVICE. */
int cuda_driver_locate(struct cuda_driver *cu, uint64_t addr, int *device);
/*
 * Makes cudaMemcpy() into the allocation around addr return only when the copy has ended
 * (SYNC_MEMOPS). Otherwise small copies from pageable memory may end later, after a transfer by
 * another stream. Has no effect on memory without this attribute (pools, VMM).
 */
void cuda_driver_sync_copies(struct cuda_driver *cu, int device, uint64_t addr);
/* Describes a CUDA allocation that was found by an address inside the allocation. */
struct cuda_allocation {
    int device; /* CUDA_NO_DEVICE for host memory; the other members are then 0 */
    uint64_t base;
    size_t len;
    uint64_t id; /* never reused in this process; 0 if CUDA has none for the memory */
};
int cuda_driver_allocation(struct cuda_driver *cu, uint64_t addr, struct cuda_allocation *out);
/* Returns only the id of the allocation; 0 if it has none or is not memory of CUDA. */
uint64_t cuda_driver_allocation_id(struct cuda_driver *cu, uint64_t addr);
int cuda_driver_uuid(struct cuda_driver *cu, int device, uint8_t uuid[16]);
/* Returns the device of the calling thread's current context, or CUDA_NO_DEVICE. */
int cuda_driver_current(struct cuda_driver *cu);
/* Stores the device with this UUID. Returns -ENODEV if this process does not see it. */
int cuda_driver_find(struct cuda_driver *cu, const uint8_t uuid[16], int *device);

/*
 * Stores the IPC handle by which another process can open the allocation around addr on `device`,
 * and the offset of addr from its base. Returns -ENOTSUP for memory without such a handle (VMM,
 * managed, pools).
 */
int cuda_driver_export(struct cuda_driver *cu, int device, uint64_t addr, size_t len,
                       uint8_t handle[64], uint64_t *offset);

/*
 * Exports the 4 KiB pages around the memory as a dma-buf and returns its
 * descriptor, which the caller owns. Returns -ENOTSUP if the driver exports
 * none or if the allocation does not begin at a 4 KiB page.
 */
int cuda_driver_export_pages(struct cuda_driver *cu, int device, uint64_t addr, size_t len);

/* Describes a mapped allocation of CUDA's virtual memory management (VMM). */
struct cuda_segment {
    uint64_t base;
    size_t len;
    int handle;   /* cuMemExportToShareableHandle() */
    int exported; /* dma-buf of the whole segment, or -1 */
};
/*
 * Exports the segments around VMM memory, with dma-bufs if `pages` is set, and returns their
 * number. The caller closes their descriptors. Returns -ENOTSUP for other memory, for VMM memory
 * whose handles cannot be exported, for memory that is not mapped as a whole, and for more than max
 * segments; sets gpunvme_error() only in the second case.
 */
int cuda_driver_export_segments(struct cuda_driver *cu, int device, uint64_t addr, size_t len,
                                bool pages, struct cuda_segment *out, unsigned max);
void cuda_driver_close_segments(const struct cuda_segment *segments, unsigned n);

int cuda_driver_alloc(struct cuda_driver *cu, int device, size_t len, uint64_t *addr);
int cuda_driver_free(struct cuda_driver *cu, int device, uint64_t addr);
int cuda_driver_copy_out(struct cuda_driver *cu, int device, void *dst, uint64_t src, size_t len);
int cuda_driver_copy_in(struct cuda_driver *cu, int device, uint64_t dst, const void *src,
                        size_t len);

/* Pins host memory for the copy engine. The caller unpins it before unmapping it. */
int cuda_driver_pin(struct cuda_driver *cu, int device, void *addr, size_t len);
void cuda_driver_unpin(struct cuda_driver *cu, int device, void *addr);

enum cuda_host_kind {
    CUDA_HOST_MEMORY,
    CUDA_HOST_READ_ONLY, /* mapped without the right to write */
    CUDA_HOST_REGISTERS, /* registers of a PCI device */
};
/*
 * Pins whole pages of host memory and maps them for kernels of the device. Stores their device
 * address in *mapped.
 */
int cuda_driver_map(struct cuda_driver *cu, int device, void *addr, size_t len,
                    enum cuda_host_kind kind, uint64_t *mapped);

struct cuda_kernel {
    void *module, *function;
};
/*
 * Loads code for the device, and its kernel of this name, immediately. CUDA would otherwise load it
 * at its first launch, which would wait for running kernels.
 */
int cuda_driver_load(struct cuda_driver *cu, int device, const void *image, const char *name,
                     struct cuda_kernel *out);
/* Unloads a kernel that has no launch in flight. Has no effect on a kernel that is all zero. */
void cuda_driver_unload(struct cuda_driver *cu, int device, struct cuda_kernel *kernel);
/*
 * Launches a kernel in a stream of the device's primary context. `args` is like that of
 * cuLaunchKernel().
 */
int cuda_driver_launch(struct cuda_driver *cu, int device, const struct cuda_kernel *kernel,
                       unsigned blocks, unsigned threads, void *stream, void **args);

/*
 * Creates a stream, in which copies run one after another. Kernels of an urgent one start before
 * waiting kernels of other streams.
 */
int cuda_driver_stream_new(struct cuda_driver *cu, int device, bool urgent, void **stream);
void cuda_driver_stream_free(struct cuda_driver *cu, int device, void *stream);
/* The next four functions take a stream of the caller's current context. */
/* Returns true while the stream is being captured. */
bool cuda_driver_is_captured(struct cuda_driver *cu, void *stream);
/* Calls fn(arg) in stream order. fn must not call CUDA. */
int cuda_driver_stream_call(struct cuda_driver *cu, void *stream, void (*fn)(void *arg), void *arg);
/* Makes the stream wait until the word at GPU address `at` is at least `value`, modulo 2^32. */
int cuda_driver_stream_await(struct cuda_driver *cu, void *stream, uint64_t at, uint32_t value);
/* Waits until the stream is idle. */
int cuda_driver_stream_end(struct cuda_driver *cu, void *stream);
/*
 * Calls of this thread do not invalidate a capture of a stream by the application until
 * cuda_driver_heed_captures(). Returns the argument `before` of that call.
 */
int cuda_driver_ignore_captures(struct cuda_driver *cu);
void cuda_driver_heed_captures(struct cuda_driver *cu, int before);
/* Starts a copy between memory of the device and pinned memory, in either direction. */
int cuda_driver_copy_start(struct cuda_driver *cu, int device, void *stream, uint64_t dst,
                           uint64_t src, size_t len);
/* Waits for all copies of the stream, and returns their first error. */
int cuda_driver_copy_wait(struct cuda_driver *cu, int device, void *stream);
/*
 * Queries the stream without waiting. Returns -EIO if the context has failed permanently, as after
 * a fault of any kernel. Threads that call it in a loop delay calls of the driver by other threads,
 * so it is called at intervals.
 */
int cuda_driver_stream_check(struct cuda_driver *cu, int device, void *stream);
/*
 * Waits up to patience_ns until the stream is idle. Returns false if work is left. Returns true if
 * nothing can be waited for, because the stream is being captured or the context has failed. Sets
 * gpunvme_error() only if the context has failed.
 */
bool cuda_driver_stream_drain(struct cuda_driver *cu, int device, void *stream,
                              uint64_t patience_ns);

#endif
