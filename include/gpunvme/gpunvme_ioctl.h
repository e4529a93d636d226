/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the ioctls of a gpunvmefs mount, the binary interface between
 * applications and the daemon.
 *
 * Every struct starts with its size and the ABI version that the caller was
 * built with. Padding and undefined bits of `flags` must be zero. The daemon
 * returns -EINVAL for a wrong size, an unknown flag or non-zero padding,
 * -EPROTO for another ABI version, and -ENOTTY for an unknown request. FUSE
 * limits a struct to 16,383 bytes.
 */
#ifndef GPUNVME_IOCTL_H
#define GPUNVME_IOCTL_H

#include <assert.h>
#include <linux/ioctl.h>
#include <stddef.h>
#include <stdint.h>

#define GPUNVME_ABI_VERSION 2u

struct gpunvme_abi {
    uint32_t size; /* of the struct that begins here */
    uint32_t version;
};

/* Names the processor that runs the queue code. */
#define GPUNVME_EXECUTOR_NONE 0u /* no executor: every transfer takes the bounce path */
#define GPUNVME_EXECUTOR_CUDA 1u
#define GPUNVME_EXECUTOR_CPU  2u

/*
 * Names the workarounds of the driver for a controller that violates the
 * specification.
 */
#define GPUNVME_QUIRK_SLOW_DISABLE      1u  /* reads no register for 2.3 s after a disable */
#define GPUNVME_QUIRK_NO_WRITE_ZEROES   2u  /* writes zeros instead of Write Zeroes */
#define GPUNVME_QUIRK_NO_NS_DESCRIPTORS 4u  /* does not ask for descriptors of namespaces */
#define GPUNVME_QUIRK_FALSE_NS_IDS      8u  /* ignores NGUID and EUI-64 of namespaces */
#define GPUNVME_QUIRK_IGNORES_FUA       16u /* sends Flush after writes with FUA */
#define GPUNVME_QUIRK_SHORT_TRANSFERS   32u /* sends commands of 128 KiB at most */
#define GPUNVME_QUIRK_NO_ABORT          64u /* does not send Abort */

/* Names the path that served a transfer. */
#define GPUNVME_PATH_GPU    1u /* all of it by queue pairs of the executor */
#define GPUNVME_PATH_BOUNCE 2u /* all of it through host memory */
#define GPUNVME_PATH_MIXED  3u

/* INFO works on any file or directory of the mount. */
struct gpunvme_ioc_info {
    struct gpunvme_abi abi;
    uint32_t executor;
    /*
     * The tier, undefined if executor is NONE. On tier 0 queues are in host
     * memory, and the CPU rings the doorbells for the executor. On tier 1 the
     * executor rings them; the drive transfers data to and from host memory
     * only, and the executor copies that of GPU memory. On tier 2 the drive
     * transfers data to and from GPU memory. On tier 3 the queues are in GPU
     * memory too.
     */
    uint32_t tier;
    uint32_t queues;
    uint32_t depth;
    uint32_t lba_size;    /* bytes */
    uint32_t max_command; /* largest NVMe command, bytes */
    uint32_t max_buffers;
    uint32_t block_size; /* of the file system, bytes */
    uint8_t fs_uuid[16];
    uint8_t gpu_uuid[16]; /* of the mount's first GPU; zero without one */
    char executor_name[64];
    char fallback[128];       /* reason why no GPU serves this mount; empty if one does */
    char transport[16];       /* "sim", "vfio", "vfio-user" */
    char socket[108];         /* UNIX socket for file descriptors: gpunvme_ioc_register */
    char tier_note[256];      /* reason why there is no higher tier, or none; may be empty */
    uint32_t direct;          /* 1: the mount option direct= lets the caller take leases */
    uint32_t lease_queues;    /* queue pairs that all users together may lease */
    uint8_t cookie[8];        /* the first bytes to send on each connection to the socket */
    uint32_t writeback_cache; /* 1: mount option writeback_cache, which excludes WRITE */
    uint32_t quirks;          /* GPUNVME_QUIRK_* */
    uint32_t lease_tier;      /* `tier`, or 1 if only copies by the daemon reach GPU memory */
};

/* Names the kinds of memory. */
#define GPUNVME_MEM_CUDA_IPC 1u /* ipc: handle of the allocation; offset from its base */
#define GPUNVME_MEM_FD       2u /* token: the socket's reply for a descriptor; offset in it */
#define GPUNVME_MEM_DEVICE   3u /* for tests: BAR of a device of the option cpu_memory= */
/*
 * Allocations of CUDA's virtual memory management that follow one another in
 * the caller's address space; offset from the first one. In tests parts of
 * devices of the option cpu_memory=.
 */
#define GPUNVME_MEM_SEGMENTS 4u

/*
 * Marks memory of kind GPUNVME_MEM_FD as room for lists of READV, which is no
 * target of transfers. Every mount accepts it.
 */
#define GPUNVME_REGISTER_LIST 1u
/*
 * Marks memory of kind GPUNVME_MEM_FD as host memory for tests, on a mount
 * whose CPU executor treats other buffers as GPU memory that the drive cannot
 * reach.
 */
