/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libgpunvme reads and writes any file from and to any memory. A file of a
 * gpunvmefs mount moves straight to and from GPU memory.
 *
 *     struct gpunvme *g;
 *     struct gpunvme_file *f;
 *     gpunvme_open(NULL, &g);
 *     gpunvme_file_open(g, open("/mnt/model.bin", O_RDONLY), 0, &f);
 *     ssize_t n = gpunvme_read(f, pointer, bytes, 0, NULL);
 *
 * A file of a gpunvmefs mount is read through that mount, and any other regular
 * file or block device through the bounce pipeline (struct gpunvme_options).
 * Memory is host memory or GPU memory. Pointers, offsets and lengths need no
 * alignment, even if the file is open with O_DIRECT: bytes that O_DIRECT cannot
 * move go through a second open file description without the flag, which the
 * library opens. It never changes the flags of a caller's description.
 *
 * Functions return 0 or a byte count on success, and -errno on failure, which
 * gpunvme_error() describes. Every function may be called from any thread. The
 * library prints nothing and needs no CUDA at build time: it uses the driver
 * that the process has loaded, or loads it to allocate GPU memory.
 *
 * CUDA does not survive fork(), and the mount cannot tell a child from its
 * parent. In a child of fork() the parent's handles return -EPERM, and closing
 * them does nothing; the child opens handles of its own. Descriptors are closed
 * on exec(). A child that continues without exec() keeps the parent's memory
 * registered until it exits.
 */
#ifndef GPUNVME_H
#define GPUNVME_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpunvme_ioctl.h" /* in this header's folder */

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct gpunvme;
struct gpunvme_file;

/*
 * Reads of direct files do not compare data with its checksums (mkfs.gpunvme -O
 * data_csum). The comparison costs time in reads and memory in the mount;
 * without it, wrong data from the drive goes unnoticed.
 */
#define GPUNVME_UNVERIFIED 1u

/* Stores the options of a handle. A field of 0 selects its default. */
struct gpunvme_options {
    /*
     * GPUNVME_PATH_GPU or GPUNVME_PATH_BOUNCE restricts transfers to this path;
     * 0 lets the library choose.
     */
    uint32_t path;
    /*
     * Threads of the bounce pipeline, including the caller's. The default is
     * one per processor, at most 8. Transfers of at most 128 KiB do not count if
     * `chunk` is larger: the calling threads make up to 32 of them at a time.
     */
    uint32_t threads;
    /*
     * Bytes that a thread reads at once, a multiple of 4096. The default is 2
     * MiB. Long writes and lists take 16 MiB at once, if that is more.
     */
    size_t chunk;
    /*
     * Reads and writes of GPU memory below this size in bytes take the bounce
     * pipeline. 1 disables it; 0 takes the sizes of gpunvme_open().
     */
    uint64_t crossover;
    /*
     * Queue pairs that direct files lease from each mount, at most
     * GPUNVME_LEASE_MAX. The default is 16, or the number that is left.
     */
    uint32_t lease_queues;
    uint32_t lease_depth; /* entries per leased queue, at least 2; default: 64 */
    uint32_t flags;       /* GPUNVME_UNVERIFIED */
};

/*
 * Opens a handle. `options` apply to all mounts; NULL selects the defaults.
 * Returns -EINVAL if a value is out of range.
 *
 * On the GPU path the mount moves the bytes. If its executor fails, the mount
 * moves them through its host memory; with GPUNVME_PATH_GPU the executor tries
 * again instead, and a failure that persists is returned. In the bounce
 * pipeline, threads of this process read the file into pinned memory while the
 * copy engine of the GPU empties it. A write uses one thread. The option
 * gpu=require of a mount does not apply to the pipeline. By default the library
 * uses the pipeline for memory that the mount cannot use, for ten seconds after
 * the mount has fallen back, and where it is faster.
 *
 * With path and crossover 0, these transfers of GPU memory count as faster by
 * the pipeline: reads through the page cache below 128 KiB, and lists of at
 * most 4 pieces that are together below 128 KiB; other reads, and writes, below
 * 16 KiB. Writes of partial 4 KiB blocks, and those past RLIMIT_FSIZE, for
 * which write(2) would raise SIGXFSZ, take the GPU path. If the pipeline cannot
 * complete such a transfer, the mount does.
 */
