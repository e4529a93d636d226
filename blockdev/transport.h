/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The interface to an NVMe controller: registers, doorbells, and memory the controller can reach.
 *
 * The driver (nvme.h) and the GPU queue code know controllers only through this table. It has three
 * implementations: the simulator (in-process), VFIO (a PCI drive), vfio-user (a server).
 *
 * Register reads of a controller that is gone (pulled, its server ended) return all-ones, and its
 * doorbells remain memory that can be stored to: nothing faults, and waits detect it by CSTS. A
 * controller under reset from outside does the same for a while (in QEMU with zeros), so the two
 * are distinguished by time alone (NVME_GONE_MS). nvme_cap_answered() detects either.
 */
#ifndef BLOCKDEV_TRANSPORT_H
#define BLOCKDEV_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a large page (hugetlb), which is contiguous and which the kernel does not move. */
#define NVME_LARGE_PAGE (2u << 20)

/*
 * Memory offered to a controller. addr and len are whole 4 KiB pages. The caller owns the memory
 * and keeps it in place until unmap() has returned.
 */
struct nvme_mem {
    void *addr;         /* host address; NULL for device memory */
    uint64_t device;    /* device address, when addr is NULL */
    size_t len;         /* bytes */
    int fd;             /* the memfd or dma-buf that is mapped there, or -1 */
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
     * 0, -EINVAL (alignment), -EFAULT (kind of memory not reachable), -ENOSPC, -ENOMEM; -ETIMEDOUT
     * (no answer: no command may have addresses of it, and the transport unmaps it).
     */
    int (*map)(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t *iova);
    /*
     * Removes a mapping of map(). When it returns, the controller cannot reach the memory any more;
     * a command with data pointers into it fails. -ENOENT if iova is not the start of a mapping.
     * -ETIMEDOUT: the controller may still reach the memory. The mapping remains, to be removed by
     * another call.
     */
    int (*unmap)(struct nvme_transport *t, uint64_t iova);
    /*
     * Optional: resets the controller from outside its registers (PCI function level reset,
     * vfio-user DEVICE_RESET). Afterwards CC.EN is 0, no earlier command touches memory, and all
     * mappings still exist. 0, -ENOTSUP, -EIO (it is gone, or does not become ready).
     */
    int (*reset)(struct nvme_transport *t);
    /*
     * Optional (NULL: never): true while the controller is connected, but has not answered a
     * message in time. Reads of all-ones do not mean then that it is gone. The transport
     * bounds the duration.
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
     * IOVAs are physical addresses: there is no IOMMU. map() takes only memory within one
     * large page (memfd_create(2) with MFD_HUGETLB), -EFAULT for other memory, -EPERM without
     * CAP_SYS_ADMIN. After unmap() the controller still reaches the memory: memory that it may
     * write to must not be freed.
     */
    bool physical;
    /* Regions, each of one map(), that may be mapped at a time. 0: no limit is known. */
    unsigned max_regions;
    /*
     * map() takes parts of files by their descriptors (nvme_mem.fd), not memory by its address:
     * addr is not NULL, and not used. Part of a file that is mapped may be mapped again in a larger
     * region, or share the region that it lies in.
     */
    bool maps_files;
    /*
     * The file of the doorbells, and their offset in it, bytes, for other processes to map. The
     * transport owns it. -1: it must not be given to another process.
     */
    int doorbells_fd;
    uint64_t doorbells_fd_offset;
    /*
     * Becomes readable when the system requests removal of the drive (hot unplug): the transport
     * should be closed soon. -1: the system never does. The transport owns it; it is polled only.
     */
    int removal_fd;
    /*
     * Time, ms, that a FLUSH, a write with FUA, or without a volatile cache any write, may take
     * beyond other commands: for a controller whose file is on a disk that may have gigabytes to
     * write first. 0 for drives. Only bd_nvme waits so long: other drivers of queues (a GPU) send
     * none of these, as long as drives on files have a volatile cache.
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
