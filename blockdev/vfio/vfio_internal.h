/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the parts of the VFIO transport, for its own files and their tests.
 */
#ifndef BLOCKDEV_VFIO_VFIO_INTERNAL_H
#define BLOCKDEV_VFIO_VFIO_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>

#include <linux/vfio.h>

#include "blockdev/nvme/nvme_iova.h"
#include "blockdev/pci/pci.h"
#include "blockdev/pci/pci_sysfs.h"
#include "blockdev/transport.h"
#include "blockdev/vfio/vfio.h"
#include "support/reason.h"

__BEGIN_DECLS

struct vfio;

/*
 * Declares the operations of one of the kernel's interfaces: opening a device
 * and mapping memory.
 */
struct vfio_api {
    /*
     * Opens the device and its address space; fills v->iova's windows. After an error the caller
     * closes the files, too.
     */
    int (*open)(struct vfio *v, const char *root, const struct pci_device *p, struct reason *why);
    /* NULL if addresses are physical: there is nothing to map. */
    int (*map)(struct vfio *v, void *addr, size_t len, uint64_t iova);
    int (*unmap)(struct vfio *v, uint64_t iova, size_t len);
};
extern const struct vfio_api vfio_group_api; /* container and group: every kernel has it */
/* /dev/iommu and one character device per drive: Linux 6.6 */
extern const struct vfio_api vfio_iommufd_api;
extern const struct vfio_api vfio_noiommu_api; /* the group interface, without an IOMMU */

/*
 * Shares this process's memory, and ends after its files are closed. It may only
 * wait, unmap and exit.
 */
struct vfio_guard {
    pid_t pid;   /* 0: none */
    int process; /* pidfd of this process; only the guard has it open */
    int stop;    /* eventfd that ends the guard */
    int started; /* eventfd that the guard writes after it has dropped its rights */
    char *stack;
    /*
     * Mapping of the drive's file, or NULL. The guard reads this field when the
     * process has ended.
     */
    void *doorbells;
    size_t doorbells_len; /* bytes */
};

struct vfio {
    struct nvme_transport t;
    const struct vfio_api *api;
    int space;  /* the container, or the iommufd */
    int group;  /* -1 with iommufd */
    int device; /* registers, config space, resets, interrupts */
    uint32_t ioas;
    bool can_reset;
    bool away;               /* true during a reset, and for good after one has failed */
    pthread_rwlock_t access; /* protects away; held during each register access */
    struct vfio_region_info bar0, config;
    pthread_mutex_t lock;    /* protects iova, and orders map and unmap */
    struct nvme_iova iova;   /* ranges of device memory are owned by a struct device_mem */
    struct vfio_guard guard; /* for a noiommu drive, and for device memory */
    bool device_memory;      /* bd_open_opts.device_memory is set and a guard runs */
    int unguarded;           /* -errno of a guard that did not start; otherwise 0 */
};

/* Like vfio_open(), with sysfs and /dev looked up below `root` (for tests). */
int vfio_open_at(const char *root, const char *bdf, const struct bd_open_opts *opts,
                 struct nvme_transport **out, struct reason *why);

/* Returns true if this device has a node for iommufd that the process may open. */
bool vfio_iommufd_usable(const char *root, const char *bdf);

/*
 * Returns true if the process may open the nodes of the group interface for the
 * group.
 */
bool vfio_group_usable(const char *root, int group);

/* --- vfio_device_mem.c ----------------------------------------------------------------------- */

/*
 * Prepares an opened drive for device memory: raises its descriptors above
 * those of later handles, and starts the guard. If that fails, the drive serves
 * other memory, and map() of device memory says why.
 */
void vfio_device_mem_open(struct vfio *v);
/*
 * Implements map() of transport.h for device memory. The caller holds v->lock.
 */
int vfio_device_mem_map(struct vfio *v, const struct nvme_mem *mem, uint64_t *iova);
/*
 * Ends all remaining mappings, after the drive and its address space were
 * closed.
 */
void vfio_device_mem_close(struct vfio *v);

/* --- vfio_kernel.c --------------------------------------------------------------------------- */

/*
 * The device of a process that was just killed stays busy while the kernel
 * resets it. Waits a little; returns false after the deadline. errno is
 * unchanged.
 */
#define VFIO_TURN_MS 2000u
bool vfio_wait_turn(uint64_t deadline);

/*
 * Opens a node of VFIO and waits up to 2 s while it is busy. Returns the
 * descriptor, or -ENOTSUP (it is missing), -EACCES or -EBUSY with a sentence.
 */