int gpunvme_open(const struct gpunvme_options *options, struct gpunvme **out);
/*
 * Waits for submitted transfers, then ends all files and registrations, and
 * releases the mounts, which are busy until then. No other call may be in
 * progress. If a kernel of a direct file does not end, the call returns after a
 * bounded time, and the library frees and unpins no memory, because CUDA would
 * wait for all kernels first. NULL does nothing.
 */
void gpunvme_close(struct gpunvme *g);

/* --- Files --------------------------------------------------------------- */

/*
 * The file leases its extents, and queue pairs of the drive that all direct
 * files of a mount and GPU share. Its reads then make no call into the daemon,
 * and kernels of the program read it by themselves (gpunvme_device.h). The GPU
 * is that of the calling thread's current CUDA context if the mount serves it,
 * otherwise the first GPU of the mount that the process sees. Only memory of
 * this GPU and of gpunvme_alloc_host() is read into.
 */
#define GPUNVME_FILE_DIRECT 1u

/*
 * Opens a file. The library duplicates fd, which the caller may then close; the
 * open file description stays in use until gpunvme_file_close(). Returns
 * -EINVAL if fd is neither a regular file nor a block device, or for an unknown
 * flag. If the library cannot connect to a mount, it uses the file like one of
 * any other file system.
 *
 * With GPUNVME_FILE_DIRECT the further errors are -ENOTTY (no mount serves the
 * file), -EPERM (the mount does not trust the user with the direct path, -o
 * direct=), -ENOTSUP (the drive or the GPU cannot provide it), -EBUSY (all
 * queues are leased), -EAGAIN (the drive was reset during the call), -EBADF (fd
 * is not open for reading), -EMFILE at the mount's limit of leases
 * (docs/ioctl.md), -EDQUOT or -EBUSY if this user, or all users together, have
 * leased too many extents, -ENOMEM, and -EPROTO and -ETIMEDOUT (the mount's
 * reply is invalid, or missing). A mount's queues use one of its max_buffers.
 *
 * Leases can be revoked, because the drive was reset or the mount ends. Reads
 * then return -ESTALE or -ETIMEDOUT until gpunvme_file_renew(). Waits for the
 * drive are bounded by the mount's deadline of a command, waits for the mount's
 * socket by 10 s per reply. A daemon that is stopped (SIGSTOP) blocks opening,
 * renewing and closing, as it blocks open(2).
 */
int gpunvme_file_open(struct gpunvme *g, int fd, uint32_t flags, struct gpunvme_file **out);
/*
 * Closes a file. No further call with f may begin. Transfers in flight continue,
 * and the last one closes the library's descriptors; kernels of the program may
 * not be using the file. As close(2) of any descriptor of a file does, this
 * drops the POSIX record locks of the process on the file, but not its OFD
 * locks. NULL does nothing.
 */
void gpunvme_file_close(struct gpunvme_file *f);
/*
 * Returns the library's duplicate of the descriptor, which stays open as long
 * as f.
 */
int gpunvme_file_fd(const struct gpunvme_file *f);
/*
 * Returns why no mount serves the file, or NULL if one does. The text is valid
 * as long as the file.
 */
const char *gpunvme_file_why(const struct gpunvme_file *f);
/*
 * Returns the argument for kernels of the program, or NULL if the file is not
 * direct. It is memory of the GPU, at the same address until the file is closed.
 * Refreshing and renewing change its content. Kernels read into memory that was
 * registered or allocated at this handle.
 */
struct gpunvme_device_file;
const struct gpunvme_device_file *gpunvme_file_device(const struct gpunvme_file *f);
/*
 * Returns the size of a direct file in bytes, as of the open or the last
 * refresh, and the current size of any other file, or -errno.
 */
int64_t gpunvme_file_size(const struct gpunvme_file *f);
/*
 * Brings the extents of a direct file up to date. No read of the file may be in
 * flight. Returns 1 if they had changed, and 0 if not or if the file is not
 * direct. Writes that only replace data do not change them.
 */
