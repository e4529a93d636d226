/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the interface to an NVMe controller: registers, doorbells, and
 * memory that the controller can reach.
 *
 * The driver (nvme.h) and the GPU queue code know controllers only through this
 * table. It has three implementations: VFIO (a PCI drive), vfio-user (a server)
 * and a controller in this process.
 *
 * When a controller is gone (unplugged, or its server has ended), register
 * reads return all-ones, and its doorbells remain memory that can be stored to.
 * So no access faults, and waits detect the loss by CSTS. A controller that is
 * being reset by another party also returns all-ones for a while (zeros in
 * QEMU). Only time distinguishes the two cases (NVME_GONE_MS).
 * nvme_cap_answered() detects both.
 */
#ifndef BLOCKDEV_TRANSPORT_H
#define BLOCKDEV_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/*
 * Bytes of a large page (hugetlb), which is physically contiguous and which the
 * kernel does not migrate.
 */
#define NVME_LARGE_PAGE (2u << 20)

/* Each part of device memory has a handle of its own. */
struct nvme_mem_part {
    int fd;             /* the exported handle, or -1 if the part has none */
    uint64_t fd_offset; /* offset of the part in fd, in bytes */
    size_t len;         /* bytes, a multiple of 4 KiB */
};

/*
 * Describes memory of the host or of a GPU that is offered to a controller.
 * Addresses and len are multiples of 4 KiB. The caller owns the memory and
 * keeps it in place until unmap() has returned.
 *
 * GPU memory has two names: an address that its executor uses, and the handle
 * that exported it (device_mem.h). The controller uses whichever name it can
 * reach.
 */
struct nvme_mem {
    void *addr;         /* host address; NULL for GPU memory */
    uint64_t device;    /* address in GPU memory if addr is NULL */
    size_t len;         /* bytes */
    int fd;             /* the memfd of host memory or the exported handle, or -1 */
    uint64_t fd_offset; /* offset of the memory in fd, in bytes */
    /*
     * The parts of GPU memory that was exported by several handles, in the order
     * of its addresses; fd is then -1. NULL for other memory. The caller owns
     * them.
     */
    const struct nvme_mem_part *parts;
    size_t n_parts;
};

struct nvme_transport;

struct nvme_transport_ops {
    const char *name; /* as reported by INFO: "vfio", "vfio-user" */
    /*
     * These functions access a register of 4 or 8 bytes. The offset is in BAR0, below the
     * doorbells. A register that cannot be read returns all-ones, like on a bus. No GPU calls these
     * functions.
     */
    uint64_t (*read)(struct nvme_transport *t, uint32_t offset, unsigned bytes);
    void (*write)(struct nvme_transport *t, uint32_t offset, uint64_t value, unsigned bytes);
    /*
     * Makes memory visible to the controller at *iova (4 KiB aligned, contiguous,
     * never 0). Returns 0, -EINVAL (alignment), -EFAULT (the controller cannot
     * reach this kind of memory; data of GPU memory is then staged in host
     * memory), -ENOSPC or -ENOMEM. -ETIMEDOUT means that there was no answer; the
     * transport unmaps the memory, and no command may use its addresses.
     */
    int (*map)(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t *iova);
    /*
     * Removes a mapping made by map(). After it returns, the controller cannot
     * reach the memory; a command with data pointers into it fails. Returns -ENOENT
     * if iova is not the start of a mapping. After -ETIMEDOUT the controller may
     * still reach the memory; the mapping remains, and another call can remove it.
     */
    int (*unmap)(struct nvme_transport *t, uint64_t iova);
    /*
     * Optional: resets the controller from outside its registers (PCI function
     * level reset, vfio-user DEVICE_RESET). Afterwards CC.EN is 0, no earlier
     * command touches memory, and all mappings still exist. Returns 0, -ENOTSUP, or
     * -EIO if the controller is gone or does not become ready.
     */
    int (*reset)(struct nvme_transport *t);
    /*
     * Optional: returns true while the controller is connected but has not answered
     * a message in time. All-ones then do not mean that it is gone. The transport
     * bounds how long this lasts. NULL means never.
     */
    bool (*silent)(struct nvme_transport *t);
    /*
     * The next four functions are optional. They are for controllers in software,
     * which poll doorbells in memory and sleep while idle. Such a controller
     * notices stores without a call as well, but later. Any thread may call them
     * before close().
     *
     * Wakes the controller: doorbells of this many queues have been stored to, or
     * will be soon.
     */
    void (*wake)(struct nvme_transport *t, unsigned queues);
    /*
     * Like wake(), after a store to the SQ doorbell of this queue. The caller owns
     * the queue and waits for its commands, which may be executed inside the call.
     */
    void (*kick)(struct nvme_transport *t, uint16_t qid);
    /*
     * Adds change (1 or -1) to the number of holders of queues that store to
     * doorbells at any time without a call. While there is one, the controller
     * sleeps for at most 50 us at a time.
     */
    void (*keep_polling)(struct nvme_transport *t, int change);
    /*
     * Returns the number of entries submitted to the SQ since its creation, as far
     * as the controller has seen its doorbell.
     */
    uint64_t (*submitted)(struct nvme_transport *t, uint16_t qid);
    /*
     * Stops the controller and frees the transport. The caller has disabled the
     * controller (CC.EN = 0).
     */
    void (*close)(struct nvme_transport *t);
};

