/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libgpunvme reads and writes files of a gpunvmefs mount straight from and to
 * GPU memory.
 *
 *     struct gpunvme *g;
 *     struct gpunvme_buffer *b;
 *     gpunvme_connect("/mnt/weights", &g);
 *     gpunvme_register(g, device_pointer, bytes, &b);
 *     int fd = open("/mnt/weights/model.bin", O_RDONLY);
 *     ssize_t n = gpunvme_read(b, fd, 0, 0, bytes, NULL);
 *
 * Functions return 0 or a byte count on success, and -errno on failure. Every
 * function may be called from any thread. The library prints nothing and needs
 * no CUDA at build time: it loads the driver when a buffer in GPU memory is
 * registered.
 *
 * A child of fork() must not use its parent's handles, and must not disconnect
 * them: CUDA does not survive fork(), and the mount cannot tell the two
 * processes apart. Descriptors are closed on exec(). A child that continues
 * without exec() keeps the parent's buffers registered until it exits.
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
struct gpunvme_buffer;

/*
 * Connects to the mount that contains `path`, any file or directory of it.
 * Returns -ENOTTY if `path` is not on a gpunvmefs mount, and -EPROTO if the
 * daemon has another version of the ABI.
 */
int gpunvme_connect(const char *path, struct gpunvme **out);
/*
 * Makes a handle without a mount, for files of any file system. Every transfer
 * takes the bounce pipeline. Calls that need a mount (gpunvme_info(),
 * gpunvme_stats(), gpunvme_direct_open()) return -EBADF, and gpunvme_alloc()
 * returns -ENOTSUP.
 */
int gpunvme_local(struct gpunvme **out);
/*
 * Ends the connection, and with it all its buffers, lists and handles of the
 * direct path. NULL does nothing.
 */
void gpunvme_disconnect(struct gpunvme *g);
/*
 * Reports the executor of the mount, its tier, its limits and the rights of the
 * caller.
 */
int gpunvme_info(struct gpunvme *g, struct gpunvme_ioc_info *out);
/* Reports the counters of the mount. */
int gpunvme_stats(struct gpunvme *g, struct gpunvme_ioc_stats *out);
/*
 * Report the bytes that each open file of the mount has moved, and the queue
 * pairs of the mount, as far as the caller may see them. To iterate, pass below
 * = 0, then the out->below of the previous reply, until it is 0. Return -ENOTTY
 * if the daemon is older than the request.
 */
int gpunvme_open_files(struct gpunvme *g, uint64_t below, struct gpunvme_ioc_open_files *out);
int gpunvme_queues(struct gpunvme *g, struct gpunvme_ioc_queues *out);
/*
 * Reads records of the mount's trace from number `next` on. out->next is the
 * number to pass to the next call. Returns -ENODATA if the mount was made
 * without -o trace, and -EPERM if the caller is not root.
 */
int gpunvme_trace(struct gpunvme *g, uint64_t next, struct gpunvme_ioc_trace *out);

/* Selects the path of transfers. Zero in a field means its default. */
struct gpunvme_options {
    /*
     * GPUNVME_PATH_GPU or GPUNVME_PATH_BOUNCE restricts transfers to this path;
     * 0 lets the library choose.
     */
    uint32_t path;
    /*
     * Threads of the bounce pipeline, including the caller's. The default is
     * one per processor, at most 8.
     */
    uint32_t threads;
    /*
     * Bytes that a thread reads at once, a multiple of 4096. The default is 2
     * MiB.
     */
    size_t chunk;
    /*
     * Reads and writes of GPU memory below this size in bytes take the bounce
     * pipeline. 1 disables it; 0 takes the sizes of gpunvme_set_options().
     */
    uint64_t crossover;
};

/*
 * Sets the options of all buffers of g. No transfer may be in flight. Returns
 * -EINVAL if a value is out of range.
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
int gpunvme_set_options(struct gpunvme *g, const struct gpunvme_options *options);

/*
 * Registers memory as a buffer. A CUDA device pointer from cudaMalloc(), or one
 * into the middle of such an allocation, is shared with the mount if the
 * mount's executor is CUDA on that GPU. Any other memory (host memory, VMM,
 * another GPU) becomes a buffer whose transfers take the bounce pipeline. With
 * GPUNVME_PATH_GPU such memory is refused with -ENOTSUP, -EXDEV or -ENODEV, and
 * gpunvme_error() gives the reason.
 *
 * The memory must stay allocated until gpunvme_unregister() has returned.
 * Transfers are not ordered with streams: earlier work of the GPU on the memory
 * must have ended. While the memory is registered, a cudaMemcpy() into it has
 * ended when it returns (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, which memory of
 * pools lacks).
 */