int gpunvme_file_refresh(struct gpunvme_file *f);
/*
 * Takes new queues, and new extents of all direct files that share the queues
 * of f, after -ESTALE or -ETIMEDOUT. No read of these files may be in flight,
 * and none may begin before the call has returned. A read begun by
 * gpunvme_pread_begin() is in flight until it is ended, since it holds a place
 * in a queue that the call deletes. On a GPU the call waits for all kernels of
 * the process. Errors are those of gpunvme_file_open(), and -EINVAL if the file
 * is not direct. After an error, reads of the files that have no new extents
 * still return -ESTALE, and the call may be repeated.
 */
int gpunvme_file_renew(struct gpunvme_file *f);
/*
 * Reports a block that has failed its checksum, to be called after reads of a
 * direct file with -EIO. Returns 1 if a block was read twice and did not match
 * since the last call, and stores the file offset of the last such block in
 * *offset. Returns 0 otherwise: an error of the drive also causes -EIO, without
 * such a block.
 */
int gpunvme_file_bad_block(struct gpunvme_file *f, uint64_t *offset);

/* --- Memory -------------------------------------------------------------- */

/*
 * Keeps [addr, +len) registered, at each mount from the first transfer there
 * on, and at once at mounts of direct files. Registering is optional for
 * transfers: the first one registers the CUDA allocation around its pointer
 * until that is freed, so interior pointers of caching allocators cost nothing.
 * It is necessary for kernels of the program, and for memory that direct files
 * read in stream order. A CUDA device pointer is shared with a mount whose
 * executor is CUDA on that GPU. VMM memory (cuMemCreate, expandable_segments) is
 * shared only by this call: segment by segment, at most 126 of them, created
 * with the handle type CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR. Transfers of
 * any other memory (host memory, managed memory, pools, a GPU that the mount
 * does not serve) take the bounce pipeline.
 *
 * The memory must stay allocated until gpunvme_unregister() has returned.
 * Transfers are not ordered with streams: earlier work of the GPU on the memory
 * must have ended. While the memory is registered, a cudaMemcpy() into it has
 * ended when it returns (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, which memory of pools
 * and of VMM lacks). Returns -EEXIST if the range overlaps another registration,
 * and -EINVAL if it exceeds its CUDA allocation.
 */
int gpunvme_register(struct gpunvme *g, void *addr, size_t len);
/*
 * Waits for transfers of the memory and ends its registration; frees memory that
 * the library allocated. `addr` is the registered address, otherwise -ENOENT is
 * returned. Kernels and stream-ordered reads of direct files are not tracked:
 * none into this memory may be in flight. The registration has ended even if
 * another error is returned, which is that of a mount that may no longer exist.
 */
int gpunvme_unregister(struct gpunvme *g, void *addr);
/*
 * Allocates and registers memory for the mount of f: GPU memory if its executor
 * is CUDA, host memory otherwise. The GPU is that of a direct file; for other
 * files it is chosen as for a direct file. gpunvme_unregister(g, *out) frees it.
 */
int gpunvme_alloc(struct gpunvme_file *f, size_t len, void **out);
/*
 * Allocates and registers zeroed host memory that the mount of f can reach, or
 * plain memory if no mount serves f. If the executor is CUDA, the process and
 * the mount both pin the memory, and kernels on the mount's GPUs use it at the
 * same address. Pinning allocates every page. Returns -ENODEV if the process
 * sees no GPU of the mount, and -ENOMEM if the memory exceeds the limit of
 * pinned memory of the machine or of the mount (docs/ioctl.md).
 */
int gpunvme_alloc_host(struct gpunvme_file *f, size_t len, void **out);
/*
 * These functions copy bytes between host memory and any memory, for programs
 * without CUDA.
 */