#define GPUNVME_REGISTER_HOST 2u
/*
 * Marks memory of kind GPUNVME_MEM_FD as staging of a lease, for which other
 * buffers leave DMA regions. Returns -EPERM to a caller without the right to
 * leases (mount option direct=).
 */
#define GPUNVME_REGISTER_STAGING 4u
/*
 * Marks memory of kind GPUNVME_MEM_FD for the bounce path of a client that
 * copies the bytes on. No GPU takes part in its transfers, and `path` is
 * GPUNVME_PATH_BOUNCE. If only the list or only the buffer of a READV has the
 * flag, the daemon reads the pieces one by one. On a mount without an executor
 * all memory is of this kind.
 */
#define GPUNVME_REGISTER_BOUNCE 8u

/*
 * Describes an element of the table of GPUNVME_MEM_SEGMENTS. The table is a
 * memfd with at most GPUNVME_MEMORY_SEGMENTS_MAX elements in the order of the
 * addresses. One message carries the descriptor of the table, followed by the
 * descriptors of the segments in the order of the table. Each segment has a
 * handle (cuMemExportToShareableHandle), followed by a dma-buf of the whole
 * segment if the segment has the flag.
 */
struct gpunvme_memory_segment {
    uint64_t offset; /* of the segment in its handle, bytes; 0 for CUDA */
    uint64_t len;    /* bytes */
    uint32_t flags;  /* GPUNVME_MEMORY_EXPORTED */
    uint32_t reserved;
};
#define GPUNVME_MEMORY_EXPORTED     1u
#define GPUNVME_MEMORY_SEGMENTS_MAX 126u

/*
 * Registers memory of the caller as a buffer. The buffer belongs to the open
 * file description through which it was registered, and ends with it. `id` and
 * `key` together authorise its use, on any file of the mount that the
 * registering user has open.
 *
 * The descriptor of a memfd is first sent over the socket, after the cookie of
 * INFO: one message of 8 zero bytes with SCM_RIGHTS. The reply is the 8-byte
 * token, which is valid for one REGISTER by the same user.
 *
 * GPUNVME_MEM_CUDA_IPC may also have a token: that of a dma-buf with the whole
 * 4 KiB pages around the buffer, whose allocation begins at a multiple of 4
 * KiB. At tier 2 the drive then writes to the memory through VFIO.
 */
struct gpunvme_ioc_register {
    struct gpunvme_abi abi;
    uint32_t kind;
    uint32_t flags;  /* GPUNVME_REGISTER_*; LIST at most together with BOUNCE */
    uint64_t offset; /* bytes */
    uint64_t len;    /* bytes, > 0 */
    uint64_t token;
    uint8_t ipc[64];
    uint64_t id;  /* out */
    uint64_t key; /* out */
    /*
     * UUID of the GPU whose executor serves the buffer. GPUNVME_MEM_CUDA_IPC
     * and GPUNVME_MEM_SEGMENTS need that of the memory. Zeros leave the choice
     * to the daemon.
     */
    uint8_t gpu_uuid[16];
};

struct gpunvme_ioc_unregister {
    struct gpunvme_abi abi;
    uint64_t id;
    uint64_t key;
};

#define GPUNVME_NO_FALLBACK 1u /* fail instead of taking the bounce path */
#define GPUNVME_STAGED      2u /* out, ignored in: the GPU path has staged bytes (tiers 0 and 1) */

/*
 * READ copies file bytes [file_offset, +len) to buffer bytes [buffer_offset,
 * +len); WRITE copies them the other way. READ is short only at the end of the
 * file, as pread(2) is; WRITE grows the file. The ioctl needs the open mode
 * that read(2) or write(2) needs.
 *
 * Returns 0 if the bytes in `bytes` were moved, even if they are fewer because
 * of a signal. Returns -EINTR if a signal came before any byte was moved, and
 * -EIO with nvme_status if the drive failed. Other errors are -EBADF (open
 * mode), -ENOENT (no such buffer), -EACCES (wrong key or user), -ERANGE (past
 * the end of the buffer), -EOVERFLOW (offset + len), -EREMOTEIO (NO_FALLBACK is
 * set and the GPU path is unavailable), -EFBIG, -ENOSPC, -EROFS and -ETIMEDOUT.
 */
struct gpunvme_ioc_rw {
    struct gpunvme_abi abi;
    uint32_t flags;       /* GPUNVME_NO_FALLBACK; out: GPUNVME_STAGED */
    uint32_t deadline_ms; /* 0: the deadline of the mount */
    uint64_t id;
    uint64_t key;
    uint64_t file_offset;
    uint64_t buffer_offset;
    uint64_t len;
    uint64_t bytes;       /* out */
    uint64_t commands;    /* out: NVMe commands on queues of buffers */
    uint32_t path;        /* out: GPUNVME_PATH_* */
    uint32_t nvme_status; /* out: SC | SCT << 8 | DNR << 14 of the first error; 0: none */
};

/* Describes one read of a batch, in memory registered as a list. */
struct gpunvme_piece {
    uint64_t file_offset;
    uint64_t buffer_offset;
    uint32_t len;   /* bytes, < 2^31 */
    int32_t result; /* out: bytes, short only at the end of the file, or -errno */
};