struct nvme_transport {
    const struct nvme_transport_ops *ops;
    volatile uint32_t *doorbells;    /* BAR0 + 0x1000, mapped in this process */
    size_t doorbells_len;            /* bytes mapped, whole pages; can be registered with CUDA */
    bool doorbells_are_mmio;         /* true for real MMIO, which CUDA registers as IoMemory */
    uint16_t pci_vendor, pci_device; /* IDs of the PCI function, 0 if it is none */
    /*
     * IOVAs are physical addresses because there is no IOMMU. map() accepts only
     * memory within one large page (memfd_create(2) with MFD_HUGETLB). It returns
     * -EFAULT for other memory and -EPERM without CAP_SYS_ADMIN. After unmap() the
     * controller still reaches the memory, so memory that it may write to must not
     * be freed.
     */
    bool physical;
    /*
     * map() accepts GPU memory, and the controller reaches it by copies that this
     * process makes on the GPU. The GPU runs them in turns with kernels of other
     * processes, so queues that another process drives should not use such
     * addresses.
     */
    bool copies_device_memory;
    /*
     * Describes the last map() of GPU memory that had a handle: the name of the
     * provider that maps it, or one line that says why none does. map() writes
     * the text, and its caller may read it until the next call.
     */
    char device_memory[192];
    /* Maximum number of regions (one per map()) mapped at once; 0 if unknown. */
    unsigned max_regions;
    /*
     * map() takes parts of files by their descriptor (nvme_mem.fd), not memory by
     * its address: addr is not NULL but unused. A part that is mapped already may
     * be mapped again in a larger region, or share the region that contains it.
     */
    bool maps_files;
    /*
     * The controller is a program or on a network, so others may reach the same
     * namespaces.
     */
    bool remote;
    uint64_t lock; /* see bd_info.lock */
    /*
     * Identifies this host, and the controller on it, to the other hosts of a
     * namespace. Two users of one identifier never run at the same time. Zero
     * means none, and then nothing is reserved.
     */
    uint8_t host_id[16];
    /*
     * The file of the doorbells and their byte offset in it, for other processes to
     * map. The transport owns it. -1 means that no other process may have it.
     */
    int doorbells_fd;
    uint64_t doorbells_fd_offset;
    /*
     * Becomes readable when the system asks for the drive back (hot unplug); the
     * transport should be closed soon. The transport owns the descriptor; callers
     * only poll it. -1 means that the system never asks.
     */
    int removal_fd;
    /*
     * Additional time in ms for commands that make data durable: FLUSH, writes with
     * FUA, and all writes if there is no volatile cache. A controller whose file is
     * on a disk may first have to write gigabytes. 0 for drives. Only bd_nvme waits
     * this long: other drivers of queues (a GPU) send no such commands as long as
     * drives on files have a volatile cache.
     */
    unsigned durable_ms;
};

struct reason;
/*
 * Says how bd_open() opens a device (device.h) and its transport. A field that
 * is 0 has its default.
 */
struct bd_open_opts {
    /*
     * Drives a PCI device without an IOMMU through VFIO's noiommu mode, which needs
     * root. The drive can then write to any memory of the machine, so this is only
     * for machines without other users. Memory comes from the large pages that root
     * has reserved; at least 8 of them must be free (-ENOMEM).
     */
    bool noiommu;
    /*
     * Lets map() of a PCI drive accept device memory. The group interface of VFIO is
     * preferred if this process may open its nodes. A guard process keeps the
     * mappings of a killed process until the kernel has reset the drive. noiommu
     * overrides this.
     */
    bool device_memory;
    /*
     * Limits the connection to a server, each message to it, and each admin and I/O
     * command. 10,000 is the default.
     */
    unsigned deadline_ms;
    unsigned silence_ms; /* how long a reset waits for a silent server; 20,000 by default */
    /*
     * May be NULL. It is called when the files and sockets of the device are open
     * and no data of it has been read, so that the caller can enter a sandbox. The
     * function returns 0, or -errno and stores a sentence in why; then the device
     * is closed.
     */
    int (*opened)(void *arg, struct reason *why);
    void *arg;
};
/* Calls opened() if there is one, and returns its result. */
static inline int bd_call_opened(const struct bd_open_opts *opts, struct reason *why)
{
    return opts->opened ? opts->opened(opts->arg, why) : 0;
}

/*
 * Returns true if a controller has answered: neither half of a valid CAP is
 * all-ones or 0 (3.1.4.1: MQES, CSS).
 */
static inline bool nvme_cap_answered(uint64_t cap)
{
    uint32_t low = (uint32_t)cap, high = (uint32_t)(cap >> 32);

    return low && high && low != UINT32_MAX && high != UINT32_MAX;
}

static inline void nvme_wake(struct nvme_transport *t, unsigned queues)
{
    if (t->ops->wake)
        t->ops->wake(t, queues);
}

static inline void nvme_kick(struct nvme_transport *t, uint16_t qid)
{
    if (t->ops->kick)
        t->ops->kick(t, qid);
    else
        nvme_wake(t, 1);
}

static inline void nvme_keep_polling(struct nvme_transport *t, int change)
{
    if (t->ops->keep_polling)
        t->ops->keep_polling(t, change);
}

/* Returns UINT64_MAX if only the submitter counts the entries of the SQ. */
static inline uint64_t nvme_submitted(struct nvme_transport *t, uint16_t qid)
{
    return t->ops->submitted ? t->ops->submitted(t, qid) : UINT64_MAX;
}

__END_DECLS

#endif