int gpunvme_copy_out(struct gpunvme *g, const void *addr, void *dst, size_t len);
int gpunvme_copy_in(struct gpunvme *g, void *addr, const void *src, size_t len);
/*
 * Allocates zeroed memory for n pieces, at most GPUNVME_PIECES_MAX, which the
 * mount of f shares. gpunvme_readv() uses such a list in place and copies any
 * other list, which costs measurable time if the pieces are as short as a
 * sector. The memory is freed with the handle at the latest. For lists of direct
 * files it is mapped to the GPU by this call, or when the first file of the
 * mount becomes direct. CUDA forbids that mapping while a stream is being
 * captured. Returns -ENOTTY if no mount serves f.
 */
int gpunvme_pieces_alloc(struct gpunvme_file *f, size_t n, struct gpunvme_piece **out);
/* Frees such memory, which no transfer may be using. NULL does nothing. */
void gpunvme_pieces_free(struct gpunvme_file *f, struct gpunvme_piece *pieces);

/* --- Transfers ----------------------------------------------------------- */

struct gpunvme_result {
    /* GPUNVME_PATH_*, or GPUNVME_CALLS_DIRECT: through leases of a direct file */
    uint32_t path;
    uint32_t nvme_status; /* 0: no error */
    uint64_t commands;
    /*
     * Text that explains why the library or the mount took the bounce path;
     * empty if neither did. Valid until the next call of this thread.
     */
    const char *why;
    /*
     * Not 0 if bytes of the GPU path were staged in host memory, as on tiers 0
     * and 1 (struct gpunvme_ioc_info) with memory that the drive cannot reach.
     */
    uint32_t staged;
};

/*
 * Move `len` bytes between memory and the file. Offsets and length may have any
 * alignment; multiples of 4 KiB are fastest. `result` may be NULL.
 *
 * Return the number of bytes moved. A short count means the end of the file or
 * an error in the middle, which gpunvme_error() describes and the next call
 * returns. A transfer past the end of a registration or a CUDA allocation is a
 * mistake of the caller and takes the bounce pipeline. If the process may not
 * access the memory, the call returns -EFAULT where the kernel copies, and
 * raises SIGSEGV where the library copies.
 *
 * A read of a direct file takes its leases, and sees the file as it was when
 * they were taken. It returns -EFAULT if the mount does not reach the memory: it
 * reaches CUDA memory of its GPU and memory of gpunvme_alloc_host().
 *
 * A signal with a handler interrupts neither these calls nor gpunvme_readv().
 * SIGKILL, and SIGINT, SIGQUIT, SIGTERM and SIGHUP without a handler, end the
 * process at once. Other signals act at the end of the call at the latest,
 * which the mount's deadline bounds.
 */
ssize_t gpunvme_read(struct gpunvme_file *f, void *addr, size_t len, uint64_t file_offset,
                     struct gpunvme_result *result);
ssize_t gpunvme_write(struct gpunvme_file *f, const void *addr, size_t len, uint64_t file_offset,
                      struct gpunvme_result *result);

/*
 * Reads many pieces of one file, in any order, each with its own result (struct
 * gpunvme_piece). buffer_offset is relative to addr; pieces outside [addr, +len)
 * get -ERANGE. The call modifies buffer_offset while it lasts. Returns 0 if
 * every piece has a result, which may be an error. Otherwise it returns -errno,
 * and the pieces that were not read have -ECANCELED. The call is meant for small
 * reads: one request to the mount moves up to GPUNVME_PIECES_MAX pieces, and a
 * longer list is sent in parts. The mount reads lists of direct files, too.
 * `commands` and `path` of the result are those of all pieces together.
 */
int gpunvme_readv(struct gpunvme_file *f, void *addr, size_t len, struct gpunvme_piece *pieces,
                  size_t n, struct gpunvme_result *result);

/*
 * Describes a transfer that a thread of the handle executes. Until the transfer
 * has ended, the library owns this structure and uses the memory at addr.
 */