/*
 * Reads many pieces of one file in one call: elements [first, first + count) of
 * the list, in any order, each with its own result. Returns 0 if every piece
 * has a result. On -EINTR and -ETIMEDOUT the pieces without a result have
 * -ECANCELED. -E2BIG means that all pieces together are longer than the limit
 * of one call, which is the length of the buffer or 4 GiB, whichever is more;
 * the pieces that were not read have -E2BIG, too. Errors before the first piece
 * are those of READ for buffer and list, -ERANGE (past the end of the list) and
 * -EINVAL (list_id is not a list, or count is 0 or above GPUNVME_PIECES_MAX).
 */
struct gpunvme_ioc_readv {
    struct gpunvme_abi abi;
    uint32_t flags;       /* GPUNVME_NO_FALLBACK; out: GPUNVME_STAGED */
    uint32_t deadline_ms; /* 0: the deadline of the mount */
    uint64_t id;
    uint64_t key;
    uint64_t list_id;
    uint64_t list_key;
    uint64_t first;
    uint64_t count;
    uint64_t bytes;       /* out: of all pieces together */
    uint64_t commands;    /* out: NVMe commands on queues of buffers */
    uint32_t path;        /* out: GPUNVME_PATH_* */
    uint32_t nvme_status; /* out: of one command that failed; 0: none */
};
#define GPUNVME_PIECES_MAX (1u << 20)

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

/* Returns the extents of a file from file_offset on, without holes. */
struct gpunvme_ioc_extents {
    struct gpunvme_abi abi;
    uint64_t file_offset;
    uint32_t max;                                       /* 1 .. GPUNVME_EXTENTS_MAX */
    uint32_t count;                                     /* out */
    struct gpunvme_extent extents[GPUNVME_EXTENTS_MAX]; /* out */
};

/* Describes a block of a file, or a place of a metadata block, that has failed a scrub. */
struct gpunvme_scrub_block {
    /* In bytes. Of metadata: the logical address of the block, with the kind in bits 60 to 63. */
    uint64_t file_offset;
    uint64_t device;  /* byte offset on the device; 0: none, a repair lost the block */
    uint32_t problem; /* GPUNVME_SCRUB_* */
    uint32_t reserved;
};
#define GPUNVME_SCRUB_DIFFERS    1u /* a block differs from its checksum in two reads */
#define GPUNVME_SCRUB_UNREADABLE 2u /* the device returns an error */
#define GPUNVME_SCRUB_CORRECTED  3u /* the block differed by one bit, and has been written again */
#define GPUNVME_SCRUB_COPIED     4u /* metadata; it has been written from its other place */
#define GPUNVME_SCRUB_BLOCKS_MAX 512u

#define GPUNVME_SCRUB_ADD      1u /* adds the missing checksums, of the present content */
#define GPUNVME_SCRUB_CORRECT  2u /* corrects one flipped bit of a block that differs */
#define GPUNVME_SCRUB_METADATA 4u /* the only flag: reads metadata instead of the file */

/*
 * Reads a part of a file from the device and compares it with its checksums.
 * The file is open for reading, with flags also for writing (-EBADF). One
 * call handles about 16 MiB; callers repeat it until `offset` equals `end`.
 * Blocks that fail are not an error of the call. Returns -EINVAL if offset is
 * past end or not a multiple of 4096, -EOPNOTSUPP if the file system has no
 * checksums of data, or if its damaged log makes them useless, -EISDIR, and
 * -EROFS with flags. Other content looks like one flipped bit with probability
 * 2^-17: compare corrected blocks with another source if there is one.
 *
 * GPUNVME_SCRUB_METADATA reads all places of the metadata of the whole file
 * system from the device, and corrects them unless the mount is read-only. The
 * file may be any file or directory of the mount. Only root and the user of the
 * daemon may do this (-EPERM). `offset` is 0 in the first call, then as the call
 * before has returned it, until it is 0 again; `end` is 0. `matching` are places
 * that are right, `without` blocks that were left out because a newer version
 * of them is in use or in the log, and `added` chunks that had one place and
 * have got a second one.
 */
struct gpunvme_ioc_scrub {
    struct gpunvme_abi abi;
    uint32_t flags;    /* GPUNVME_SCRUB_ADD, _CORRECT; or _METADATA */
    uint32_t count;    /* out: number of `blocks` */
    uint64_t offset;   /* in, out: bytes; metadata: a position */
    uint64_t end;      /* in: bytes, up to INT64_MAX */
    uint64_t matching; /* out: blocks of 4096 bytes that match */
    uint64_t added;    /* out: checksums added */
    uint64_t without;  /* out: blocks without a checksum */
    struct gpunvme_scrub_block blocks[GPUNVME_SCRUB_BLOCKS_MAX]; /* out: in order of offset */
};

#define GPUNVME_OP_READ  0u
#define GPUNVME_OP_WRITE 1u
#define GPUNVME_OP_READV 2u

/*
 * Names the reasons why a transfer took the bounce path. Each piece of a READV
 * that leaves the GPU path counts separately.
 */
