/* SPDX-License-Identifier: BSD-2-Clause */
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

#define GPUNVME_ABI_VERSION 2u

struct gpunvme_abi {
    uint32_t size; /* of the struct this begins */
    uint32_t version;
};

/* The processor that runs the queue code. */
#define GPUNVME_EXECUTOR_NONE 0u /* no executor: every transfer takes the bounce path */
#define GPUNVME_EXECUTOR_CUDA 1u
#define GPUNVME_EXECUTOR_CPU  2u

/* What the driver does for a controller that does not keep to the specification. */
#define GPUNVME_QUIRK_SLOW_DISABLE      1u  /* reads no register for 2.3 s after a disable */
#define GPUNVME_QUIRK_NO_WRITE_ZEROES   2u  /* writes zeros instead of Write Zeroes */
#define GPUNVME_QUIRK_NO_NS_DESCRIPTORS 4u  /* does not ask for descriptors of namespaces */
#define GPUNVME_QUIRK_FALSE_NS_IDS      8u  /* knows no namespace by NGUID or EUI-64 */
#define GPUNVME_QUIRK_IGNORES_FUA       16u /* sends Flush after writes with FUA */
#define GPUNVME_QUIRK_SHORT_TRANSFERS   32u /* sends commands of 128 KiB at most */
#define GPUNVME_QUIRK_NO_ABORT          64u /* does not send Abort */

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
     * them, the drive moves data to and from host memory only, and the executor copies that of GPU
     * memory; 2: data in GPU memory; 3: queues too. Says nothing when executor is NONE.
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
    char tier_note[256]; /* why the tier is no better, or is none; empty: nothing to say */
    /* The struct ended here until READV and leases came. */
    uint32_t direct;       /* 1: the caller may lease queues and extents (mount option direct=) */
    uint32_t lease_queues; /* queue pairs that may be leased at once, by all together */
    /* The struct ended here until the cookie came. */
    uint8_t cookie[8]; /* the first bytes to send on each connection to the socket */
    /* The struct ended here until the write-back cache came. */
    uint32_t writeback_cache; /* 1: mount option writeback_cache, which excludes WRITE */
    uint32_t quirks;          /* GPUNVME_QUIRK_*; 0 of earlier versions, too */
};

/* Memory kinds. */
#define GPUNVME_MEM_CUDA_IPC 1u /* ipc: handle of the allocation's base; offset from the base */
#define GPUNVME_MEM_FD       2u /* token: what the socket answered for a descriptor; offset in it */

/*
 * With GPUNVME_MEM_FD, on every mount: the memory will hold lists for READV, and is not for
 * transfers.
 */
#define GPUNVME_REGISTER_LIST 1u
/*
 * With GPUNVME_MEM_FD: memory of the host also on a mount whose CPU executor takes other buffers
 * for GPU memory that the drive does not reach (mount option sim_gpu=off).
 */
#define GPUNVME_REGISTER_HOST 2u
/* With GPUNVME_MEM_FD: staging of a lease, to which other buffers leave regions. -EPERM: direct= */
#define GPUNVME_REGISTER_STAGING 4u

/*
 * Makes memory of the caller a buffer. The buffer belongs to the open file description that
 * registers it and ends with it. `id` and `key` together authorise its use, on any file of the
 * mount that the registering user has open.
 *
 * A file descriptor (of a memfd) is first sent over the socket, after the cookie of INFO: one
 * message of 8 zero bytes with SCM_RIGHTS. The reply is 8 bytes, the token, valid for one REGISTER
 * by the same user.
 */
