/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the interface to block devices. Offsets and lengths are bytes,
 * aligned to the device's LBA size.
 *
 * Any thread may call any function at any time; the caller orders overlapping
 * transfers. Functions return 0 or -errno. When an NVMe controller refuses a
 * transfer, bd_io holds the status (SC | SCT << 8 | DNR << 14, see nvme_spec.h)
 * and the errno that nvme_status_errno() gives it. -ETIMEDOUT means that the
 * device did not answer; a write may or may not have happened.
 */
#ifndef BLOCKDEV_BDEV_H
#define BLOCKDEV_BDEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct bd_dev;
struct nvme_ctrlr;

struct bd_info {
    uint64_t bytes;      /* capacity, a multiple of lba_size; read it with bd_bytes() */
    uint32_t lba_size;   /* bytes: 512 or 4096 */
    bool volatile_cache; /* writes are durable only after bd_flush or with BD_FUA */
    bool read_only;
    bool discards; /* true if BD_DISCARD has an effect */
    bool shared;   /* other hosts or controllers may reach the same blocks */
    /*
     * Identifies, on this host, the lock that excludes other users of the device
     * as it was opened (bd_lock_id()); 0 if there is none.
     */
    uint64_t lock;
    char name[64]; /* name for messages: path, or controller and namespace */
};

/* Names the kinds of locks for bd_lock_id(). */
enum bd_lock { BD_LOCK_FILE = 1, BD_LOCK_BLOCK, BD_LOCK_PCI, BD_LOCK_SOCKET };

/*
 * Returns a number, not 0, that two locks of this host share only if they are
 * one: a and b are device and inode of a file or socket, the number of a block
 * device, or a PCI address.
 */
static inline uint64_t bd_lock_id(enum bd_lock kind, uint64_t a, uint64_t b)
{
    const uint64_t parts[] = {kind, a, b};
    uint64_t id = 0xcbf29ce484222325ull; /* FNV-1a, by words */

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        id = (id ^ parts[i]) * 0x100000001b3ull;
        id ^= id >> 32;
    }
    return id ? id : 1;
}

enum bd_op { BD_READ, BD_WRITE, BD_WRITE_ZEROES, BD_DISCARD, BD_FLUSH };

#define BD_FUA    1u /* BD_WRITE: the data is durable when it returns */
#define BD_ALWAYS 2u /* BD_WRITE: bd_dev.permit is not asked */

/*
 * Describes one transfer. offset and len are multiples of lba_size; len may
 * exceed the limit of one command. buf is any host memory. The device transfers
 * memory from bd_dma_alloc() in place, and other memory through a bounce
 * buffer.
 */
struct bd_io {
    enum bd_op op;
    uint32_t flags;
    uint64_t offset;      /* bytes; ignored by BD_FLUSH */
    uint64_t len;         /* bytes; ignored by BD_FLUSH */
    void *buf;            /* BD_READ and BD_WRITE */
    int error;            /* out: 0 or -errno */
    uint16_t nvme_status; /* out: status of the first command that failed for good, or 0 */
};

/*
 * Holds the methods behind the interface, for its implementations (file, NVMe,
 * test devices).
 */
struct bd_ops {
    int (*submit)(struct bd_dev *dev, struct bd_io *ios, size_t n);
    void *(*dma_alloc)(struct bd_dev *dev, size_t len);
    void (*dma_free)(struct bd_dev *dev, void *buf, size_t len);
    void (*close)(struct bd_dev *dev);
    /* Reads the capacity for bd_refresh(). NULL means that it never changes. */
    int (*capacity)(struct bd_dev *dev, uint64_t *bytes);
    /*
     * Reserves the device for this host until close(), as bd_pr_take() does. NULL
     * means that the device has no reservations of its own; those of a controller
     * are made before it is opened as a device.
     */
    int (*reserve)(struct bd_dev *dev, uint64_t key, bool preempt, uint64_t *holder);
};

/*
 * Decides whether the device may be changed, for a user that can lose the right
 * to it. Any thread may call it.
 */
struct bd_permit {
    /*
     * Returns 0, or the error of a transfer that is not to be sent. If the answer
     * depends on another thread, it waits for that, or returns -EAGAIN if `wait` is
     * false.
     */
    int (*may_write)(struct bd_permit *permit, bool wait);
};

struct bd_dev {
    const struct bd_ops *ops;
    struct bd_info info;
    /*
     * Asked before transfers are sent that change the device; NULL permits all.
     * Its owner sets it while no transfer is running.
     */
    struct bd_permit *permit;
};