#define GPUNVME_FALLBACK_NO_EXECUTOR  0u /* the mount has none, or it cannot reach the buffer */
#define GPUNVME_FALLBACK_DRIVE_ERROR  1u /* a command ended with an error status */
#define GPUNVME_FALLBACK_LOST_COMMAND 2u /* a command did not end by the mount's deadline */
#define GPUNVME_FALLBACK_NO_MEMORY    3u
#define GPUNVME_FALLBACK_BUSY         4u
#define GPUNVME_FALLBACK_NO_QUEUE     5u /* no queue pair is in service */
#define GPUNVME_FALLBACK_UNSUPPORTED  6u /* the executor cannot reach these blocks */
#define GPUNVME_FALLBACK_NO_SPACE     7u /* no free blocks for all of a write */

/*
 * Times that READ, WRITE and READV took in the daemon, for calls that moved
 * bytes.
 */
#define GPUNVME_LATENCY_BUCKETS 24u
struct gpunvme_latency {
    uint64_t ns; /* sum over all calls */
    /*
     * [0] counts calls below 2 us, [i] those from 2^i to 2^(i + 1) us, and the
     * last bucket all longer ones.
     */
    uint64_t buckets[GPUNVME_LATENCY_BUCKETS];
};

/*
 * Counters that libgpunvme keeps in a program, for calls that moved bytes, with
 * the times seen by the program.
 */
#define GPUNVME_CALLS_DIRECT 4u /* follows GPUNVME_PATH_*: reads on leased queues */
#define GPUNVME_CALLS_PATHS  4u
struct gpunvme_calls_of {
    uint64_t bytes;
    struct gpunvme_latency latency;
};
struct gpunvme_calls {
    /*
     * Indexed by [GPUNVME_OP_*][path - 1], where the path is a GPUNVME_PATH_*
     * or GPUNVME_CALLS_DIRECT.
     */
    struct gpunvme_calls_of by[3][GPUNVME_CALLS_PATHS];
    /*
     * Reads and lists of the direct path in streams, whose end only the GPU
     * observes. The bytes are those of the reads.
     */
    uint64_t enqueued, enqueued_bytes;
    /*
     * Bytes of the bounce pipeline, which are included above. The mount counts
     * them as bytes of read(2), of write(2) or of the bounce path.
     */
    uint64_t pipeline_read_bytes, pipeline_written_bytes;
};

struct gpunvme_ioc_stats {
    struct gpunvme_abi abi;
    uint64_t gpu_transfers, gpu_commands, gpu_read_bytes, gpu_written_bytes;
    uint64_t bounce_transfers, bounce_read_bytes, bounce_written_bytes;
    /*
     * Errors and timeouts count transfers of the executor that had an error
     * status or passed their deadline, and commands of the ordinary path,
     * repeated or not. Errors also count transfers of either that ended because
     * the drive was given up. `cancelled` counts cancelled transfers.
     */
    uint64_t errors, timeouts, cancelled;
    uint64_t buffers, quarantined_queues;
    uint64_t aborts;            /* commands ended by an Abort */
    uint64_t queue_recreations; /* queue pairs deleted and created again */
    uint64_t controller_resets; /* resets begun */
    /*
     * Staged bytes are included in gpu_read_bytes and gpu_written_bytes. They
     * belong to buffers that the drive cannot reach: commands move them to or
     * from staging in host memory, and the executor copies between staging and
     * buffer.
     */
    uint64_t gpu_staged_read_bytes, gpu_staged_written_bytes;
    /*
     * Memory regions that are mapped for the drive, and their limit (0: no
     * limit is known). Data of a buffer without a region is staged.
     */
    uint64_t dma_regions, dma_region_limit;
    uint64_t fuse_requests; /* requests of the kernel to the mount */
    /* The index is [GPUNVME_OP_*][GPUNVME_PATH_* - 1]. */
    struct gpunvme_latency latency[3][3];
    uint64_t fallbacks[8];    /* transfers on the bounce path by reason, GPUNVME_FALLBACK_* */
    uint64_t leased_commands; /* of leased queues, as far as they are known */
    /*
     * Metadata blocks that failed their check when they were read. reread: the
     * second read was right. corrected: one flipped bit was corrected. copied:
     * a place was written again from the other one (feature meta_copies).
     * damaged: the block stayed damaged, and the objects that it describes
     * cannot be used until fsck has repaired it. unwritten: writes of one of two
     * places that failed, so that only the other one is right.
     */
    uint64_t metadata_reread, metadata_corrected, metadata_copied, metadata_damaged;
    uint64_t metadata_unwritten;
    /*
     * Scrubs in the background (mount option scrub=): complete passes, and the
     * end of the last one in seconds since 1970, 0 if there is none. These, and
     * scrubs of metadata on request: bytes read, blocks that were wrong, in
     * every pass that found them so, those of them that are right now, and
     * chunks of metadata that had one place and have got a second one.
     */
    uint64_t scrub_passes, scrub_bytes, scrub_found, scrub_corrected, scrub_last_pass;
    uint64_t scrub_chunks;
    struct gpunvme_calls
        /*
         * The sum over all programs that share their counters (SHARE_CALLS),
         * since the mount.
         */
        calls;
};