struct gpunvme_transfer {
    void *reserved[2]; /* used by the library */
    struct gpunvme_file *file;
    int write;
    void *addr;
    size_t len;
    uint64_t file_offset;
    /*
     * If not NULL, the transfer reads n_pieces as gpunvme_readv() does:
     * file_offset is ignored, and `bytes` becomes 0 or -errno.
     */
    struct gpunvme_piece *pieces;
    size_t n_pieces;
    ssize_t bytes;                /* out: bytes moved, or -errno */
    struct gpunvme_result result; /* out: `why` is valid while done() runs */
    /*
     * Called when the transfer has ended, and may free it. gpunvme_error()
     * describes a failure meanwhile. NULL: gpunvme_wait() waits for the end.
     */
    void (*done)(struct gpunvme_transfer *t);
};
/*
 * Starts n transfers in order and returns how many were started, or -errno if
 * none was and n is not 0; the rest was not touched. -EINVAL means a write of
 * pieces. Up to 16 run at a time, in the order of the calls. Successive reads
 * without pieces of one file, into memory of one registration at its mount, are
 * combined into one READV: they end together, and the result of the first has
 * the commands of all.
 */
ssize_t gpunvme_submit(struct gpunvme_transfer *const *transfers, size_t n);
/*
 * Waits until a submitted transfer without done() has ended, and returns its
 * `bytes`. `why` of its result is empty then.
 */
ssize_t gpunvme_wait(struct gpunvme_transfer *t);

/*
 * Describes a transfer in stream order. The library reads the values behind the
 * pointers when the stream reaches the transfer. The pointers must stay valid
 * until then.
 */
struct gpunvme_stream_transfer {
    int write;
    void *addr;
    const size_t *len;
    const int64_t *file_offset;
    const int64_t *addr_offset; /* bytes, added to addr */
    int64_t *bytes;             /* bytes moved or -errno, set before the stream continues */
    /*
     * NULL, or a function that a thread of the handle calls after *bytes is set,
     * while the stream still waits.
     */
    void (*done)(void *arg, const struct gpunvme_stream_transfer *t,
                 const struct gpunvme_result *result);
    void *arg;
    /*
     * A direct file only: if not NULL, the transfer reads n_pieces, below 2^31,
     * and file_offset and bytes are ignored. Buffer offsets are relative to the
     * address, and all pieces lie between it and the end of its registration.
     */
    struct gpunvme_piece *pieces;
    size_t n_pieces;
};

/*
 * Executes a transfer in stream order. `stream` is a CUstream or cudaStream_t; NULL is the default
 * stream. Returns 0 if the result will be in *bytes, which is host memory. The stream waits
 * (cuStreamWaitValue32) while a thread of this process executes the transfer. If the GPU cannot
 * wait for memory, the call waits. Returns -ENOTSUP if the stream is being captured. If CUDA is
 * missing or unused, stream must be NULL (-ENODEV otherwise), and the transfer has ended when the
 * call returns.
 *
 * A read of a direct file is launched as kernels instead, and done must be NULL.
 * The library reads the values during the call. `bytes` and `pieces` are memory
 * that the GPU reaches (device memory, pinned host memory, or for pieces memory
 * of gpunvme_pieces_alloc()), which the caller keeps until the stream has passed
 * the read. The results of pieces are valid at the end: bytes, -EINVAL for a
 * length of 2^31 or more, or an error listed in gpunvme_device.h. The memory
 * lies in one registration of gpunvme_register() or an allocation of the handle,
 * or -EFAULT is returned. Further errors are -ESTALE, -EINVAL, -ENOTSUP (the library has no
 * kernels), and errors of CUDA. After an error, *bytes is undefined, and nothing
 * is written to the memory. A read may need several launches. If CUDA refuses a
 * later one, the call waits for the work in the stream, for at least three
 * deadlines of a command. -ETIMEDOUT means that this wait was too short: the
 * caller must synchronise the stream before it uses or frees the memory, `bytes`
 * or `pieces`. On a mount without a GPU the read has ended when the call returns.
 *
 * A graph that captured the call uses the leases at the time of the capture. It
 * must not run after gpunvme_file_refresh() or gpunvme_file_renew(), nor if the
 * captured call failed.
 */
int gpunvme_submit_stream(struct gpunvme_file *f, const struct gpunvme_stream_transfer *t,
                          void *stream);

/* --- Tables -------------------------------------------------------------- */

/*
 * A table has rows of one length, numbered from 0: the rows of its segments one
 * after another. Segments are in one or several files. Rows may begin at any
 * byte.
 */
