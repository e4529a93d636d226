/*
 * The ioctls of a gpunvmefs mount: the binary interface between applications and the daemon.
 *
 * Every struct starts with its size and the ABI version the caller was built with; padding and
 * `flags` bits that are not defined must be zero. The daemon answers -EINVAL to a wrong size, an
 * unknown flag or non-zero padding, -EPROTO to a version it does not speak, -ENOTTY to an unknown
 * request. FUSE limits a struct to 16,383 bytes.
 *
 * INFO and STATS may grow at their end without a new version. The daemon answers the sizes they had
 * in earlier releases too, with as much as fits; a size it does not know yet is -EINVAL.
 */
#ifndef GPUNVME_IOCTL_H
#define GPUNVME_IOCTL_H

#include <assert.h>
#include <linux/ioctl.h>
#include <stddef.h>
#include <stdint.h>

#define GPUNVME_ABI_VERSION 1u

struct gpunvme_abi {
    uint32_t size; /* of the struct this begins */
    uint32_t version;
};

/* Who runs the queue code. */
#define GPUNVME_EXECUTOR_NONE 0u /* no executor: every transfer takes the bounce path */
#define GPUNVME_EXECUTOR_CUDA 1u
#define GPUNVME_EXECUTOR_CPU  2u

/* How a transfer was served. */
#define GPUNVME_PATH_GPU    1u /* all of it by queue pairs of the executor */
#define GPUNVME_PATH_BOUNCE 2u /* all of it through host memory */
#define GPUNVME_PATH_MIXED  3u

/* On any file or directory of the mount. */
struct gpunvme_ioc_info {
    struct gpunvme_abi abi;
    uint32_t executor;
    /*
     * 0: queues in host memory, the CPU rings the doorbells for the executor; 1: the executor rings
     * them, data in host memory; 2: data in GPU memory; 3: queues too. Says nothing when executor
     * is NONE.
     */
    uint32_t tier;
    uint32_t queues;
    uint32_t depth;
    uint32_t lba_size;    /* bytes */
    uint32_t max_command; /* bytes an NVMe command carries */
    uint32_t max_buffers;
    uint32_t block_size; /* of the file system, bytes */
    uint8_t fs_uuid[16];
    uint8_t gpu_uuid[16]; /* of the daemon's CUDA device; zero without one */
    char executor_name[64];
    char fallback[128]; /* why no GPU serves this mount; empty when one does */
    char transport[16]; /* "sim", "vfio", "vfio-user" */
    char socket[108];   /* UNIX socket that takes file descriptors: see gpunvme_ioc_register */
    /* The struct ended here at first. */
    char tier_note[256]; /* why the tier is no better; empty when there is nothing to say */
};

/* Memory kinds. */
#define GPUNVME_MEM_CUDA_IPC 1u /* ipc: handle of the allocation's base; offset from the base */
#define GPUNVME_MEM_FD       2u /* token: what the socket answered for a descriptor; offset in it */

/*
 * Makes memory of the caller a buffer. It belongs to the open file description that registers it
 * and ends with it. `id` and `key` together are the right to use it, on any file of the mount that
 * the user who registered it has open.
 *
 * A file descriptor (memfd, for mounts whose executor is the CPU) is first sent over the socket:
 * one message of 8 zero bytes with SCM_RIGHTS; the answer is 8 bytes, the token, good for one
 * REGISTER by the same user.
 */
struct gpunvme_ioc_register {
    struct gpunvme_abi abi;
    uint32_t kind;
    uint32_t flags;  /* 0 */
    uint64_t offset; /* bytes */
    uint64_t len;    /* bytes, > 0 */
    uint64_t token;
    uint8_t ipc[64];
    uint64_t id;  /* out */
    uint64_t key; /* out */
};

struct gpunvme_ioc_unregister {
    struct gpunvme_abi abi;
    uint64_t id;
    uint64_t key;
};

#define GPUNVME_NO_FALLBACK 1u /* fail rather than take the bounce path */

/*
 * Moves file bytes [file_offset, +len) to (READ) or from (WRITE) buffer bytes [buffer_offset,
 * +len). READ is short only at the end of the file, as pread(2); WRITE grows the file. The ioctl
 * needs the open mode that read(2) or write(2) would. The ioctl returns 0 when `bytes` are right,
 * even if short after a signal; -EINTR when a signal came before any; -EIO with nvme_status.
 * Errors: -EBADF (open mode), -ENOENT (no such buffer), -EACCES (key or user), -ERANGE (past the
 * buffer's end), -EOVERFLOW (offset + len), -EREMOTEIO (NO_FALLBACK and the GPU path cannot),
 * -EFBIG, -ENOSPC, -EROFS, -ETIMEDOUT.
 */