int vfio_open_node(const char *path, struct reason *why);

/*
 * Calls an ioctl whose reply may have capabilities appended. `fixed` is the
 * size of the struct that the reply starts with; its current values are passed
 * to the ioctl. Returns 0 or -errno, -E2BIG if the reply exceeds VFIO_ANSWER
 * bytes.
 */
#define VFIO_ANSWER 4096u
int vfio_query(int fd, unsigned long request, size_t fixed, void *answer);
/*
 * Finds capability `id` in an answer of len bytes whose chain starts at
 * `first`. Returns NULL if there is none of at least `min` bytes.
 */
const void *vfio_find_cap(const void *answer, size_t len, uint32_t first, uint16_t id, size_t min);

/* --- vfio_group.c ---------------------------------------------------------------------------- */

/*
 * Opens a container and the group /dev/vfio/NODE, joins them for the `type` of
 * VFIO_SET_IOMMU, and opens the device.
 */
int vfio_group_join(struct vfio *v, const char *root, const char *node, int type, const char *bdf,
                    struct reason *why);

/*
 * Reads the address windows from a container's answer to VFIO_IOMMU_GET_INFO.
 * Returns -EPROTO if there are none.
 */
int vfio_group_windows(struct nvme_iova *iova, const void *answer, size_t len);
/*
 * Stores in *n the number of mappings that are still available
 * (dma_entry_limit), or 0 if the kernel does not report it (before 5.10).
 * Returns -ENOSPC if none is left.
 */
int vfio_group_regions(const void *answer, size_t len, unsigned *n);

/* --- vfio_noiommu.c -------------------------------------------------------------------------- */

/*
 * Stores the physical address of memory that lies within one large page.
 * Returns -EFAULT for other memory.
 */
int vfio_noiommu_map(const struct nvme_mem *mem, uint64_t *iova);
/*
 * Stores the start address of n > 0 contiguous pages, given their entries of
 * /proc/PID/pagemap. Returns -EFAULT if they are not contiguous or not all
 * present, and -EPERM if the kernel hides the addresses.
 */
int vfio_physical_address(const uint64_t *entries, size_t n, uint64_t *address);

/* --- vfio_guard.c ---------------------------------------------------------------------------- */

/*
 * Starts the guard of g, which has none yet. Returns 0, -ENOSYS before Linux
 * 5.9, -ETIMEDOUT, or an error of clone(2).
 */
int vfio_guard_start(struct vfio_guard *g);
/* Ends the guard, if it was started, once the drive is quiet. */
void vfio_guard_end(struct vfio_guard *g);

/* --- vfio_pci.c: the device ------------------------------------------------------------------ */

/*
 * Reads the regions, enables memory decoding, maps the doorbells and enables
 * bus mastering.
 */
int vfio_pci_open(struct vfio *v, struct reason *why);
/* Undoes vfio_pci_open(), also one that failed half-way. */
void vfio_pci_close(struct vfio *v);
/* See reset() of transport.h. Returns 0, -ENOTSUP or -EIO. */
int vfio_pci_reset(struct vfio *v);

/* --- vfio_reset.c ---------------------------------------------------------------------------- */

/*
 * Runs `work` in a separate thread and waits up to ms for it. Returns its
 * result, or -ETIMEDOUT; the thread then ends on its own when its system call
 * returns. `work` gets a copy that holds only a duplicate of the device's
 * descriptor and the offset of config space in it.
 */
typedef int (*vfio_work_fn)(const struct vfio *v);
int vfio_bounded(const struct vfio *v, unsigned ms, vfio_work_fn work);
/* Time limit for config space accesses and the reset together. */
#define VFIO_FUNCTION_RESET_MS (NVME_DEVICE_RESET_MS - NVME_GONE_MS)
/*
 * Resets the device. Returns 0 or -EIO. Must run in vfio_bounded(), since the
 * kernel's own bound is a minute.
 */
int vfio_reset_function(int device);

/* Access registers; see transport.h. */
uint64_t vfio_read(struct nvme_transport *t, uint32_t offset, unsigned bytes);
void vfio_write(struct nvme_transport *t, uint32_t offset, uint64_t value, unsigned bytes);

/*
 * Returns the bytes that can be mapped from the first doorbell on, in whole
 * pages. The end is bounded by the region's answer of len bytes and by `limit`,
 * from which BAR0 holds something else.
 */
size_t vfio_doorbells_len(const void *answer, size_t len, uint64_t limit);

__END_DECLS

#endif