struct gpunvme_ioc_register {
    struct gpunvme_abi abi;
    uint32_t kind;
    uint32_t flags;  /* GPUNVME_REGISTER_LIST alone, or other GPUNVME_REGISTER_ */
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
#define GPUNVME_STAGED      2u /* out, ignored in: the GPU path has staged bytes (tiers 0 and 1) */

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
    uint32_t flags;       /* GPUNVME_NO_FALLBACK; out: GPUNVME_STAGED */
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

/* One read of a batch, in memory registered as a list. */
struct gpunvme_piece {
    uint64_t file_offset;
    uint64_t buffer_offset;
    uint32_t len;   /* bytes, < 2^31 */
    int32_t result; /* out: bytes, short only at the end of the file, or -errno */
};

/*
 * Many reads of one file in one call: pieces [first, first + count) of the list, in any order, each
 * with its own result. Returns 0 when every piece has one; otherwise (-EINTR, -ETIMEDOUT) the
 * pieces without a better one have -ECANCELED. -E2BIG: all pieces together have more bytes than one
 * call has to read (the buffer's length, or 4 GiB if that is more); those that have -E2BIG, too,
 * were not read. Errors before any piece was read: those of READ for buffer and list, -ERANGE (past
 * the end of the list), -EINVAL (list_id is not a list, count 0 or over GPUNVME_PIECES_MAX).
 */
struct gpunvme_ioc_readv {
    struct gpunvme_abi abi;
    uint32_t flags;       /* GPUNVME_NO_FALLBACK; out: GPUNVME_STAGED */
    uint32_t deadline_ms; /* 0: the mount's */
    uint64_t id;
    uint64_t key;
    uint64_t list_id;
    uint64_t list_key;
    uint64_t first;
    uint64_t count;
    uint64_t bytes;       /* out: of all pieces together */
    uint64_t commands;    /* out: NVMe commands sent by the executor */
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

/* Extents of a file from file_offset on; holes are left out. */
struct gpunvme_ioc_extents {
    struct gpunvme_abi abi;
    uint64_t file_offset;
    uint32_t max;                                       /* 1 .. GPUNVME_EXTENTS_MAX */
    uint32_t count;                                     /* out */
    struct gpunvme_extent extents[GPUNVME_EXTENTS_MAX]; /* out */
};

/* A block of a file that a scrub complains of. */
struct gpunvme_scrub_block {
    uint64_t file_offset; /* bytes */
    uint64_t device;      /* byte offset on the device */
    uint32_t problem;     /* GPUNVME_SCRUB_* */
    uint32_t reserved;
};
#define GPUNVME_SCRUB_DIFFERS    1u /* from its checksum, read twice */
#define GPUNVME_SCRUB_UNREADABLE 2u /* the device returns an error */
#define GPUNVME_SCRUB_BLOCKS_MAX 512u

#define GPUNVME_SCRUB_ADD 1u /* blocks without a checksum get one, of their contents */

/*
 * Reads a part of a file from the device and compares it with its checksums, on a file open for
 * reading, with SCRUB_ADD also for writing (-EBADF). A call handles some 16 MiB: repeat it until
 * `offset` is `end`. Blocks that are complained of are no error of the call. -EINVAL (offset is no
 * multiple of 4096, or past end); -EOPNOTSUPP (the file system has no checksums of data, or a
 * damaged log that makes them useless); -EISDIR; with SCRUB_ADD -EROFS.
 */
struct gpunvme_ioc_scrub {
    struct gpunvme_abi abi;
    uint32_t flags;    /* GPUNVME_SCRUB_ADD */
    uint32_t count;    /* out: of blocks */
    uint64_t offset;   /* in, out: bytes */
    uint64_t end;      /* in: bytes, up to INT64_MAX */
    uint64_t matching; /* out: blocks of 4096 bytes */
    uint64_t added;    /* out */
    uint64_t without;  /* out: blocks without a checksum */
    struct gpunvme_scrub_block blocks[GPUNVME_SCRUB_BLOCKS_MAX]; /* out: by offset */
};

#define GPUNVME_OP_READ  0u
#define GPUNVME_OP_WRITE 1u
#define GPUNVME_OP_READV 2u

/* Why a transfer took the bounce path. A piece of READV that turns back counts by itself. */
#define GPUNVME_FALLBACK_NO_EXECUTOR  0u /* the mount has none, or it does not reach the buffer */
#define GPUNVME_FALLBACK_DRIVE_ERROR  1u /* a command ended with an error status */
#define GPUNVME_FALLBACK_LOST_COMMAND 2u /* a command did not end by the mount's deadline */
#define GPUNVME_FALLBACK_NO_MEMORY    3u
#define GPUNVME_FALLBACK_BUSY         4u
#define GPUNVME_FALLBACK_NO_QUEUE     5u /* no queue pair is in service */
#define GPUNVME_FALLBACK_UNSUPPORTED  6u /* the executor cannot reach these blocks */
#define GPUNVME_FALLBACK_NO_SPACE     7u /* no free blocks for all of a write */

/* How long READ, WRITE and READV took in the daemon, of those that moved bytes. */
#define GPUNVME_LATENCY_BUCKETS 24u
struct gpunvme_latency {
    uint64_t ns; /* of all */
    /* [0]: calls of less than 2 us; [i]: of 2^i to 2^(i + 1) us; the last: all longer ones */
    uint64_t buckets[GPUNVME_LATENCY_BUCKETS];
};

/* What libgpunvme counts in a program: of the calls that moved bytes, seen by the program. */
#define GPUNVME_CALLS_DIRECT 4u /* behind GPUNVME_PATH_*: reads on leased queues */
#define GPUNVME_CALLS_PATHS  4u
struct gpunvme_calls_of {
    uint64_t bytes;
    struct gpunvme_latency latency;
};
struct gpunvme_calls {
    /*
     * [GPUNVME_OP_*][GPUNVME_PATH_* or GPUNVME_CALLS_DIRECT, - 1]. Pieces of a list that the
     * process reads by itself, through the bounce pipeline, count as reads.
     */
    struct gpunvme_calls_of by[3][GPUNVME_CALLS_PATHS];
    /*
     * Reads and lists of the direct path in streams; the GPU alone knows when they end. Bytes are
     * those of the reads.
     */
    uint64_t enqueued, enqueued_bytes;
    /* Bytes of the bounce pipeline, among those above: for the mount they are read(2), write(2). */
    uint64_t pipeline_read_bytes, pipeline_written_bytes;
};

struct gpunvme_ioc_stats {
    struct gpunvme_abi abi;
    uint64_t gpu_transfers, gpu_commands, gpu_read_bytes, gpu_written_bytes;
    uint64_t bounce_transfers, bounce_read_bytes, bounce_written_bytes;
    /*
     * Transfers of the executor with an error status or past their deadline, and commands of the
     * ordinary path, whether they were tried again or not; as errors also transfers of either that
     * ended because the drive has been given up; transfers cancelled.
     */
    uint64_t errors, timeouts, cancelled;
    uint64_t buffers, quarantined_queues;
    /* An older size of the struct ends here. Recovery: */
    uint64_t aborts;            /* of commands, that ended them */
    uint64_t queue_recreations; /* of queue pairs: deleted and created again */
    uint64_t controller_resets; /* begun */
    /*
     * The struct ended here until data was staged. Bytes among gpu_read_bytes, gpu_written_bytes
     * of buffers that the drive does not reach: commands move them to or from staging in host
     * memory, the executor copies between staging and buffer.
     */
    uint64_t gpu_staged_read_bytes, gpu_staged_written_bytes;
    /*
     * The struct ended here until regions were counted. Regions of memory mapped for the drive, and
     * how many it keeps at once (0: no limit is known). Data of a buffer that found no region is
     * staged.
     */
    uint64_t dma_regions, dma_region_limit;
    /* The struct ended here until requests were counted: those of the kernel to the mount. */
    uint64_t fuse_requests;
    /* The struct ended here until latencies came: [GPUNVME_OP_*][GPUNVME_PATH_* - 1]. */
    struct gpunvme_latency latency[3][3];
    uint64_t fallbacks[8]; /* transfers that left the GPU path, or never had it, by reason */
    /* The struct ended here until leased queues were counted: their commands, where known. */
    uint64_t leased_commands;
    struct gpunvme_calls
        calls; /* of the programs that share theirs (SHARE_CALLS), since the mount */
};

/*
 * What an open file description moved since it was opened. Root is told of all, a user of those
 * that processes of this user used last.
 */
struct gpunvme_open_file {
    uint64_t id;  /* those opened later have larger ones */
    uint64_t ino; /* st_ino of the file */
    uint32_t uid; /* of the last request */
    uint32_t pid; /* of the thread it came from, as the daemon sees it; 0: unknown */
    uint64_t calls;
    uint64_t gpu_read_bytes, gpu_written_bytes;       /* READ, READV and WRITE by the executor */
    uint64_t bounce_read_bytes, bounce_written_bytes; /* the same through host memory */
    uint64_t kernel_read_bytes, kernel_written_bytes; /* requests of the kernel: read(2), ... */
    uint32_t closed;                                  /* 1: a while ago */
    /*
     * 1: the counters are those that the description shares (SHARE_CALLS), not of a file: gpu_* of
     * the direct path, bounce_* of the bounce pipeline, whose requests count for its files, too.
     */
    uint32_t shared_calls;
};
#define GPUNVME_OPEN_FILES_MAX 160u

/*
 * The descriptions that moved anything, the youngest first. The last 64 that were closed are in the
 * first answer. `below` is 0 for the first answer, then what the answer before left there, until
 * that is 0 again.
 */
struct gpunvme_ioc_open_files {
    struct gpunvme_abi abi;
    uint64_t below; /* in, out */
    uint32_t count; /* out */
    uint32_t reserved;
    struct gpunvme_open_file files[GPUNVME_OPEN_FILES_MAX]; /* out */
};

#define GPUNVME_QUEUE_EXECUTOR       1u
#define GPUNVME_QUEUE_OUT_OF_SERVICE 2u /* of the executor, until it has been recovered */
#define GPUNVME_QUEUE_LEASED         3u

struct gpunvme_queue {
    uint32_t qid;
    uint32_t use;
    uint32_t uid, pid; /* of a lease, as in gpunvme_open_file; 0: not for the caller to know */
    /*
     * Since the mount, or since the lease. GPUNVME_COMMANDS_UNKNOWN: the holder of the lease stores
     * to the doorbells of a drive of hardware, and nothing else counts its commands.
     */
    uint64_t commands;
};
#define GPUNVME_COMMANDS_UNKNOWN UINT64_MAX
#define GPUNVME_QUEUES_MAX       512u

/* The queue pairs that move data of buffers. */
struct gpunvme_ioc_queues {
    struct gpunvme_abi abi;
    uint32_t count; /* out */
    uint32_t reserved;
    struct gpunvme_queue queues[GPUNVME_QUEUES_MAX]; /* out */
};

/* What a record of the trace tells. The comments name id, a, b, len and result of each. */
#define GPUNVME_TRACE_REQUEST       1u  /* of the kernel: opcode, unique, node id, bytes */
#define GPUNVME_TRACE_REQUEST_DONE  2u  /* its thread is free: opcode, unique, node id */
#define GPUNVME_TRACE_OP            3u  /* a transfer began: operation, inode, offset, bytes */
#define GPUNVME_TRACE_OP_DONE       4u  /* operation, inode, NVMe commands, bytes, -errno */
#define GPUNVME_TRACE_SUBMIT        5u  /* an NVMe command: CID, first LBA, QID, opcode */
#define GPUNVME_TRACE_COMPLETE      6u  /* the same, and the status field */
#define GPUNVME_TRACE_COMMIT        7u  /* of the journal: 0, transaction, 0, blocks */
#define GPUNVME_TRACE_COMMIT_DONE   8u  /* the same, and -errno */
#define GPUNVME_TRACE_RECOVERY      9u  /* 1 queue, 2 executor, 3 controller; QID */
#define GPUNVME_TRACE_RECOVERY_DONE 10u /* the same, and -errno */

/*
 * An operation is GPUNVME_OP_*, 3 (a read of the kernel) or 4 (a write of it). Commands that the
 * GPU posts are not recorded one by one; GPUNVME_TRACE_OP_DONE has their number.
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

/* The daemon keeps the latest 65,536 records of a mount with -o trace, for root. */
struct gpunvme_ioc_trace {
    struct gpunvme_abi abi;
    uint64_t next;  /* in: number of the first record wanted, 0: the oldest; out: of the next one */
    uint64_t end;   /* out: number of the record that comes after all that exist now */
    uint64_t lost;  /* out: records passed over, because newer ones had overwritten them */
    uint32_t count; /* out */
    uint32_t reserved;
    struct gpunvme_trace_record records[GPUNVME_TRACE_MAX]; /* out */
};

/*
 * Leases: the direct path. A program drives NVMe queue pairs of its own and knows the extents of
 * its files; no call into the daemon is needed for a read. A leased queue reaches the whole
 * namespace and all memory that the drive may reach for this mount; the mount option direct= names
 * the users trusted with that (-EPERM for all other users).
 *
 * A lease belongs to the open file description through which it was taken. It ends with that, by
 * LEASE_END, or by the daemon (revocation): `state` in its page becomes GPUNVME_LEASE_REVOKED, its
 * holder has GPUNVME_LEASE_GRACE_MS to end it, and then its queues are deleted, which ends their
 * commands. The daemon revokes queues when the controller is reset (they are gone at once then),
 * and all leases when the mount ends (at once).
 */
#define GPUNVME_LEASE_GRACE_MS 2000u
#define GPUNVME_LEASE_MAX      64u /* queues of a lease */

/* At the start of a lease's shared memory; written by the daemon only. */
struct gpunvme_lease_page {
    uint32_t state; /* GPUNVME_LEASE_* */
    uint32_t reserved;
    /*
     * Of an extent lease: changes when the file's extents or size do, and when it loses one of its
     * checksums. Data read through older extents is the file's content as of the lease, never
     * another file's.
     */
    uint64_t generation;
};
#define GPUNVME_LEASE_VALID   1u
#define GPUNVME_LEASE_REVOKED 2u

/* Queue pairs; their parts are asked for over the socket (gpunvme_request). */
struct gpunvme_ioc_queue_lease {
    struct gpunvme_abi abi;
    uint32_t queues; /* in: wanted, 1 .. GPUNVME_LEASE_MAX; out: granted, at least 1 */
    uint32_t depth;  /* in: entries of each, 0: 64; out: as created */
    uint32_t flags;  /* 0 */
    uint32_t nsid;   /* out */
    uint32_t lba_size;
    uint32_t max_command; /* out: bytes of an NVMe command, 8,192 at least */
    uint32_t deadline_ms; /* out: a command not completed after this is lost */
    uint32_t reserved;
    uint64_t id;  /* out */
    uint64_t key; /* out */
};

/*
 * The extents of a file, from its start to its end, pinned: while the lease lasts the blocks are
 * not reused, even after the file is truncated or removed. On a file open for reading. -EDQUOT:
 * this user has too many extents leased; -EBUSY: all users together have; -EMFILE: too many leases;
 * -EOPNOTSUPP: the data has checksums, and neither flag says whether the holder compares them.
 */
struct gpunvme_ioc_extent_lease {
    struct gpunvme_abi abi;
    uint32_t flags; /* in: one of GPUNVME_LEASE_* below, or 0; out: LEASE_SUMS, they are there */
    uint32_t reserved;
    uint64_t size;       /* out: of the file, bytes */
    uint64_t count;      /* out: of struct gpunvme_lease_extent in the shared memory */
    uint64_t generation; /* out */
    uint64_t id;         /* out */
    uint64_t key;        /* out */
};

/* From offset up to the next one's, or the size. */
struct gpunvme_lease_extent {
    uint64_t offset; /* in the file, bytes */
    uint64_t lba;    /* of the namespace; UINT64_MAX: zeros */
};

/* The holder compares the checksums of data; or it reads data that is not verified. */
#define GPUNVME_LEASE_SUMS       1u
#define GPUNVME_LEASE_UNVERIFIED 2u
/*
 * Checksums: 32-bit words behind the extents in the shared memory, one for each 4096 bytes of the
 * file, the last of which may be in part. 0: the block has none. Otherwise the CRC-32C of the
 * block's 4096 bytes on the device, past the end of the file too, with 2^32 - 1 in place of 0. The
 * daemon sets a word to 0 before the block is overwritten: a word that is loaded after the block's
 * data has arrived, and is not 0, belongs to that data.
 */

struct gpunvme_ioc_lease_end {
    struct gpunvme_abi abi;
    uint64_t id;
    uint64_t key;
};

/* Where a registered buffer is for the drive; needs the right to lease. */
struct gpunvme_ioc_buffer_iova {
    struct gpunvme_abi abi;
    uint64_t id;
    uint64_t key;
    uint64_t iova;      /* out: of the first page; the pages follow one another */
    uint64_t prps_iova; /* out: of a table of PRP entries for them, see below */
    uint64_t pages;     /* out: of 4096 bytes */
    uint64_t head;      /* out: bytes from the first page to the buffer's first byte */
};
/*
 * The table: 8-byte entry i is the address of page i; 512 entries to each 4096 bytes of the table,
 * which is contiguous and page-aligned. There are no chain pointers: a PRP list may start at any
 * entry, and all its entries must lie in one page of the table.
 */

/*
 * What a client asks for over the socket, in one message, and gets in one: a struct
 * gpunvme_reply with descriptors (SCM_RIGHTS). The socket closes on nonsense, and when a client
 * asks on while more than two answers wait to be read.
 */
struct gpunvme_request {
    uint64_t what; /* GPUNVME_ASK_* */
    uint64_t id;   /* of the lease */
    uint64_t key;
    uint64_t index; /* of the queue */
};
/*
 * A lease's page, one descriptor, read-only; for an extent lease the extents follow at 64, and the
 * checksums behind them.
 */
#define GPUNVME_ASK_PAGE 1u
/*
 * A queue, two descriptors: the memory of its rings, and the file its doorbells are in, which may
 * be memory of the daemon's that passes them on.
 */
#define GPUNVME_ASK_QUEUE 2u

/* 3 is used between libgpunvme and the daemon. */

/*
 * Rings begin at multiples of their entries' size, in a file that is at least as long as told and
 * may have rings of other queues of the lease.
 */
struct gpunvme_reply {
    uint64_t len;                      /* of the first descriptor's memory, bytes */
    uint64_t sq_offset, cq_offset;     /* in it */
    uint64_t doorbells_len;            /* of the second one's */
    uint64_t sq_doorbell, cq_doorbell; /* offsets of 32-bit words in it */
};
#define GPUNVME_LEASE_EXTENTS_AT 64u

/* On anything, by root. Makes the file system larger while it is mounted. */
struct gpunvme_ioc_resize {
    struct gpunvme_abi abi;
    uint64_t bytes;  /* in: 0, as large as the drive is now; out: the size of the file system */
    uint64_t device; /* out: bytes of the drive */
    uint64_t flags;  /* 0 */
};

/*
 * The counters of a program, a struct gpunvme_calls at the start of a memfd that the socket has
 * taken for this token, belong to the open file description from now on, once. The daemon reads
 * them when it is asked for counters, and believes them: they decide nothing. -EALREADY: the
 * description shares some; -EMFILE: too many do, of this user or in all; -ENOENT, -EACCES: token.
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
/* 0x6c is used between libgpunvme and the daemon. */
#define GPUNVME_IOC_SCRUB       _IOWR('G', 0x6d, struct gpunvme_ioc_scrub)
#define GPUNVME_IOC_OPEN_FILES  _IOWR('G', 0x6e, struct gpunvme_ioc_open_files)
#define GPUNVME_IOC_QUEUES      _IOWR('G', 0x6f, struct gpunvme_ioc_queues)
#define GPUNVME_IOC_RESIZE      _IOWR('G', 0x70, struct gpunvme_ioc_resize)
#define GPUNVME_IOC_SHARE_CALLS _IOWR('G', 0x71, struct gpunvme_ioc_share_calls)
#define GPUNVME_IOC_TRACE       _IOWR('G', 0x72, struct gpunvme_ioc_trace)

/* C99 has no assertions at compile time. */
#if defined(__cplusplus) || __STDC_VERSION__ >= 201112L
static_assert(sizeof(struct gpunvme_abi) == 8, "abi header");
static_assert(offsetof(struct gpunvme_ioc_info, tier_note) == 388, "info as it was at first");
static_assert(offsetof(struct gpunvme_ioc_info, direct) == 644, "info until leases came");
static_assert(offsetof(struct gpunvme_ioc_info, writeback_cache) == 660, "info with the cookie");
static_assert(sizeof(struct gpunvme_ioc_info) == 668, "info");
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
static_assert(sizeof(struct gpunvme_ioc_register) == 120, "register");
static_assert(sizeof(struct gpunvme_ioc_unregister) == 24, "unregister");
static_assert(sizeof(struct gpunvme_ioc_rw) == 80, "rw");
static_assert(sizeof(struct gpunvme_extent) == 32, "extent");
static_assert(sizeof(struct gpunvme_ioc_extents) == 24 + 32 * GPUNVME_EXTENTS_MAX, "extents");
static_assert(offsetof(struct gpunvme_ioc_stats, aborts) == 104, "stats as it was at first");
static_assert(offsetof(struct gpunvme_ioc_stats, gpu_staged_read_bytes) == 128,
              "stats until data was staged");
static_assert(offsetof(struct gpunvme_ioc_stats, dma_regions) == 144,
              "stats until regions were counted");
static_assert(offsetof(struct gpunvme_ioc_stats, fuse_requests) == 160,
              "stats until requests were counted");
static_assert(offsetof(struct gpunvme_ioc_stats, latency) == 168, "stats until latencies came");
static_assert(offsetof(struct gpunvme_ioc_stats, leased_commands) == 2032,
              "stats until leased queues were counted");
static_assert(sizeof(struct gpunvme_calls) == 2528, "calls");
static_assert(sizeof(struct gpunvme_ioc_stats) == 4568, "stats");
static_assert(offsetof(struct gpunvme_ioc_rw, bytes) == 56, "rw.bytes");
static_assert(sizeof(struct gpunvme_ioc_extents) < 16384, "FUSE's limit");
static_assert(sizeof(struct gpunvme_open_file) == 88, "open file");
static_assert(sizeof(struct gpunvme_ioc_open_files) < 16384, "FUSE's limit");
static_assert(sizeof(struct gpunvme_queue) == 24, "queue");
static_assert(sizeof(struct gpunvme_ioc_queues) < 16384, "FUSE's limit");
static_assert(sizeof(struct gpunvme_trace_record) == 40, "trace record");
static_assert(sizeof(struct gpunvme_ioc_trace) < 16384, "FUSE's limit");
static_assert(sizeof(struct gpunvme_ioc_resize) == 32, "resize");
static_assert(sizeof(struct gpunvme_ioc_share_calls) == 16, "share calls");
static_assert(sizeof(struct gpunvme_ioc_scrub) == 56 + 24 * GPUNVME_SCRUB_BLOCKS_MAX, "scrub");
#endif

#endif
