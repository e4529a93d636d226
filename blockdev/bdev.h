/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The one block-device interface: byte-addressed, aligned to the device's LBA size.
 *
 * Every function may be called from any thread at once; ordering between overlapping calls is the
 * caller's business. Functions return 0 or -errno. A transfer that an NVMe controller refused has
 * the status (SC | SCT << 8 | DNR << 14, see nvme_spec.h) in its bd_io, and its errno from
 * nvme_status_errno(). -ETIMEDOUT: the device did not answer; a write may or may not have happened.
 */
#ifndef BLOCKDEV_BDEV_H
#define BLOCKDEV_BDEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bd_dev;
struct nvme_ctrlr;

struct bd_info {
    uint64_t bytes;      /* capacity, a multiple of lba_size; after bd_refresh(): bd_bytes() */
    uint32_t lba_size;   /* bytes: 512 or 4096 */
    bool volatile_cache; /* writes are durable only after bd_flush or with BD_FUA */
    bool read_only;
    bool discards; /* BD_DISCARD has an effect */
    char name[64]; /* for messages: path, or controller and namespace */
};

enum bd_op { BD_READ, BD_WRITE, BD_WRITE_ZEROES, BD_DISCARD, BD_FLUSH };

#define BD_FUA 1u /* BD_WRITE: durable when it returns */

/*
 * One transfer. offset and len are multiples of lba_size; len may exceed what one command can
 * carry. buf is any host memory: memory from bd_dma_alloc() is transferred in place, other memory
 * is bounced.
 */
struct bd_io {
    enum bd_op op;
    uint32_t flags;
    uint64_t offset;      /* bytes; ignored by BD_FLUSH */
    uint64_t len;         /* bytes; ignored by BD_FLUSH */
    void *buf;            /* BD_READ and BD_WRITE */
    int error;            /* out: 0 or -errno */
    uint16_t nvme_status; /* out: of the first command that failed for good, 0 for none */
};

/* The methods behind the interface; for implementers (file, NVMe, test devices). */
struct bd_ops {
    int (*submit)(struct bd_dev *dev, struct bd_io *ios, size_t n);
    void *(*dma_alloc)(struct bd_dev *dev, size_t len);
    void (*dma_free)(struct bd_dev *dev, void *buf, size_t len);
    void (*close)(struct bd_dev *dev);
    /* What bd_refresh() asks for. NULL: the capacity does not change. */
    int (*capacity)(struct bd_dev *dev, uint64_t *bytes);
};

struct bd_dev {
    const struct bd_ops *ops;
    struct bd_info info;
};

/*
 * Runs n transfers concurrently and returns when all have ended: 0, or the error of the first (by
 * index) that failed. -EINVAL (alignment, or past the end) and -EROFS are found before any is sent;
 * the remaining transfers then end with -ECANCELED. No order among the n.
 */
int bd_submit(struct bd_dev *dev, struct bd_io *ios, size_t n);

int bd_read(struct bd_dev *dev, uint64_t offset, void *buf, uint64_t len);
int bd_write(struct bd_dev *dev, uint64_t offset, const void *buf, uint64_t len, uint32_t flags);
int bd_write_zeroes(struct bd_dev *dev, uint64_t offset, uint64_t len);
/* A hint: contents become undefined or zero. Returns 0 where the device has no such command. */
int bd_discard(struct bd_dev *dev, uint64_t offset, uint64_t len);
/* Everything whose write returned before the call is durable when it returns. */
int bd_flush(struct bd_dev *dev);

/*
 * Asks the device for its capacity and notes an increase; a decrease is not noted. An error of the
 * device leaves it as it was.
 */
int bd_refresh(struct bd_dev *dev);
/* The capacity, beside a thread in bd_refresh(). */
static inline uint64_t bd_bytes(const struct bd_dev *dev)
{
    return __atomic_load_n(&dev->info.bytes, __ATOMIC_RELAXED);
}

/* Page-aligned memory the device reaches without a bounce, zeroed; NULL when out of memory. */
void *bd_dma_alloc(struct bd_dev *dev, size_t len);
void bd_dma_free(struct bd_dev *dev, void *buf, size_t len);

/* No transfer may be under way, and memory from bd_dma_alloc() must have been freed. */
void bd_close(struct bd_dev *dev);

#define BD_OPEN_READ_ONLY 1u
/*
 * Fails with -EBUSY while another process holds the device: has it open exclusively or for writing.
 * Read-only opens without this flag hold nothing, so that tools can inspect a device in use.
 */
#define BD_OPEN_EXCLUSIVE 2u

/*
 * A regular file or a kernel block device. lba_size 0 takes the device's own (512 for files).
 * Errors: those of open(2); -EBUSY (locked, or mounted by the kernel); -ENOTBLK (neither kind).
 */
int bd_file_open(const char *path, uint32_t flags, uint32_t lba_size, struct bd_dev **out);

/*
 * A namespace of an open controller, over queue pairs of its own (at most `queues`, each `depth`
 * entries, fewer where the controller gives fewer). The controller must outlive the device; its
 * owner closes it. -ENODEV when nsid is not active, -ENOTSUP for an LBA format that is neither
 * 512 nor 4096 bytes or has metadata, -ENOSPC when no queue pair is left. Failures that may be
 * passing (DNR clear) are retried a few times; "not yet" (nvme_status_not_yet()) is retried
 * until the command's deadline.
 *
 * A command that misses the io_timeout_ms of nvme_opts (what makes data durable has the
 * transport's durable_ms besides) is aborted, or ended with its queue pair or by a reset of the
 * controller, and sent again, three times; then it ends with -ETIMEDOUT. When the controller fails
 * for good everything ends with -EIO. Nothing ends while the controller may still move its data,
 * and no flush or BD_FUA write succeeds but by its own completion.
 */
int bd_nvme_open(struct nvme_ctrlr *ctrlr, uint32_t nsid, unsigned queues, unsigned depth,
                 struct bd_dev **out);
/*
 * Longest time one command of such a device takes, ms, when every attempt takes all steps of
 * recovery (nvme.h): 4 * (io_timeout_ms + the transport's durable_ms + 500 + (2 + 2 * queues) *
 * admin_timeout_ms + nvme_ctrlr_reset_ms()), and the time that other users of the controller take
 * to stop and resume.
 */
uint64_t bd_nvme_command_ms(const struct bd_dev *dev);

#ifdef __cplusplus
}
#endif

#endif