int gpunvme_register(struct gpunvme *g, void *addr, size_t len, struct gpunvme_buffer **out);
/*
 * Allocates and registers memory: GPU memory if the executor is CUDA, shared
 * host memory otherwise. A cudaMemcpy() into it has ended when it returns, as
 * with gpunvme_register().
 */
int gpunvme_alloc(struct gpunvme *g, size_t len, struct gpunvme_buffer **out);
/*
 * Allocates and registers zeroed host memory. If the executor is CUDA, the
 * process and the mount both pin the memory, and kernels on the mount's GPU use
 * it at the same address. Pinning allocates every page. Otherwise the call is
 * the same as gpunvme_alloc(). Returns -ENODEV if the process does not see the
 * mount's GPU, and -ENOMEM if the memory exceeds the limit of pinned memory of
 * the machine or of the mount (docs/ioctl.md).
 */
int gpunvme_alloc_host(struct gpunvme *g, size_t len, struct gpunvme_buffer **out);
/*
 * Ends a buffer. Returns when neither the drive nor a kernel can access the
 * memory, and frees memory that the library allocated. Transfers of other
 * threads through the buffer end and return the bytes moved so far, or -EINTR.
 * Reads of the direct path are not tracked here: none into this memory may be
 * in flight.
 *
 * The buffer has ended even if an error is returned. Errors are those of the
 * mount, which may no longer exist.
 */
int gpunvme_unregister(struct gpunvme_buffer *b);
void *gpunvme_buffer_addr(const struct gpunvme_buffer *b); /* device or host address */
size_t gpunvme_buffer_len(const struct gpunvme_buffer *b);

/*
 * Copy bytes between host memory and a buffer in any memory, for callers
 * without CUDA. Return -ERANGE past the end of the buffer.
 */
int gpunvme_copy_out(struct gpunvme_buffer *b, size_t offset, void *dst, size_t len);
int gpunvme_copy_in(struct gpunvme_buffer *b, size_t offset, const void *src, size_t len);

struct gpunvme_result {
    uint32_t path;        /* GPUNVME_PATH_* */
    uint32_t nvme_status; /* 0: no error */
    uint64_t commands;
    /*
     * Text that explains why the library or the mount took the bounce path;
     * empty if neither did. Valid as long as the buffer.
     */
    const char *why;
    /*
     * Not 0 if bytes of the GPU path were staged in host memory, as on tiers 0
     * and 1 (struct gpunvme_ioc_info) with memory that the drive cannot reach.
     */
    uint32_t staged;
};

/*
 * Move `len` bytes between the buffer and fd, an open file of the buffer's
 * mount. Offsets and length may have any alignment; multiples of 4 KiB are
 * fastest. `result` may be NULL.
 *
 * Return the number of bytes moved. A short count means the end of the file or
 * an error in the middle, which gpunvme_error() describes and the next call
 * returns. Return -ENOTTY if fd is not a file of the mount.
 *
 * A signal with a handler interrupts neither these calls nor gpunvme_readv().
 * SIGKILL, and SIGINT, SIGQUIT, SIGTERM and SIGHUP without a handler, end the
 * process at once. Other signals act at the end of the call at the latest,
 * which the mount's deadline bounds.
 */
ssize_t gpunvme_read(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                     size_t len, struct gpunvme_result *result);
ssize_t gpunvme_write(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                      size_t len, struct gpunvme_result *result);

/*
 * Reads many pieces of one file, in any order, each with its own result (struct
 * gpunvme_piece). Returns 0 if every piece has a result, which may be an error.
 * Otherwise it returns -errno, and the pieces that were not read have
 * -ECANCELED. The call is meant for small reads: one request to the mount moves
 * up to GPUNVME_PIECES_MAX pieces, and a longer list is sent in parts. Short
 * lists may be read piece by piece through the bounce pipeline
 * (gpunvme_set_options()). `commands` and `path` of the result are those of all
 * pieces together.
 */
int gpunvme_readv(struct gpunvme_buffer *b, int fd, struct gpunvme_piece *pieces, size_t n,
                  struct gpunvme_result *result);
/*
 * Allocates zeroed memory for n pieces, at most GPUNVME_PIECES_MAX.
 * gpunvme_readv() uses such a list in place and copies any other list, which
 * costs measurable time if the pieces are as short as a sector. The memory is
 * freed with g at the latest. For gpunvme_readv_async() it is mapped to the GPU
 * by this call, or by a later gpunvme_direct_open(). CUDA forbids that mapping
 * while a stream is being captured.
 */
int gpunvme_pieces_alloc(struct gpunvme *g, size_t n, struct gpunvme_piece **out);
/*
 * Frees such memory. No gpunvme_readv() or gpunvme_readv_async() may be using
 * it. NULL does nothing.
 */