/*
 * Bytes that an open file description has moved since it was opened. Root sees
 * all descriptions. Other users see those that were last used by their own
 * processes.
 */
struct gpunvme_open_file {
    uint64_t id;  /* grows with the time of opening */
    uint64_t ino; /* st_ino of the file */
    uint32_t uid; /* user of the last request */
    uint32_t pid; /* thread of the last request, in the daemon's PID namespace; 0: unknown */
    uint64_t calls;
    uint64_t gpu_read_bytes, gpu_written_bytes;       /* READ, READV and WRITE by the executor */
    uint64_t bounce_read_bytes, bounce_written_bytes; /* those through host memory */
    uint64_t kernel_read_bytes, kernel_written_bytes; /* requests of the kernel: read(2), ... */
    uint32_t closed;                                  /* 1: closed recently */
    /*
     * This is 1 if the entry describes no file but the counters that a program
     * shares by SHARE_CALLS. Then gpu_* are bytes of the direct path, and
     * bounce_* are bytes of the bounce pipeline, whose requests also count at
     * their files.
     */
    uint32_t shared_calls;
};
#define GPUNVME_OPEN_FILES_MAX 160u

/*
 * Open file descriptions that have moved data, most recent first. The first
 * reply also has the last 64 that were closed. To iterate, pass below = 0, then
 * the value returned in the previous reply, until it is 0.
 */
struct gpunvme_ioc_open_files {
    struct gpunvme_abi abi;
    uint64_t below; /* in, out */
    uint32_t count; /* out */
    uint32_t reserved;
    struct gpunvme_open_file files[GPUNVME_OPEN_FILES_MAX]; /* out */
};

#define GPUNVME_QUEUE_EXECUTOR       1u
#define GPUNVME_QUEUE_OUT_OF_SERVICE 2u /* of the executor, until it is recovered */
#define GPUNVME_QUEUE_LEASED         3u

struct gpunvme_queue {
    uint32_t qid;
    uint32_t use;
    uint32_t uid, pid; /* holder of a lease; 0: none, unknown, or hidden from the caller */
    /*
     * Commands since the mount, or since the lease. GPUNVME_COMMANDS_UNKNOWN
     * means that the holder of the lease stores directly to the doorbells of a
     * hardware drive, so that the daemon cannot count its commands.
     */
    uint64_t commands;
};
#define GPUNVME_COMMANDS_UNKNOWN UINT64_MAX
#define GPUNVME_QUEUES_MAX       512u

/* Returns the queue pairs that move data of buffers. */
struct gpunvme_ioc_queues {
    struct gpunvme_abi abi;
    uint32_t count; /* out */
    uint32_t reserved;
    struct gpunvme_queue queues[GPUNVME_QUEUES_MAX]; /* out */
};

#define GPUNVME_GPU_CLOSED 0u /* the GPU has no executor, because no buffer is registered there */
#define GPUNVME_GPU_OPEN   1u
/* The executor has failed or does not start. Buffers of the GPU take the bounce path. */
#define GPUNVME_GPU_LOST 2u

/* The distance of a GPU is named after the lowest bridge between it and the drive of the mount. */
#define GPUNVME_DISTANCE_UNKNOWN 0u /* one of them is not on the PCI bus */
#define GPUNVME_DISTANCE_SWITCH  1u /* the same PCIe switch */
#define GPUNVME_DISTANCE_ROOT    2u /* the same root complex */
#define GPUNVME_DISTANCE_FAR     3u /* different root complexes */

/* Describes a GPU of the mount. All counters start at 0 at mount time. */
struct gpunvme_gpu {
    uint8_t uuid[16];
    char name[64];
    uint32_t state;            /* GPUNVME_GPU_* */
    uint32_t tier, lease_tier; /* as in INFO; of a GPU that never had an executor: expected */
    uint32_t queues;           /* queue pairs of its executor; 0 without one */
    uint32_t buffers;          /* registered now, and lists for each GPU that uses them */
    int16_t numa_node;         /* -1: not reported */
    uint8_t distance;          /* GPUNVME_DISTANCE_* */
    uint8_t reserved;
    uint64_t transfers, commands, read_bytes, written_bytes;
    uint64_t staged_read_bytes, staged_written_bytes; /* these bytes, as far as staged; see STATS */
    uint64_t errors, timeouts;                        /* of its transfers */
};
#define GPUNVME_GPUS_MAX 32u

/*
 * Returns the GPUs of the mount, in the order of the option gpus=. The one of
 * INFO is the first whose executor started with the mount. Without a GPU the
 * CPU executor is the only entry, and a mount without an executor has none.
 */
struct gpunvme_ioc_gpus {
    struct gpunvme_abi abi;
    uint32_t count; /* out */
    uint32_t reserved;
    struct gpunvme_gpu gpus[GPUNVME_GPUS_MAX]; /* out */
};

/*
 * Names the kinds of trace records. Each comment lists the values of id, a, b,
 * len and result.
 */
