/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the providers of device memory for PCI drives. A provider makes an
 * address range of this process from an exported handle of device memory, and
 * VFIO type 1 maps that range for a drive, whose DMA then goes to the device
 * (peer-to-peer).
 *
 * Nothing pins such memory. The drive reaches it until VFIO_IOMMU_UNMAP_DMA has
 * returned, also after munmap(2) and close(2). Device memory lives as long as its
 * handle is open, so it must end in this order: no command refers to it,
 * UNMAP_DMA, munmap(), close(), and only then its owner frees it.
 *
 * The kernel must keep the order when it ends a killed process. It unmaps the
 * address space first (exit_mm) and closes descriptors afterwards (exit_files).
 * Two things keep the memory until the drive's descriptors are closed, at which
 * the kernel resets the drive and detaches it from the IOMMU:
 * - A guard process (vfio_guard.c) shares the address space, so the mapping and
 *   with it the handle stay until this process has closed its descriptors.
 * - If the guard is killed first, the descriptor of the handle keeps it. Its number
 *   is below those of the drive: descriptors are closed in ascending order, but
 *   since Linux 4.3 the files are released in descending order, because task_work
 *   runs last in, first out (device_mem_test.cc shows it).
 *
 * Ordering: PCIe does not order a drive's writes to two targets, so a CQE in
 * host memory may be visible before data in device memory.
 * - BAR read by the CPU: each load of the data is a read request to the device,
 *   which no switch or root port lets pass the posted writes that are on the
 *   way there. The first load is the read-back, and no other fence is needed.
 * - dma-buf of CUDA memory: the executor flushes after a run
 *   (cudaDeviceFlushGPUDirectRDMAWrites). Kernels that see the CQE themselves
 *   need a GPU that orders such writes for its own kernels (gq_exec.orders_writes).
 */
#ifndef BLOCKDEV_VFIO_DEVICE_MEM_H
#define BLOCKDEV_VFIO_DEVICE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/cdefs.h>

#include "blockdev/transport.h"
#include "support/reason.h"

__BEGIN_DECLS

/*
 * This struct has a mapped range of device memory, and the descriptors that
 * keep its handles open.
 */
struct device_mem {
    void *addr; /* only for the IOMMU; nothing loads or stores through it */
    size_t len; /* bytes */
    size_t n_fds;
    int fds[];
};

/* nvme_mem.n_parts has this limit, because each part takes a descriptor. */
#define DEVICE_MEM_PARTS 126u

/*
 * Returns true if a provider supports this kind of file: a dma-buf, or a BAR in
 * sysfs. The file may be any that a client sent; files of other file systems
 * are not called.
 */
bool device_mem_is_handle(int fd);
/*
 * Maps the range [fd_offset, fd_offset + len) of the handle mem->fd, or all of
 * mem->parts one after another, so that they take one mapping of the IOMMU.
 * Holds each handle by a descriptor below `drive`, the lowest descriptor of the
 * drive. Returns 0 and stores the provider's name in `why`. After an error it
 * stores one line there, and returns -EINVAL (a part is not whole pages, or there
 * are more than DEVICE_MEM_PARTS), -EFAULT (no provider maps it), -ENOSPC (no
 * such descriptor is free) or -ENOMEM.
 */
int device_mem_map(const struct nvme_mem *mem, int drive, struct device_mem **out,
                   struct reason *why);
/* Ends the mapping, which the drive no longer reaches, and frees the object. */
void device_mem_unmap(struct device_mem *m);

/*
 * Maps files one after another into one range of addresses, whose length is the
 * sum of theirs. Returns the range, or MAP_FAILED with errno and the index of
 * the file that could not be mapped in *bad.
 */
void *device_mem_join(const struct nvme_mem_part *parts, size_t n, size_t *bad);

/*
 * Returns true if the device of this handle has left the machine. Its address
 * range may then become that of another device, so the drive must not reach it.
 * Only a BAR reports it; the owner of a dma-buf keeps its device.
 */
bool device_mem_is_gone(int fd);

/*
 * Returns true if the exporter of a dma-buf keeps its memory in place while the
 * dma-buf is open. `fdinfo` is the text of /proc/PID/fdinfo/FD. A graphics
 * driver may move a buffer, and the IOMMU would not learn of it.
 */
bool device_mem_exporter_stays(const char *fdinfo);

/*
 * Opens BAR 2, the memory, of an ivshmem device of QEMU. Returns the
 * descriptor. Otherwise `why` has one line and the result is -EINVAL (bdf is
 * not a PCI address), -ENODEV (no such device, or another kind of device) or
 * another -errno. `root` is as in pci/pci.h.
 */
int device_mem_open_bar(const char *root, const char *bdf, struct reason *why);

__END_DECLS

#endif