void gpunvme_pieces_free(struct gpunvme *g, struct gpunvme_piece *pieces);

/*
 * The direct path: a program leases queue pairs of the drive and extents of
 * files from the mount, once. Kernels of the program then read in its own
 * context and streams, without a call into the daemon.
 *
 * Calls return -EPERM if the mount does not trust the user with the direct path
 * (-o direct=), and -ENOTSUP if the drive or the GPU cannot provide it;
 * gpunvme_error() gives the reason.
 *
 * Leases can be revoked, because the drive was reset or the mount ends. Reads
 * then return -ESTALE or -ETIMEDOUT, and so do later calls, until
 * gpunvme_direct_renew() has taken new leases. If the daemon has died, reads
 * return -ETIMEDOUT, and renewing fails.
 *
 * Several handles may be open at once; each has its own queues. Threads may
 * share a handle. A caller that closes or renews an object must make sure that
 * no read of it is in flight. Waits for the drive are bounded by the mount's
 * deadline of a command, waits for the mount's socket by 10 s per reply. A
 * daemon that is stopped (SIGSTOP) blocks opening, renewing and closing, as it
 * blocks open(2).
 */
struct gpunvme_direct;
struct gpunvme_file;

/* Zero in a field means its default. */
struct gpunvme_direct_options {
    /*
     * Queue pairs to lease, at most GPUNVME_LEASE_MAX. The default is 16, or
     * the number that is left.
     */
    uint32_t queues;
    uint32_t depth; /* entries per queue, at least 2; default: 64 */
    uint32_t flags; /* GPUNVME_DIRECT_* */
};
/*
 * Reads do not compare data with its checksums (mkfs.gpunvme -O data_csum). The
 * comparison costs time in reads and memory in the mount; without it, wrong
 * data from the drive goes unnoticed.
 */
#define GPUNVME_DIRECT_UNVERIFIED 1u

/*
 * Leases queues. The handle reaches all buffers of g, including those
 * registered later, and uses one of the mount's max_buffers itself. `options`
 * may be NULL. Further errors are -EBUSY (all queues are leased), -EAGAIN (the
 * drive was reset during the call), -EINVAL (options), -ENOMEM, and -EPROTO and
 * -ETIMEDOUT (the mount's reply is invalid, or missing).
 */
int gpunvme_direct_open(struct gpunvme *g, const struct gpunvme_direct_options *options,
                        struct gpunvme_direct **out);
/*
 * Ends the leases of the handle, and its files. No read may be in flight. NULL
 * does nothing.
 */
void gpunvme_direct_close(struct gpunvme_direct *d);
/*
 * Takes new queues, and new extents of all files, after -ESTALE or -ETIMEDOUT.
 * No read may be in flight, and none may begin before the call has returned. A
 * read begun by gpunvme_pread_begin() is in flight until it is ended, since it
 * holds a place in a queue that the call deletes. On a GPU the call waits for
 * all kernels of the process. Errors are those of gpunvme_direct_open() and
 * gpunvme_file_open(). After an error, reads of the files that have no new
 * extents still return -ESTALE, and the call may be repeated.
 */
int gpunvme_direct_renew(struct gpunvme_direct *d);

/*
 * Leases the extents of a file. fd is open for reading; it may be closed
 * afterwards. Returns -EBADF, -EISDIR or -ENOTTY if fd is not a readable file
 * of the mount; -EMFILE at the mount's limit of leases (docs/ioctl.md) or the
 * process's limit of descriptors; and -EDQUOT or -EBUSY if this user, or all
 * users together, have leased too many extents. Closing the file drops the
 * POSIX locks of the process on it, as close(2) does.
 */
int gpunvme_file_open(struct gpunvme_direct *d, int fd, struct gpunvme_file **out);
/*
 * Ends the lease of a file. No read of it may be in flight, since its blocks
 * may be reused at once. NULL does nothing.
 */
void gpunvme_file_close(struct gpunvme_file *f);
/*
 * Updates extents and size of a leased file. Reads use the state of the file
 * when it was opened here or last refreshed; blocks that the file has lost
 * since then keep their old content. Returns 0 if nothing has changed, 1 if
 * extents or size were updated, or -errno, after which the file keeps its
 * previous extents. No read of the file may be in flight.
 */
int gpunvme_file_refresh(struct gpunvme_file *f);
/* Returns the size of the file in bytes, as of the open or the last refresh. */
uint64_t gpunvme_file_size(const struct gpunvme_file *f);
/*
 * Reports a block that has failed its checksum, to be called after reads with
 * -EIO. Returns 1 if a block was read twice and did not match since the last
 * call, and stores the file offset of the last such block in *offset. Returns 0
 * otherwise: an error of the drive also causes -EIO, without such a block.
 */