#define GPUNVME_TRACE_REQUEST       1u  /* of the kernel: opcode, unique, node id, bytes */
#define GPUNVME_TRACE_REQUEST_DONE  2u  /* a request left its thread: opcode, unique, node id */
#define GPUNVME_TRACE_OP            3u  /* a transfer began: operation, inode, offset, bytes */
#define GPUNVME_TRACE_OP_DONE       4u  /* operation, inode, NVMe commands, bytes, -errno */
#define GPUNVME_TRACE_SUBMIT        5u  /* an NVMe command: CID, first LBA, QID, opcode */
#define GPUNVME_TRACE_COMPLETE      6u  /* the same, and the status field */
#define GPUNVME_TRACE_COMMIT        7u  /* of the journal: 0, transaction, 0, blocks */
#define GPUNVME_TRACE_COMMIT_DONE   8u  /* the same, and -errno */
#define GPUNVME_TRACE_RECOVERY      9u  /* 1 queue, 2 executor, 3 controller; QID */
#define GPUNVME_TRACE_RECOVERY_DONE 10u /* the same, and -errno */

/*
 * The operation is a GPUNVME_OP_*, 3 (a read of the kernel) or 4 (a write of
 * the kernel). Commands that the GPU posts are not recorded individually;
 * GPUNVME_TRACE_OP_DONE has their number.
 */
struct gpunvme_trace_record {
    uint64_t ns; /* CLOCK_MONOTONIC */
    uint32_t kind;
    uint32_t id;
    uint64_t a, b;
    uint32_t len;
    int32_t result;
};
#define GPUNVME_TRACE_MAX 400u

/*
 * The daemon keeps the latest 65,536 records of a mount with -o trace, which
 * only root can read.
 */
struct gpunvme_ioc_trace {
    struct gpunvme_abi abi;
    /*
     * In: number of the first record to return, or 0 for the oldest. Out:
     * number of the record that follows the last one returned.
     */
    uint64_t next;
    uint64_t end;   /* out: number of the next record to be made */
    uint64_t lost;  /* out: skipped records, which newer ones had overwritten */
    uint32_t count; /* out */
    uint32_t reserved;
    struct gpunvme_trace_record records[GPUNVME_TRACE_MAX]; /* out */
};

/*
 * Leases are the direct path. A program drives NVMe queue pairs itself and has
 * the extents of its files, so that a read needs no call into the daemon. A
 * leased queue reaches the whole namespace and all memory that the drive may
 * reach for this mount. The mount option direct= names the users trusted with
 * that; other users get -EPERM.
 *
 * A lease belongs to the open file description through which it was taken. It
 * ends with that description, by LEASE_END, or by revocation. To revoke a
 * lease, the daemon sets `state` in its page to GPUNVME_LEASE_REVOKED. The
 * holder then has GPUNVME_LEASE_GRACE_MS to end it, after which the daemon
 * deletes the queues, which ends their commands. The daemon revokes queues when
 * the controller is reset, and all leases when the mount ends; both take effect
 * at once. On a mount with writeback_cache it revokes the extents of a file that
 * is opened for writing.
 */
#define GPUNVME_LEASE_GRACE_MS 2000u
#define GPUNVME_LEASE_MAX      64u /* queues per lease */

/*
 * Describes the start of a lease's shared memory. Only the daemon writes this
 * memory.
 */
struct gpunvme_lease_page {
    uint32_t state; /* GPUNVME_LEASE_* */
    uint32_t reserved;
    /*
     * Generation of an extent lease. It changes when the extents or the size of
     * the file change, and when the lease loses one of its checksums. Data read
     * through older extents is the content of the file at the time of the
     * lease, never data of another file.
     */
    uint64_t generation;
};
#define GPUNVME_LEASE_VALID   1u
#define GPUNVME_LEASE_REVOKED 2u

/*
 * Leases queue pairs. Their parts are requested over the socket
 * (gpunvme_request).
 */
struct gpunvme_ioc_queue_lease {
    struct gpunvme_abi abi;
    uint32_t queues; /* in: wanted, 1 .. GPUNVME_LEASE_MAX; out: granted, at least 1 */
    uint32_t depth;  /* in: entries per queue, 0 for 64; out: as created */
    uint32_t flags;  /* 0 */
    uint32_t nsid;   /* out */
    uint32_t lba_size;
    uint32_t max_command; /* out: bytes per NVMe command, at least 8,192 */
    uint32_t deadline_ms; /* out: a command that takes longer is lost */
    uint32_t reserved;
    uint64_t id;  /* out */
    uint64_t key; /* out */
};

/*
 * Leases the extents of a whole file and pins them: its blocks are not reused
 * while the lease lasts, even if the file is truncated or removed. The file is
 * open for reading. Returns -EDQUOT if this user has leased too many extents,
 * -EBUSY if all users together have, -EMFILE for too many leases, -ETXTBSY if
 * the file is open for writing on a mount with writeback_cache, and -EOPNOTSUPP
 * if the data has checksums and neither flag states whether the holder compares
 * them.
 */
struct gpunvme_ioc_extent_lease {
    struct gpunvme_abi abi;
    /*
     * In: 0 or one GPUNVME_LEASE_* below. Out: GPUNVME_LEASE_SUMS if there are
     * checksums.
     */
    uint32_t flags;
    uint32_t reserved;
    uint64_t size;       /* out: file size in bytes */
    uint64_t count;      /* out: number of struct gpunvme_lease_extent in the shared memory */
    uint64_t generation; /* out */
    uint64_t id;         /* out */
    uint64_t key;        /* out */
};

