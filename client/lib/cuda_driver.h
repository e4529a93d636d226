/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The CUDA driver API, found at run time: an application that links libgpunvme needs no CUDA, and
 * one that uses CUDA shares its driver and contexts with us.
 *
 * Functions return 0 or -errno and leave a sentence for gpunvme_error(). A context is made current
 * only for the time of a call.
 */
#ifndef CLIENT_LIB_CUDA_DRIVER_H
#define CLIENT_LIB_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_driver;

/* -ENODEV: no driver, or no device. */
int cuda_driver_open(struct cuda_driver **out);
void cuda_driver_close(struct cuda_driver *cu);

/* The number of devices that this process sees. */
int cuda_driver_devices(struct cuda_driver *cu);

struct cuda_device_info {
    char name[128];
    char bus_id[32]; /* "0000:3B:00.0" */
    int version;     /* newest CUDA that the driver knows: 12040 is 12.4 */
};
int cuda_driver_describe(struct cuda_driver *cu, int device, struct cuda_device_info *out);

#define CUDA_NO_DEVICE (-1)

/* *device: ordinal of the GPU that has the memory, or CUDA_NO_DEVICE. */
int cuda_driver_locate(struct cuda_driver *cu, uint64_t addr, int *device);
/*
 * Makes cudaMemcpy() into the allocation around addr return when the copy has ended (SYNC_MEMOPS).
 * Without this, small copies from pageable memory may end later, after a transfer by another
 * stream. No effect on memory without this attribute (pools, VMM).
 */
void cuda_driver_sync_copies(struct cuda_driver *cu, int device, uint64_t addr);
/* The allocation around an address. */
struct cuda_allocation {
    int device; /* CUDA_NO_DEVICE: host memory; the other members are 0 */
    uint64_t base;
    size_t len;
    uint64_t id; /* never used again in this process; 0: CUDA has none for it */
};
int cuda_driver_allocation(struct cuda_driver *cu, uint64_t addr, struct cuda_allocation *out);
/* Its id alone; 0: none, or not memory of CUDA. */
uint64_t cuda_driver_allocation_id(struct cuda_driver *cu, uint64_t addr);
int cuda_driver_uuid(struct cuda_driver *cu, int device, uint8_t uuid[16]);
/* The device with this UUID: -ENODEV when this process does not see it. */
int cuda_driver_find(struct cuda_driver *cu, const uint8_t uuid[16], int *device);

/*
 * The IPC handle by which another process can open the allocation around addr, which is on
 * `device`, and the offset of addr from its base. -ENOTSUP: memory without such a handle (VMM,
 * managed, pools).
 */
int cuda_driver_export(struct cuda_driver *cu, int device, uint64_t addr, size_t len,
                       uint8_t handle[64], uint64_t *offset);

int cuda_driver_alloc(struct cuda_driver *cu, int device, size_t len, uint64_t *addr);
int cuda_driver_free(struct cuda_driver *cu, int device, uint64_t addr);
int cuda_driver_copy_out(struct cuda_driver *cu, int device, void *dst, uint64_t src, size_t len);
int cuda_driver_copy_in(struct cuda_driver *cu, int device, uint64_t dst, const void *src,
                        size_t len);

/* Pins host memory for the copy engine. The caller unpins it before it unmaps it. */
int cuda_driver_pin(struct cuda_driver *cu, int device, void *addr, size_t len);
void cuda_driver_unpin(struct cuda_driver *cu, int device, void *addr);

enum cuda_host_kind {
    CUDA_HOST_MEMORY,
    CUDA_HOST_READ_ONLY, /* mapped without the right to write */
    CUDA_HOST_REGISTERS, /* of a PCI device */
};
/* Pins host memory, whole pages, and maps it for kernels of the device, at *mapped. */
int cuda_driver_map(struct cuda_driver *cu, int device, void *addr, size_t len,
                    enum cuda_host_kind kind, uint64_t *mapped);

struct cuda_kernel {
    void *module, *function;
};
/*
 * Loads code for the device, and its kernel of this name, at once: CUDA would load it at its first
 * launch, which would wait for running kernels.
 */
int cuda_driver_load(struct cuda_driver *cu, int device, const void *image, const char *name,
                     struct cuda_kernel *out);
/* No launch of the kernel may be under way. No effect on a kernel that is all zero. */
void cuda_driver_unload(struct cuda_driver *cu, int device, struct cuda_kernel *kernel);
/* Launches one block in a stream of the device's primary context; args as cuLaunchKernel(). */
int cuda_driver_launch(struct cuda_driver *cu, int device, const struct cuda_kernel *kernel,
                       unsigned threads, void *stream, void **args);

/* The same with many blocks. */
int cuda_driver_launch_blocks(struct cuda_driver *cu, int device, const struct cuda_kernel *kernel,
                              unsigned blocks, unsigned threads, void *stream, void **args);

/* Copies in one stream run one after another. */
int cuda_driver_stream_new(struct cuda_driver *cu, int device, void **stream);
/* A stream whose kernels run before waiting kernels of other streams. */
int cuda_driver_stream_urgent(struct cuda_driver *cu, int device, void **stream);
void cuda_driver_stream_free(struct cuda_driver *cu, int device, void *stream);
/*
 * For streams of the caller's current context. is_captured: is the stream being captured? call:
 * calls fn(arg) in the order of the stream; fn must not call CUDA. await: the stream goes on when
 * the word at the GPU's address `at` is at least `value`, as a number that wraps around. end: waits
 * until the stream is idle.
 */
bool cuda_driver_is_captured(struct cuda_driver *cu, void *stream);
int cuda_driver_stream_call(struct cuda_driver *cu, void *stream, void (*fn)(void *arg), void *arg);
int cuda_driver_stream_await(struct cuda_driver *cu, void *stream, uint64_t at, uint32_t value);
int cuda_driver_stream_end(struct cuda_driver *cu, void *stream);
/*
 * Until cuda_driver_heed_captures(), calls of this thread do not invalidate a capture of a stream
 * by the application. Returns the argument `before` for that call.
 */
int cuda_driver_ignore_captures(struct cuda_driver *cu);
void cuda_driver_heed_captures(struct cuda_driver *cu, int before);
/* Starts a copy between memory of the device and pinned memory, in either direction. */
int cuda_driver_copy_start(struct cuda_driver *cu, int device, void *stream, uint64_t dst,
                           uint64_t src, size_t len);
/* Waits for all copies of the stream, and returns their first error. */
int cuda_driver_copy_wait(struct cuda_driver *cu, int device, void *stream);
/*
 * Does not wait. -EIO: the context has failed for good, as after a fault of any kernel. To be
 * called at intervals: threads that call it in a loop delay other threads' calls of the driver.
 */
int cuda_driver_stream_check(struct cuda_driver *cu, int device, void *stream);
/*
 * Waits until the stream is idle, for patience_ns at most: false, work is left. True also where
 * nothing runs, because the stream is being captured or the context has failed. Leaves
 * gpunvme_error() as it is unless the context has failed.
 */
bool cuda_driver_stream_drain(struct cuda_driver *cu, int device, void *stream,
                              uint64_t patience_ns);

#endif