struct gpunvme_segment {
    struct gpunvme_file *file;
    uint64_t offset; /* byte at which the first row begins */
    uint64_t rows;   /* at least 1 */
};

#define GPUNVME_SEGMENTS_MAX   4096u
#define GPUNVME_TABLE_ROWS_MAX (1u << 24) /* in one gather */
#define GPUNVME_ROW_MAX        (1u << 30) /* bytes */

struct gpunvme_table;
struct gpunvme_cache;
/* Stores the options of a table. A field of 0 selects its default. */
struct gpunvme_table_options {
    uint64_t row_stride; /* bytes from a row to the next one; default: row_bytes */
    /*
     * Reads are whole units of this many bytes, a power of two of at most
     * 65536. The default is the smallest possible value: one LBA, or 4096 if
     * data is compared with checksums and for files that no mount serves. A
     * larger unit makes fewer and longer reads if the rows of a gather are near
     * each other.
     */
    uint32_t unit;
    /*
     * Size of staging in bytes. Ranges are read into it before rows are copied
     * out of it. A gather of more ranges is made in several turns. The default
     * is room for max_rows, but at most 256 MiB; the minimum is room for one
     * range.
     */
    size_t staging;
};

/*
 * Opens a table of n segments, for gathers of up to max_rows rows of row_bytes
 * each. The files belong to one handle. The table keeps them open, copies
 * `segments`, and allocates all memory of its gathers: up to 92 bytes for each
 * of max_rows, and the staging.
 *
 * If all files are direct files of one mount, gathers read through their
 * leases. Otherwise they read by gpunvme_readv() and are synchronous;
 * gpunvme_table_why() says why. Returns 0, -EINVAL if a limit is exceeded or a
 * segment ends behind the end of its file, -ENOMEM, or an error of
 * gpunvme_alloc().
 */
int gpunvme_table_open(const struct gpunvme_segment *segments, size_t n, uint32_t row_bytes,
                       size_t max_rows, const struct gpunvme_table_options *options,
                       struct gpunvme_table **out);
/*
 * Frees a table. Called before its handle is closed and when no gather is in
 * flight. NULL does nothing.
 */
void gpunvme_table_close(struct gpunvme_table *t);
/*
 * Returns the reason why gathers do not take the direct path, or NULL if they
 * do. The text is valid as long as the table.
 */
const char *gpunvme_table_why(const struct gpunvme_table *t);
/* Returns the number of rows of the table. */
uint64_t gpunvme_table_rows(const struct gpunvme_table *t);
/* Returns the length of a unit in bytes (struct gpunvme_table_options). */
uint32_t gpunvme_table_unit(const struct gpunvme_table *t);
/*
 * Lets gathers read through a cache of one of the files of the table (Caches).
 * Rows whose lines are all valid are copied out of them, and the others are read
 * as without a cache. The lines that the ranges of a gather contain are kept as
 * gpunvme_cache_set_insertion() says; a range counts as touched once. Files
 * without a cache are read as before, and several tables and kernels may share a
 * cache. A line has at most the bytes of a unit.
 *
 * Called before the first gather. The cache is closed after the table. A graph
 * that captured a gather uses the caches of that time. Returns 0, -EINVAL if the
 * lines are too long or the table does not have the file, -ENOTSUP without the
 * direct path, or an error of CUDA.
 */
int gpunvme_table_use_cache(struct gpunvme_table *t, const struct gpunvme_cache *c);

struct gpunvme_table_status {
    uint64_t failed;  /* rows that were not read, which are zeros in `out` */
    int64_t first_id; /* the id of the first failed row in `ids` */
    /*
     * Its error, or 0 if no row has failed: -ERANGE (no such row), -ENODATA (the
     * file ends before the row does), or an error of a read.
     */
    int32_t error;
    uint32_t reads; /* ranges of units that were read; a short range is one command */
};

#define GPUNVME_GATHER_PAD   1u /* the id -1 gives a row of zeros, not an error */
#define GPUNVME_GATHER_ZEROS 2u /* any id out of range gives a row of zeros */