int gpunvme_file_bad_block(struct gpunvme_file *f, uint64_t *offset);

/*
 * Reads n bytes at offset to ptr, inside a registered buffer, in the order of
 * `stream` (a CUstream or cudaStream_t; NULL is the default stream), like a
 * kernel of that stream. When the read ends, *bytes becomes the value that
 * pread(2) would return, or -errno. Before that, *bytes may become 0; in a
 * captured graph it may become an error while other parts of the read still
 * write to ptr. `bytes` is memory that the GPU reaches (device memory or pinned
 * host memory), and the caller keeps it until the read has ended. On a mount
 * without a GPU, ptr is host memory from gpunvme_alloc(), stream is NULL, and
 * the read has ended when the call returns.
 *
 * Returns 0 if the read was launched. Otherwise *bytes is undefined, and
 * nothing is written to ptr after the call. Errors are -EFAULT (not inside one
 * buffer), -ESTALE, -EINVAL, -ENOTSUP (the library has no kernels), and errors
 * of CUDA. A read may need several launches. If CUDA refuses a later one, the
 * call waits for the work in the stream, for at least three deadlines of a
 * command. -ETIMEDOUT means that this wait was too short: the caller must
 * synchronise the stream before it uses or frees ptr, bytes or the pieces of a
 * list.
 *
 * A graph that captured the call uses the leases at the time of the capture. It
 * must not run after gpunvme_file_refresh() or gpunvme_direct_renew(), nor if
 * the captured call failed.
 */
int gpunvme_read_async(struct gpunvme_file *f, void *ptr, size_t n, uint64_t offset, void *stream,
                       int64_t *bytes);

/*
 * Reads n pieces of the file, in any order, each with its own result as in
 * gpunvme_readv(), in stream order as in gpunvme_read_async(). One launch reads
 * the list; its warps share the list and the queues. n is below 2^31. Buffer
 * offsets are relative to ptr, and all pieces lie between ptr and the end of
 * the buffer that contains it. `pieces` is memory that the GPU reaches and the
 * caller keeps: device memory, pinned host memory, or memory of
 * gpunvme_pieces_alloc(). The kernel reads and writes it in stream order. If
 * lengths change before that, pieces may be skipped and keep their previous
 * results. A result is valid once the stream has passed the list: bytes,
 * -EINVAL for a length of 2^31 or more, or an error listed in gpunvme_device.h.
 *
 * Returns 0 if the list was launched. Otherwise all results are undefined, and
 * the errors are those of gpunvme_read_async(); -EINVAL also means that n
 * exceeds the memory from gpunvme_pieces_alloc(). A graph may capture the call,
 * under the conditions of gpunvme_read_async().
 */
int gpunvme_readv_async(struct gpunvme_file *f, void *ptr, struct gpunvme_piece *pieces, size_t n,
                        void *stream);

/*
 * Reads n bytes at offset to ptr and waits. Returns the number of bytes or
 * -errno; the number is less than n only at the end of the file or after an
 * error in the middle. The read is not ordered with streams: work on the
 * previous content must have ended before the call, and work on the new bytes
 * must start after it.
 *
 * This is the fastest call for successive small reads. The blocks of a
 * persistent kernel, at most 16 and one per leased queue, each serve the
 * reads of one thread; more threads take turns. The kernel exits after 0.2 ms
 * without a read. A long read that is staged is launched instead. -ETIMEDOUT
 * also means that other kernels leave no room on the GPU for either. Such a
 * read may still complete; closing or refreshing the file and unregistering the
 * buffer wait for it. -EIO also means that a fault in a kernel has ended the
 * process's use of CUDA.
 */
ssize_t gpunvme_file_read(struct gpunvme_file *f, void *ptr, size_t n, uint64_t offset);

/*
 * Returns the argument for kernels of the application (gpunvme_device.h). It is
 * device memory, at the same address until the file is closed. Refreshing and
 * renewing change its content.
 */
struct gpunvme_device_file;
const struct gpunvme_device_file *gpunvme_file_device(const struct gpunvme_file *f);

/*
 * Stores up to max extents from `offset` on and returns how many.
 * GPUNVME_EXTENT_LAST in the final entry means that the file has no more.
 */
ssize_t gpunvme_extents(int fd, uint64_t offset, struct gpunvme_extent *out, size_t max);

/*
 * Stores the counters of this process, summed over all its connections since it
 * started. `size` is sizeof(*out) as the program was compiled, since later
 * versions add members at the end. Reads by kernels of the application
 * (gpunvme_device.h) are not counted. A connection that has a buffer shares the
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
