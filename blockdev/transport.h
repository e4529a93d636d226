/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a driver sees an NVMe controller: registers, doorbells, and memory the controller can reach.
 *
 * The driver (nvme.h) and the GPU queue code know controllers only through this table. Three
 * things implement it: the simulator (in-process), VFIO (a PCI drive), vfio-user (a server).
 *
 * A controller that is gone (pulled, its server ended) answers register reads with all-ones, and
 * the doorbells stay memory that can be stored to: nothing faults, and waits find it out by CSTS.
 * A controller under reset from outside does the same for a while (in QEMU with zeros), so the two
 * are distinguished by time alone (NVME_GONE_MS), and by nvme_cap_answered().
 */
#ifndef BLOCKDEV_TRANSPORT_H
#define BLOCKDEV_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the kernel hands out contiguously and does not move by itself (hugetlb), bytes. */
#define NVME_LARGE_PAGE (2u << 20)

/*
 * Memory offered to a controller. addr and len are whole 4 KiB pages. The caller owns the memory
 * and keeps it in place until unmap() has returned.
 */
struct nvme_mem {
    void *addr;         /* host address; NULL for device memory */
    uint64_t device;    /* device address, when addr is NULL */
    size_t len;         /* bytes */
    int fd;             /* what the memory is a mapping of (memfd, dma-buf), or -1 */
    uint64_t fd_offset; /* of addr in fd, bytes */
};

struct nvme_software;
struct nvme_transport;

struct nvme_transport_ops {
    const char *name; /* "sim", "vfio", "vfio-user" */
    /* Register access, offset in BAR0 below the doorbells. Never called from a GPU. */
    uint32_t (*read32)(struct nvme_transport *t, uint32_t offset);
    uint64_t (*read64)(struct nvme_transport *t, uint32_t offset);
    void (*write32)(struct nvme_transport *t, uint32_t offset, uint32_t value);
    void (*write64)(struct nvme_transport *t, uint32_t offset, uint64_t value);
    /*
     * Makes memory visible to the controller at *iova (4 KiB aligned, contiguous, never 0).
     * 0, -EINVAL (alignment), -EFAULT (kind of memory not reachable), -ENOSPC, -ENOMEM.
     */
    int (*map)(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t *iova);
    /*
     * Takes back what map() gave. When it returns, the controller cannot reach the memory any
     * more; a command still aimed at it fails. -ENOENT if iova is not the start of a mapping.
     */
    int (*unmap)(struct nvme_transport *t, uint64_t iova);
    /*
     * Optional: resets the controller from outside its registers (PCI function level reset,
     * vfio-user DEVICE_RESET). Afterwards CC.EN is 0, no command of before touches memory, and what
     * map() gave is still mapped. 0, -ENOTSUP, -EIO (it is gone, or does not come back).
     */
    int (*reset)(struct nvme_transport *t);
    /*
     * Optional (NULL: never): the controller is connected, but a register access has not been
     * answered in time. Reads of all-ones do not mean that it is gone then. Bounded by the
     * transport.
     */
    bool (*silent)(struct nvme_transport *t);
    /* Stops the controller and frees the transport. The controller must be disabled (CC.EN = 0). */
    void (*close)(struct nvme_transport *t);
};

struct nvme_transport {
    const struct nvme_transport_ops *ops;
    const struct nvme_software *software; /* NULL for hardware: blockdev/software.h */
    volatile uint32_t *doorbells;         /* BAR0 + 0x1000, in host address space */
    size_t doorbells_len;    /* bytes mapped, whole pages; may be registered with CUDA */
    bool doorbells_are_mmio; /* true: real MMIO (CUDA needs IoMemory); false: ordinary memory */
    uint16_t pci_vendor, pci_device; /* of the PCI function; 0: it is none */
    /*
     * Addresses are the machine's own: no IOMMU stands between. map() takes only memory within one
     * large page (memfd_create(2) with MFD_HUGETLB), -EFAULT for other memory, -EPERM without
     * CAP_SYS_ADMIN. unmap() takes nothing from the controller: memory that it may still write to
     * must not be given back.
     */
    bool physical;
    /*
     * Regions that may be mapped at once, all together: what map() gives is one. 0: no limit is
     * known.
     */
    unsigned max_regions;
    /*
     * map() takes parts of files by their descriptors (nvme_mem.fd), not memory by its address:
     * addr is not NULL, and not used. Part of a file that is mapped may be mapped again in a larger
     * region, or share the region that it lies in.
     */
    bool maps_files;
    /*
     * The memory behind the doorbells and where they begin in it, for other processes to map; the
     * transport's. -1: not to be handed on.
     */
    int doorbells_fd;
    uint64_t doorbells_fd_offset;
    /*
     * Readable once the system wants the drive back (hot unplug): its user should close the
     * transport soon. -1: the system never asks. The transport's; poll it, do not read it.
     */
    int removal_fd;
    /*
     * By how much a FLUSH, a write with FUA, or without a volatile cache any write, may take longer
     * than other commands: for a controller that writes to a file whose disk may have gigabytes to
     * write before. 0 for drives. Only bd_nvme waits so long: another driver of a queue (a
     * GPU) sends none of these, as long as the mount's drives on files have a volatile cache.
     */
    unsigned durable_ms;
};

/* Has a controller answered? Neither half of CAP can be all-ones or 0 (3.1.4.1: MQES, CSS). */
static inline bool nvme_cap_answered(uint64_t cap)
{
    uint32_t low = (uint32_t)cap, high = (uint32_t)(cap >> 32);

    return low && high && low != UINT32_MAX && high != UINT32_MAX;
}

#ifdef __cplusplus
}
#endif

#endif