/* An extent ends at the offset of the next one, or at the size of the file. */
struct gpunvme_lease_extent {
    uint64_t offset; /* in the file, bytes */
    uint64_t lba;    /* first LBA in the namespace; UINT64_MAX: zeros */
};

/*
 * With SUMS the holder compares checksums of data. With UNVERIFIED it reads
 * unverified data.
 */
#define GPUNVME_LEASE_SUMS       1u
#define GPUNVME_LEASE_UNVERIFIED 2u
/*
 * Checksums are 32-bit words that follow the extents in the shared memory, one
 * for each 4096 bytes of the file; the last block may be partial. 0 means that
 * the block has no checksum. Other values are the CRC-32C of the 4096 bytes of
 * the block on the device, including those past the end of the file, with 2^32
 * - 1 in place of 0. The daemon sets a word to 0 before the block is
 * overwritten. A non-zero word loaded after the data of the block has arrived
 * therefore belongs to that data.
 */

struct gpunvme_ioc_lease_end {
    struct gpunvme_abi abi;
    uint64_t id;
    uint64_t key;
};

/*
 * Returns the IOVA of a registered buffer. The caller needs the right to
 * leases.
 */
struct gpunvme_ioc_buffer_iova {
    struct gpunvme_abi abi;
    uint64_t id;
    uint64_t key;
    uint64_t iova;      /* out: of the first page; the pages are contiguous */
    uint64_t prps_iova; /* out: of the table of PRP entries, see below */
    uint64_t pages;     /* out: number of 4096-byte pages */
    uint64_t head;      /* out: offset of the buffer's first byte in the first page */
};
/*
 * Entry i of the table, 8 bytes long, is the address of page i. The table is
 * contiguous and page-aligned, with 512 entries per 4096 bytes. It has no chain
 * pointers: a PRP list may start at any entry, and all its entries must lie in
 * one page of the table.
 */

/*
 * A request over the socket is one message, and so is its reply: a struct
 * gpunvme_reply with descriptors (SCM_RIGHTS). The daemon closes the connection
 * on an invalid request, and when a client sends requests while more than two
 * replies are unread.
 */
struct gpunvme_request {
    uint64_t what; /* GPUNVME_ASK_* */
    uint64_t id;   /* id of the lease */
    uint64_t key;
    uint64_t index; /* index of the queue */
};
/*
 * Requests a lease's page: one read-only descriptor. For an extent lease, the
 * extents follow at offset 64, and then the checksums.
 */
#define GPUNVME_ASK_PAGE 1u
/*
 * Requests a queue: one descriptor of the memory of its rings, and one of the
 * file with its doorbells. The latter may be memory of the daemon, which
 * forwards the doorbells.
 */
#define GPUNVME_ASK_QUEUE 2u

/* Number 3 is used between libgpunvme and the daemon. */

/*
 * Rings begin at multiples of their entry size. The file has at least the
 * reported length and may contain rings of other queues of the lease.
 */
struct gpunvme_reply {
    uint64_t len;                      /* bytes of the first descriptor's memory */
    uint64_t sq_offset, cq_offset;     /* offsets in that memory */
    uint64_t doorbells_len;            /* bytes of the second descriptor's memory */
    uint64_t sq_doorbell, cq_doorbell; /* offsets of 32-bit words in that memory */
};
#define GPUNVME_LEASE_EXTENTS_AT 64u

/*
 * Grows the file system while it is mounted. Root may call it on any file of
 * the mount.
 */
struct gpunvme_ioc_resize {
    struct gpunvme_abi abi;
    uint64_t bytes;  /* in: new size, 0 for that of the drive; out: size of the file system */
    uint64_t device; /* out: size of the drive, bytes */
    uint64_t flags;  /* must be 0 */
};

/*
 * Shares the counters of a program: a struct gpunvme_calls at the start of the
 * memfd that the socket has received for this token. They belong to the open
 * file description from now on. The daemon reads them when counters are
 * requested and uses them for nothing else, so it trusts them. Returns
 * -EALREADY if the description shares counters already, -EMFILE if too many
 * descriptions do, of this user or of all users, and -ENOENT or -EACCES for an
 * invalid token.
 */
struct gpunvme_ioc_share_calls {
    struct gpunvme_abi abi;
    uint64_t token;
};

#define GPUNVME_IOC_INFO       _IOWR('G', 0x60, struct gpunvme_ioc_info)
#define GPUNVME_IOC_REGISTER   _IOWR('G', 0x61, struct gpunvme_ioc_register)
#define GPUNVME_IOC_UNREGISTER _IOWR('G', 0x62, struct gpunvme_ioc_unregister)
#define GPUNVME_IOC_READ       _IOWR('G', 0x63, struct gpunvme_ioc_rw)
#define GPUNVME_IOC_WRITE      _IOWR('G', 0x64, struct gpunvme_ioc_rw)
#define GPUNVME_IOC_EXTENTS    _IOWR('G', 0x65, struct gpunvme_ioc_extents)
#define GPUNVME_IOC_STATS      _IOWR('G', 0x66, struct gpunvme_ioc_stats)
#define GPUNVME_IOC_READV      _IOWR('G', 0x67, struct gpunvme_ioc_readv)

