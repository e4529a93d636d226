/* SPDX-License-Identifier: BSD-2-Clause */
/* The parts of the VFIO transport, for its own files and their tests. */
#ifndef BLOCKDEV_VFIO_VFIO_INTERNAL_H
#define BLOCKDEV_VFIO_VFIO_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <linux/vfio.h>

#include "blockdev/nvme/nvme_iova.h"
#include "blockdev/pci/pci.h"
#include "blockdev/transport.h"
#include "blockdev/vfio/vfio.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Buffer for the sentence of an error: the cause and the next step. */
struct vfio_why {
    char *text;
    size_t len;
};

struct vfio;

/* The interfaces of the kernel differ in how a device is got and memory is mapped. */
struct vfio_api {
    /* Opens the device (v->device) and its address space, and fills v->iova's windows. */
    int (*open)(struct vfio *v, const char *root, const struct pci_device *p,
                const struct vfio_why *why);
    /* NULL where addresses are physical: there is nothing to map. */
    int (*map)(struct vfio *v, void *addr, size_t len, uint64_t iova);
    int (*unmap)(struct vfio *v, uint64_t iova, size_t len);
    /* Also after an open() that failed half-way. The kernel removes remaining mappings. */
    void (*close)(struct vfio *v);
};
extern const struct vfio_api vfio_group_api;   /* container and group: every kernel has it */
extern const struct vfio_api vfio_iommufd_api; /* /dev/iommu and a character device a drive: 6.6 */
extern const struct vfio_api vfio_noiommu_api; /* the group interface, and no IOMMU behind it */

/* A process that shares this one's memory, and ends after this one has closed its files. */
struct vfio_guard {
    pid_t pid; /* 0: none */
    int process;
    char *stack;
};

struct vfio {
    struct nvme_transport t;
    const struct vfio_api *api;
    int space;  /* the container, or the iommufd */
    int group;  /* -1 with iommufd */
    int device; /* registers, config space, resets, interrupts */
    uint32_t ioas;
    bool can_reset;
    bool away;               /* during a reset, and for good once one has failed */
    pthread_rwlock_t access; /* protects away; held while a register is read or written */
    struct vfio_region_info bar0, config;
    pthread_mutex_t lock; /* protects iova, and orders map and unmap */
    struct nvme_iova iova;
    struct vfio_guard guard; /* of a noiommu drive */
};

/* As vfio_open(), for a machine below root (pci.h). */
int vfio_open_at(const char *root, const char *bdf, const struct vfio_opts *opts,
                 struct nvme_transport **out, char *why, size_t len);

/* Does this device have a node for iommufd that the process may open? */
bool vfio_iommufd_usable(const char *root, const char *bdf);

/* --- vfio_kernel.c --------------------------------------------------------------------------- */

/*
 * The device of a process just killed stays busy while the kernel resets it. Waits a little; false
 * after the deadline, errno unchanged.
 */
#define VFIO_TURN_MS 2000u
bool vfio_wait_turn(uint64_t deadline);

/* Opens a node of VFIO: -ENOTSUP (it is missing), -EACCES, -EBUSY (for 2 s), with a sentence. */
int vfio_open_node(const char *path, const struct vfio_why *why);

/*
 * The reply of an ioctl that may append capabilities: at most VFIO_ANSWER bytes, else -E2BIG.
 * fixed: size of the struct that it begins with, passed to the ioctl with its current values.
 */
#define VFIO_ANSWER 4096u
int vfio_query(int fd, unsigned long request, size_t fixed, void *answer);
/* The capability `id` in an answer of len bytes whose chain starts at `first`; NULL: none whole. */
const void *vfio_find_cap(const void *answer, size_t len, uint32_t first, uint16_t id, size_t min);

/* --- vfio_group.c ---------------------------------------------------------------------------- */

/*
 * A container and the group /dev/vfio/NODE, joined for VFIO_SET_IOMMU's `type`; opens the device.
 * vfio_group_close() undoes it, also after an error.
 */
int vfio_group_join(struct vfio *v, const char *root, const char *node, int type, const char *bdf,
                    const struct vfio_why *why);
void vfio_group_close(struct vfio *v);

/* The address windows of a container's answer to VFIO_IOMMU_GET_INFO. -EPROTO when nothing fits. */
int vfio_group_windows(struct nvme_iova *iova, const void *answer, size_t len);
/*
 * *n: mappings that it still takes (dma_entry_limit); 0: a kernel before 5.10 does not tell.
 * -ENOSPC: it takes none.
 */
int vfio_group_regions(const void *answer, size_t len, unsigned *n);

/* --- vfio_noiommu.c -------------------------------------------------------------------------- */

/* The physical address of memory that is one large page, or a part of one; else -EFAULT. */
int vfio_noiommu_map(const struct nvme_mem *mem, uint64_t *iova);
/*
 * What n > 0 entries of /proc/PID/pagemap say: the address that their pages, which are contiguous,
 * begin at. -EFAULT: they are not, or not all are there; -EPERM: the kernel does not tell us.
 */
int vfio_physical_address(const uint64_t *entries, size_t n, uint64_t *address);

/* --- vfio_guard.c ---------------------------------------------------------------------------- */

/* -ENOSYS before Linux 5.9; errors of clone(2). g is all 0. */
int vfio_guard_start(struct vfio_guard *g);
/* Once the drive is quiet. Also of a guard that was not started. */
void vfio_guard_end(struct vfio_guard *g);

/* --- vfio_pci.c: the device ------------------------------------------------------------------ */

/* Asks for the regions, switches memory decoding on and maps the doorbells. */
int vfio_pci_open(struct vfio *v, const struct vfio_why *why);
/* Bus mastering off, and the doorbells unmapped. Also after an open that failed half-way. */
void vfio_pci_close(struct vfio *v);
int vfio_pci_reset(struct vfio *v);

/* --- vfio_reset.c ---------------------------------------------------------------------------- */

/*
 * Runs work in a thread of its own and waits for it: its result, or -ETIMEDOUT after ms; the thread
 * then ends by itself when its system call returns. The argument of work is a copy that has only a
 * descriptor of its own of the device's file, and the offset of config space in it.
 */
typedef int (*vfio_work_fn)(const struct vfio *v);
int vfio_bounded(const struct vfio *v, unsigned ms, vfio_work_fn work);
/* Bound of config space accesses and the reset together. */
#define VFIO_FUNCTION_RESET_MS (NVME_DEVICE_RESET_MS - NVME_GONE_MS)
/* 0 or -EIO; to be called by vfio_bounded(), since the kernel bounds its time alone. */
int vfio_reset_function(int device);

uint32_t vfio_read32(struct nvme_transport *t, uint32_t offset);
uint64_t vfio_read64(struct nvme_transport *t, uint32_t offset);
void vfio_write32(struct nvme_transport *t, uint32_t offset, uint32_t value);
void vfio_write64(struct nvme_transport *t, uint32_t offset, uint64_t value);

/*
 * Bytes from the first doorbell that can be mapped, whole pages: up to what the kernel lets be
 * mapped (the region's answer, len bytes) and below `limit`, where BAR0 holds something else.
 */
size_t vfio_doorbells_len(const void *answer, size_t len, uint64_t limit);

#ifdef __cplusplus
}
#endif

#endif