/* Asks bd_dev.permit. */
int bd_may_write(const struct bd_dev *dev, bool wait);
/* Returns true if the transfer needs permission. */
bool bd_io_changes(const struct bd_io *io);

/*
 * Runs n transfers concurrently, in no particular order, and returns when all
 * have ended. Returns 0, or the error of the first one (by index) that failed.
 * -EINVAL (alignment, or past the end) and -EROFS are found before anything is
 * sent; the valid transfers then end with -ECANCELED.
 */
int bd_submit(struct bd_dev *dev, struct bd_io *ios, size_t n);

/* The next five functions call bd_submit() with one transfer. */
int bd_read(struct bd_dev *dev, uint64_t offset, void *buf, uint64_t len);
int bd_write(struct bd_dev *dev, uint64_t offset, const void *buf, uint64_t len, uint32_t flags);
int bd_write_zeroes(struct bd_dev *dev, uint64_t offset, uint64_t len);
/*
 * Hints that the range is unused: its contents become undefined or zero.
 * Returns 0 if the device has no such command.
 */
int bd_discard(struct bd_dev *dev, uint64_t offset, uint64_t len);
/* Makes durable every write that returned before this call. */
int bd_flush(struct bd_dev *dev);

/*
 * Reads the capacity from the device and stores it if it has grown; a smaller
 * one is ignored. On an error the stored capacity does not change.
 */
int bd_refresh(struct bd_dev *dev);
/* Returns the capacity in bytes; another thread may be in bd_refresh(). */
static inline uint64_t bd_bytes(const struct bd_dev *dev)
{
    return __atomic_load_n(&dev->info.bytes, __ATOMIC_RELAXED);
}

/*
 * Allocates zeroed, page-aligned memory that the device reaches without a
 * bounce. Returns NULL if there is no memory.
 */
void *bd_dma_alloc(struct bd_dev *dev, size_t len);
/* Frees memory of bd_dma_alloc() with the same len; NULL is allowed. */
void bd_dma_free(struct bd_dev *dev, void *buf, size_t len);

/*
 * Closes the device. No transfer may be running, and all memory from
 * bd_dma_alloc() must have been freed.
 */
void bd_close(struct bd_dev *dev);

#define BD_OPEN_READ_ONLY 1u
/*
 * Fails with -EBUSY if another process has opened the device exclusively or for
 * writing. A read-only open without this flag locks nothing, so that tools can
 * inspect a device in use.
 */
#define BD_OPEN_EXCLUSIVE 2u

/*
 * Opens a regular file or a kernel block device. lba_size 0 selects the
 * device's own size (512 for files). Returns the errors of open(2), -EBUSY if
 * it is locked, mounted by the kernel or, with BD_OPEN_EXCLUSIVE, a file that is
 * in use through a loop device, and -ENOTBLK if it is neither a file nor a block
 * device.
 */
int bd_file_open(const char *path, uint32_t flags, uint32_t lba_size, struct bd_dev **out);

/*
 * Opens a namespace of an open controller over its own queue pairs: at most
 * `queues`, each with `depth` entries, or fewer if the controller grants fewer.
 * The controller must outlive the device; its owner closes it. Returns -ENODEV
 * if nsid is not active, -ENOTSUP if the LBA format has metadata or LBAs of
 * neither 512 nor 4096 bytes, and -ENOSPC if no queue pair is left. Failures
 * with DNR clear are retried a few times; a "not yet" (nvme_status_not_yet())
 * is retried until the command's deadline, and one that ends with a change of
 * access (nvme_status_transition()) for the controller's transition_ms.
 *
 * A command has io_timeout_ms of nvme_opts, plus the transport's durable_ms if
 * it makes data durable. When it misses that deadline, it is aborted, or ended
 * by the deletion of its queue pair or a reset of the controller, and sent
 * again up to three times; then it ends with -ETIMEDOUT. When the controller
 * fails for good, every command ends with -EIO. No command ends while the
 * controller may still transfer its data, and a flush or BD_FUA write succeeds
 * only by its own completion.
 */
int bd_nvme_open(struct nvme_ctrlr *ctrlr, uint32_t nsid, unsigned queues, unsigned depth,
                 struct bd_dev **out);
/*
 * Returns the longest time in ms that one command of the device can take, if
 * every attempt needs all steps of recovery (nvme.h): 4 * (io_timeout_ms + the
 * transport's durable_ms + 500 + (2 + 2 * queues) * admin_timeout_ms +
 * nvme_ctrlr_reset_ms()). The time that other users of the controller take to
 * stop and resume comes on top.
 */
uint64_t bd_nvme_command_ms(const struct bd_dev *dev);

__END_DECLS

#endif