#define GPUNVME_IOC_QUEUE_LEASE  _IOWR('G', 0x68, struct gpunvme_ioc_queue_lease)
#define GPUNVME_IOC_EXTENT_LEASE _IOWR('G', 0x69, struct gpunvme_ioc_extent_lease)
#define GPUNVME_IOC_LEASE_END    _IOWR('G', 0x6a, struct gpunvme_ioc_lease_end)
#define GPUNVME_IOC_BUFFER_IOVA  _IOWR('G', 0x6b, struct gpunvme_ioc_buffer_iova)
/* Request 0x6c is used between libgpunvme and the daemon. */
#define GPUNVME_IOC_SCRUB       _IOWR('G', 0x6d, struct gpunvme_ioc_scrub)
#define GPUNVME_IOC_OPEN_FILES  _IOWR('G', 0x6e, struct gpunvme_ioc_open_files)
#define GPUNVME_IOC_QUEUES      _IOWR('G', 0x6f, struct gpunvme_ioc_queues)
#define GPUNVME_IOC_RESIZE      _IOWR('G', 0x70, struct gpunvme_ioc_resize)
#define GPUNVME_IOC_SHARE_CALLS _IOWR('G', 0x71, struct gpunvme_ioc_share_calls)
#define GPUNVME_IOC_TRACE       _IOWR('G', 0x72, struct gpunvme_ioc_trace)
#define GPUNVME_IOC_GPUS        _IOWR('G', 0x73, struct gpunvme_ioc_gpus)

/* C99 has no static_assert. */
#if defined(__cplusplus) || __STDC_VERSION__ >= 201112L
static_assert(sizeof(struct gpunvme_abi) == 8, "abi header");
static_assert(sizeof(struct gpunvme_ioc_info) == 672, "info");
static_assert(sizeof(struct gpunvme_piece) == 24, "piece");
static_assert(sizeof(struct gpunvme_ioc_readv) == 88, "readv");
static_assert(sizeof(struct gpunvme_lease_page) == 16, "lease page");
static_assert(sizeof(struct gpunvme_ioc_queue_lease) == 56, "queue lease");
static_assert(sizeof(struct gpunvme_ioc_extent_lease) == 56, "extent lease");
static_assert(sizeof(struct gpunvme_lease_extent) == 16, "lease extent");
static_assert(sizeof(struct gpunvme_ioc_lease_end) == 24, "lease end");
static_assert(sizeof(struct gpunvme_ioc_buffer_iova) == 56, "buffer iova");
static_assert(sizeof(struct gpunvme_request) == 32, "ask");
static_assert(sizeof(struct gpunvme_reply) == 48, "told");
static_assert(sizeof(struct gpunvme_ioc_register) == 136, "register");
static_assert(sizeof(struct gpunvme_memory_segment) == 24, "segment");
static_assert(offsetof(struct gpunvme_ioc_register, gpu_uuid) == 120, "register.gpu_uuid");
static_assert(sizeof(struct gpunvme_ioc_unregister) == 24, "unregister");
static_assert(sizeof(struct gpunvme_ioc_rw) == 80, "rw");
static_assert(sizeof(struct gpunvme_extent) == 32, "extent");
static_assert(sizeof(struct gpunvme_ioc_extents) == 24 + 32 * GPUNVME_EXTENTS_MAX, "extents");
static_assert(sizeof(struct gpunvme_calls) == 2528, "calls");
static_assert(sizeof(struct gpunvme_ioc_stats) == 4656, "stats");
static_assert(offsetof(struct gpunvme_ioc_rw, bytes) == 56, "rw.bytes");
static_assert(sizeof(struct gpunvme_ioc_extents) < 16384, "FUSE's limit");
static_assert(sizeof(struct gpunvme_open_file) == 88, "open file");
static_assert(sizeof(struct gpunvme_ioc_open_files) < 16384, "FUSE's limit");
static_assert(sizeof(struct gpunvme_queue) == 24, "queue");
static_assert(sizeof(struct gpunvme_ioc_queues) < 16384, "FUSE's limit");
static_assert(sizeof(struct gpunvme_gpu) == 168, "GPU");
static_assert(offsetof(struct gpunvme_gpu, numa_node) == 100, "gpu.numa_node");
static_assert(offsetof(struct gpunvme_gpu, transfers) == 104, "gpu.transfers");
static_assert(sizeof(struct gpunvme_ioc_gpus) == 16 + 168 * GPUNVME_GPUS_MAX, "GPUs");
static_assert(sizeof(struct gpunvme_trace_record) == 40, "trace record");
static_assert(sizeof(struct gpunvme_ioc_trace) < 16384, "FUSE's limit");
static_assert(sizeof(struct gpunvme_ioc_resize) == 32, "resize");
static_assert(sizeof(struct gpunvme_ioc_share_calls) == 16, "share calls");
static_assert(sizeof(struct gpunvme_ioc_scrub) == 56 + 24 * GPUNVME_SCRUB_BLOCKS_MAX, "scrub");
#endif

#endif