struct gpunvme_ioc_rw {
    struct gpunvme_abi abi;
    uint32_t flags;       /* GPUNVME_NO_FALLBACK */
    uint32_t deadline_ms; /* 0: the mount's */
    uint64_t id;
    uint64_t key;
    uint64_t file_offset;
    uint64_t buffer_offset;
    uint64_t len;
    uint64_t bytes;       /* out */
    uint64_t commands;    /* out: NVMe commands sent by the executor */
    uint32_t path;        /* out: GPUNVME_PATH_* */
    uint32_t nvme_status; /* out: SC | SCT << 8 | DNR << 14 of the first error; 0: none */
};

struct gpunvme_extent {
    uint64_t file_offset; /* bytes */
    uint64_t len;         /* bytes */
    uint64_t device;      /* byte offset on the device */
    uint32_t flags;       /* GPUNVME_EXTENT_* */
    uint32_t reserved;
};
#define GPUNVME_EXTENT_UNWRITTEN 1u
#define GPUNVME_EXTENT_LAST      2u
#define GPUNVME_EXTENTS_MAX      256u

/* Extents of a file from file_offset on; holes are left out. */
struct gpunvme_ioc_extents {
    struct gpunvme_abi abi;
    uint64_t file_offset;
    uint32_t max;                                       /* 1 .. GPUNVME_EXTENTS_MAX */
    uint32_t count;                                     /* out */
    struct gpunvme_extent extents[GPUNVME_EXTENTS_MAX]; /* out */
};

struct gpunvme_ioc_stats {
    struct gpunvme_abi abi;
    uint64_t gpu_transfers, gpu_commands, gpu_read_bytes, gpu_written_bytes;
    uint64_t bounce_transfers, bounce_read_bytes, bounce_written_bytes;
    uint64_t errors, timeouts, cancelled;
    uint64_t buffers, quarantined_queues;
    /* The struct ended here at first. What it took to get answers from the drive: */
    uint64_t aborts;            /* of the executor's commands, that ended them */
    uint64_t queue_recreations; /* of the executor's queue pairs: deleted and created again */
    uint64_t controller_resets;
};

#define GPUNVME_IOC_INFO       _IOWR('G', 0x60, struct gpunvme_ioc_info)
#define GPUNVME_IOC_REGISTER   _IOWR('G', 0x61, struct gpunvme_ioc_register)
#define GPUNVME_IOC_UNREGISTER _IOWR('G', 0x62, struct gpunvme_ioc_unregister)
#define GPUNVME_IOC_READ       _IOWR('G', 0x63, struct gpunvme_ioc_rw)
#define GPUNVME_IOC_WRITE      _IOWR('G', 0x64, struct gpunvme_ioc_rw)
#define GPUNVME_IOC_EXTENTS    _IOWR('G', 0x65, struct gpunvme_ioc_extents)
#define GPUNVME_IOC_STATS      _IOWR('G', 0x66, struct gpunvme_ioc_stats)

static_assert(sizeof(struct gpunvme_abi) == 8, "abi header");
static_assert(offsetof(struct gpunvme_ioc_info, tier_note) == 388, "info as it was at first");
static_assert(sizeof(struct gpunvme_ioc_info) == 644, "info");
static_assert(sizeof(struct gpunvme_ioc_register) == 120, "register");
static_assert(sizeof(struct gpunvme_ioc_unregister) == 24, "unregister");
static_assert(sizeof(struct gpunvme_ioc_rw) == 80, "rw");
static_assert(sizeof(struct gpunvme_extent) == 32, "extent");
static_assert(sizeof(struct gpunvme_ioc_extents) == 24 + 32 * GPUNVME_EXTENTS_MAX, "extents");
static_assert(offsetof(struct gpunvme_ioc_stats, aborts) == 104, "stats as it was at first");
static_assert(sizeof(struct gpunvme_ioc_stats) == 128, "stats");
static_assert(offsetof(struct gpunvme_ioc_rw, bytes) == 56, "rw.bytes");
static_assert(sizeof(struct gpunvme_ioc_extents) < 16384, "FUSE's limit");

#endif