struct gpunvme_gather {
    const void *ids;
    uint32_t id_bytes; /* 4 for int32_t, 8 for int64_t */
    uint32_t flags;    /* mask of GPUNVME_GATHER_* */
    size_t n;          /* number of ids, at most max_rows of the table */
    void *out;
    size_t out_stride; /* bytes from a row of `out` to the next one; 0: row_bytes */
    struct gpunvme_table_status *status;
};
/*
 * Copies the rows with these ids to `out`, in the order of the ids. The copy is
 * in stream order (like gpunvme_submit_stream()). A range of units is read
 * once, however many rows lie in it.
 *
 * Returns 0 if *status will have the result, which includes rows that fail; all
 * other rows are right. Returns -EINVAL, -ESTALE (gpunvme_file_renew()) or an
 * error of CUDA. After an error `out` and *status are undefined, and the caller
 * synchronises the stream before it uses or frees them. If a row fails with
 * -ETIMEDOUT where the drive reaches GPU memory, rows that are read later fail
 * with -ESTALE until gpunvme_file_renew(), because a lost command may still
 * write to memory of the table.
 *
 * On the direct path of a GPU the call launches kernels and returns. ids, out
 * and status are memory that this GPU reaches, registered or not; they are used
 * when the stream reaches the gather. Gathers of one table use its memory one
 * after another: the caller orders gathers in different streams, or opens a
 * table for each stream. A stream that is being captured takes the current
 * leases into its graph, like gpunvme_submit_stream().
 *
 * On other paths the gather has ended when the call returns, and threads take
 * turns. If ids, out or status is GPU memory or stream is not NULL, the call
 * first waits for the stream, and returns -ENOTSUP while the stream is being
 * captured.
 */
int gpunvme_table_gather(struct gpunvme_table *t, const struct gpunvme_gather *a, void *stream);

/* Sums over all finished gathers of a table. */
struct gpunvme_table_stats {
    uint64_t gathers, rows, reads, failed;
    uint64_t commands; /* as the mount reports them for gpunvme_readv() */
    uint64_t hits;     /* rows that were copied out of lines of a cache */
};
/*
 * Stores the sums in *out. `size` is sizeof(*out) as the program was compiled,
 * like in gpunvme_calls().
 */
int gpunvme_table_stats(struct gpunvme_table *t, struct gpunvme_table_stats *out, size_t size);

/* --- Caches -------------------------------------------------------------- */

/*
 * A cache keeps lines of one direct file in memory, for kernels that read parts
 * of the file repeatedly (gpunvme_array.cuh). It serves reads of this process
 * only, and writes nothing.
 *
 * A line is valid until the leases of the file are refreshed or renewed, or the
 * cache is dropped. Data that others rewrite in place is not noticed. Reads
 * return -ESTALE at most 2 ms after the leases have been revoked.
 */
struct gpunvme_cache;
/*
 * Opens a cache of about `bytes` bytes (struct gpunvme_cache_stats has the
 * size), in lines of line_bytes: a power of two from 512 to 65536 that is at
 * least an LBA, or 4096 if data is compared with checksums; 0 means 4096. The
 * memory is that of gpunvme_alloc(), with up to 16 MiB more for reads that
 * bypass the lines, and 13 bytes for each line. The cache keeps the file open.
 * Returns 0, -EINVAL (also for a file that is not direct), -ENOMEM, or an error
 * of gpunvme_alloc().
 */
int gpunvme_cache_open(struct gpunvme_file *f, size_t bytes, uint32_t line_bytes,
                       struct gpunvme_cache **out);
/*
 * Frees a cache. Called before its handle is closed and when no kernel uses the
 * cache. NULL does nothing.
 */
void gpunvme_cache_close(struct gpunvme_cache *c);
/*
 * Returns the argument for kernels. It is memory of the GPU, at the same
 * address until the cache is closed.
 */
struct gpunvme_device_cache;
const struct gpunvme_device_cache *gpunvme_cache_device(const struct gpunvme_cache *c);
/*
 * Sets which lines are kept when they are missed. Without this call all are.
 * With SECOND_TOUCH a line is read without being kept, unless it was missed
 * before: among the lines that shared its set, about as many as the set has
 * ways are remembered. Lines that are read once then displace nothing, and lines
 * that are read again cost two reads. gpunvme_cache_prefetch_warp() keeps all.
 * Called when no kernel uses the cache. Returns 0, -EINVAL, or an error of CUDA.
 */
#define GPUNVME_CACHE_ALL          0u
#define GPUNVME_CACHE_SECOND_TOUCH 1u
int gpunvme_cache_set_insertion(struct gpunvme_cache *c, uint32_t insertion);
/*
 * Makes all lines invalid, so that reads see data that was rewritten in place.
 * No read through the cache may be in flight. Returns 0, an error of CUDA, or
 * -EBUSY after -ETIMEDOUT of a read: a command that was lost may still write to
 * a line, and gpunvme_file_renew() makes all lines invalid.
 */
int gpunvme_cache_drop(struct gpunvme_cache *c);

/* Sizes of a cache, and sums over all its reads. */
struct gpunvme_cache_stats {
    uint64_t bytes, line_bytes;
    uint64_t hits;     /* parts of lines that were copied from a line that was there */
    uint64_t misses;   /* lines that were read */
    uint64_t bypasses; /* parts that were read without a line */
};
/* Stores the sums in *out. `size` is as in gpunvme_table_stats(). */
int gpunvme_cache_stats(struct gpunvme_cache *c, struct gpunvme_cache_stats *out, size_t size);

/* --- Reports ------------------------------------------------------------- */

/*
 * Report on the mount of fd, any file or directory of it: the executor, its
 * tier, its limits and the rights of the caller; and the counters of the mount.
 * Return -ENOTTY if fd is not on a gpunvmefs mount.
 */
int gpunvme_info(int fd, struct gpunvme_ioc_info *out);
int gpunvme_stats(int fd, struct gpunvme_ioc_stats *out);
/*
 * Report the bytes that each open file of the mount has moved, and the queue
 * pairs of the mount, as far as the caller may see them. To iterate, pass below
 * = 0, then the out->below of the previous reply, until it is 0.
 */
int gpunvme_open_files(int fd, uint64_t below, struct gpunvme_ioc_open_files *out);
int gpunvme_queues(int fd, struct gpunvme_ioc_queues *out);
/* Reports the GPUs that the mount serves, with their executors and counters. */
int gpunvme_gpus(int fd, struct gpunvme_ioc_gpus *out);
/*
 * Reads records of the mount's trace from number `next` on. out->next is the
 * number to pass to the next call. Returns -ENODATA if the mount was made
 * without -o trace, and -EPERM if the caller is not root.
 */
int gpunvme_trace(int fd, uint64_t next, struct gpunvme_ioc_trace *out);
/*
 * Stores up to max extents from `offset` on and returns how many.
 * GPUNVME_EXTENT_LAST in the final entry means that the file has no more.
 */
ssize_t gpunvme_extents(int fd, uint64_t offset, struct gpunvme_extent *out, size_t max);

/*
 * Stores the counters of this process, summed over all its handles since it
 * started. `size` is sizeof(*out) as the program was compiled, since later
 * versions add members at the end. Reads by kernels of the application
 * (gpunvme_device.h) are not counted. A handle that has registered memory shares the
 * counters of its own calls with the mount: `calls` of gpunvme_stats() is the
 * sum over all programs.
 */
void gpunvme_calls(struct gpunvme_calls *out, size_t size);

/* Describes the last failed call of this thread; never NULL. */
const char *gpunvme_error(void);

#define GPUNVME_LOG_ERROR  1 /* a call or an optional step failed */
#define GPUNVME_LOG_BOUNCE 2 /* a transfer leaves the GPU path; message: `why` */
/*
 * Sets the function that receives messages about failures and fallbacks, for
 * the whole process. It is called on the thread that meets them and must not
 * call the library; `message` is valid during the call only. No other call of
 * the library may be in progress. NULL, the default, disables messages.
 */
typedef void (*gpunvme_log_fn)(void *context, int kind, const char *message);
void gpunvme_set_log(gpunvme_log_fn log, void *context);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
