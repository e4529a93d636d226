/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libgpunvme: read and write files of a gpunvmefs mount straight into GPU memory.
 *
 *     struct gpunvme *g;
 *     struct gpunvme_buffer *b;
 *     gpunvme_connect("/mnt/weights", &g);
 *     gpunvme_register(g, device_pointer, bytes, &b);
 *     int fd = open("/mnt/weights/model.bin", O_RDONLY);
 *     ssize_t n = gpunvme_read(b, fd, 0, 0, bytes, NULL);
 *
 * Functions return 0 or a byte count, or -errno; every function may be called from any thread.
 * The library keeps nothing global, prints nothing, and needs no CUDA at build time: it finds the
 * driver when a buffer in GPU memory is registered.
 *
 * A child of fork() must not use its parent's handles, disconnecting included: CUDA does not
 * survive fork, and to the mount both are one. Descriptors are closed on exec; a child that runs on
 * without keeps the parent's buffers registered until it ends.
 */
#ifndef GPUNVME_H
#define GPUNVME_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpunvme_ioctl.h" /* beside this file also where it is installed */

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct gpunvme;
struct gpunvme_buffer;

/* path: anything on the mount. -ENOTTY: not a gpunvmefs mount; -EPROTO: other ABI version. */
int gpunvme_connect(const char *path, struct gpunvme **out);
/*
 * A handle without a mount, for files of any file system: every buffer takes the bounce pipeline.
 * -EBADF from calls that ask the mount (gpunvme_info(), gpunvme_stats(), gpunvme_direct_open()),
 * -ENOTSUP from gpunvme_alloc().
 */
int gpunvme_local(struct gpunvme **out);
/* Buffers not unregistered yet end with it, and so do handles of the direct path. */
void gpunvme_disconnect(struct gpunvme *g);
int gpunvme_info(struct gpunvme *g, struct gpunvme_ioc_info *out);
int gpunvme_stats(struct gpunvme *g, struct gpunvme_ioc_stats *out);
/*
 * What open files of the mount moved, and its queue pairs, as far as the caller may see it. below:
 * 0, then out->below of the answer before, until that is 0. -ENOTTY: the daemon is older.
 */
int gpunvme_open_files(struct gpunvme *g, uint64_t below, struct gpunvme_ioc_open_files *out);
int gpunvme_queues(struct gpunvme *g, struct gpunvme_ioc_queues *out);
/*
 * Reads records of the mount's trace, from number `next` on, for root. out->next is the number to
 * go on with. -ENODATA: the mount was not made with -o trace; -EPERM: the caller is not root.
 */
int gpunvme_trace(struct gpunvme *g, uint64_t next, struct gpunvme_ioc_trace *out);

/* Which way transfers take. Zero in a field means its default. */
struct gpunvme_options {
    uint32_t path; /* GPUNVME_PATH_GPU or _BOUNCE: that path alone; 0: chosen as described below */
    uint32_t threads; /* of the pipeline, the caller's included: one a processor, at most 8 */
    size_t chunk;     /* bytes a thread reads at once, a multiple of 4096: 2 MiB */
    /* Reads and writes of GPU memory shorter than this many bytes bounce; 1: none; 0: measured. */
    uint64_t crossover;
};

/*
 * For all buffers of g; no transfer may be under way. -EINVAL: a value out of range.
 *
 * The GPU path: the mount moves the bytes (which may still go through its host memory, where its
 * executor fails; with GPUNVME_PATH_GPU the executor tries again, and that it cannot is an error).
 * The bounce pipeline: threads of this process read the file into pinned memory while the copy
 * engine of the GPU empties it; writes the other way, by one thread; a mount's gpu=require does not
 * bind it. By itself the library takes the pipeline for memory that the mount cannot take, for ten
 * seconds after the mount itself had to fall back, and where it is faster.
 *
 * That is measured while transfers of GPU memory go on, by handle, for each power of two of the
 * length below 4 MiB: reads and writes, with and without O_DIRECT, and lists of fewer than 128
 * pieces by their number as well. Now and then some transfers take the other path; they cost a
 * fiftieth of the time at most. Until both paths are measured, reads below 128 KiB, with O_DIRECT
 * below 16 KiB, bounce, no writes and no lists. A crossover or a path ends measuring: a crossover
 * sends no lists to the pipeline. Writes of parts of blocks of 4 KiB, those of 128 KiB and more
 * without O_DIRECT, and those past the limit of a file's size, for which write(2) would send
 * SIGXFSZ, are the mount's. What a transfer that was sent to the pipeline so cannot do, the mount
 * is asked to do.
 */
int gpunvme_set_options(struct gpunvme *g, const struct gpunvme_options *options);

/*
 * Makes memory a buffer: a CUDA device pointer (cudaMalloc; interior pointers are fine) is shared
 * with the mount when its executor is CUDA on that GPU. Any other memory, also of other GPUs, VMM
 * and host memory, is a buffer whose transfers take the bounce pipeline; with the option
 * GPUNVME_PATH_GPU it is refused (-ENOTSUP, -EXDEV, -ENODEV), and gpunvme_error() says why. The
 * memory must stay until gpunvme_unregister() has returned. Transfers do not wait for streams: work
 * of the GPU on the memory has to have ended before. From now on cudaMemcpy() into it has, when it
 * returns (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS; memory of pools has no such setting).
 */
int gpunvme_register(struct gpunvme *g, void *addr, size_t len, struct gpunvme_buffer **out);
/*
 * Allocates and registers: GPU memory when the executor is CUDA, shared host memory otherwise.
 * cudaMemcpy() into it has ended when it returns, as with gpunvme_register().
 */
int gpunvme_alloc(struct gpunvme *g, size_t len, struct gpunvme_buffer **out);
/*
 * Host memory, zeroed, and registered. When the executor is CUDA it is pinned, here and by the
 * mount, and kernels on the mount's GPU reach it at the same address; else it is gpunvme_alloc().
 * -ENODEV: this process does not see that GPU; -ENOMEM: more than can be pinned, or than the mount
 * pins (docs/ioctl.md). Pinning counts, and takes, every page.
 */
int gpunvme_alloc_host(struct gpunvme *g, size_t len, struct gpunvme_buffer **out);
/*
 * Returns when neither the drive nor a kernel can reach the memory any more, and frees memory that
 * the library allocated. Transfers of other threads through the buffer end: they return the bytes
 * moved so far, or -EINTR. Reads of the direct path are not tracked here: none to this memory may
 * be under way. An error is the mount's, which may be gone, or -ETIMEDOUT: a copy of a read that
 * ended so may still be made to the memory. Synchronise the device then before you use the memory
 * again; memory of the library is not freed. b has ended all the same.
 */
int gpunvme_unregister(struct gpunvme_buffer *b);
void *gpunvme_buffer_addr(const struct gpunvme_buffer *b); /* device or host address */
size_t gpunvme_buffer_len(const struct gpunvme_buffer *b);

/* Copies to or from a buffer, wherever it is; for callers without CUDA of their own. */
int gpunvme_copy_out(struct gpunvme_buffer *b, size_t offset, void *dst, size_t len);
int gpunvme_copy_in(struct gpunvme_buffer *b, size_t offset, const void *src, size_t len);

struct gpunvme_result {
    uint32_t path;        /* GPUNVME_PATH_* */
    uint32_t nvme_status; /* 0: no error */
    uint64_t commands;
    /*
     * Why the library or the mount took the bounce path, in words; empty if they did not. Good as
     * long as the buffer.
     */
    const char *why;
    /*
     * Not 0: the GPU path has moved some of the bytes through staging, as it does on tiers 0 and 1
     * (struct gpunvme_info) with memory that the drive does not reach.
     */
    uint32_t staged;
};

/*
 * Any offsets and length; aligned to 4 KiB is fastest. fd is an open file of the mount, else
 * -ENOTTY. Bytes moved, short only at the end of the file or after an error in the middle, which
 * gpunvme_error() tells and the next call meets; result may be NULL. -ETIMEDOUT also when the GPU
 * has not made a copy of a small read for 30 s: it may make it later, and calls with the buffer end
 * so until it has. As with other files a signal
 * with a handler ends neither these calls nor gpunvme_readv(). SIGKILL, and SIGINT, SIGQUIT,
 * SIGTERM and SIGHUP without a handler, end the process at once; other signals at the end of a
 * call at the latest, which the deadline of the mount bounds.
 */
ssize_t gpunvme_read(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                     size_t len, struct gpunvme_result *result);
ssize_t gpunvme_write(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                      size_t len, struct gpunvme_result *result);

/*
 * Many reads of one file, in any order, each with its own result (gpunvme_piece): 0 when every
 * piece has one, which may be an error; else -errno, and pieces that were not read have -ECANCELED.
 * Made for small reads: one call of the mount moves up to GPUNVME_PIECES_MAX of them, more are sent
 * in turns. Short lists may be read one by one, where that was measured faster
 * (gpunvme_set_options()). result->commands and path are those of all.
 */
int gpunvme_readv(struct gpunvme_buffer *b, int fd, struct gpunvme_piece *pieces, size_t n,
                  struct gpunvme_result *result);
/*
 * Zeroed memory for n pieces, at most GPUNVME_PIECES_MAX. gpunvme_readv() reads pieces in such
 * memory in place and copies any other list, a cost that shows where reads are as short as a
 * sector. The memory ends with g at the latest. For gpunvme_readv_async() it is mapped to the GPU
 * here, or by a later gpunvme_direct_open(); CUDA forbids that mapping while a stream is captured.
 */
int gpunvme_pieces_alloc(struct gpunvme *g, size_t n, struct gpunvme_piece **out);
/* No gpunvme_readv() or gpunvme_readv_async() may be reading them. NULL does nothing. */
void gpunvme_pieces_free(struct gpunvme *g, struct gpunvme_piece *pieces);

/*
 * The direct path. Queue pairs of the drive and extents of files are leased from the mount once.
 * Kernels of this process then read in its own context and streams, without a call into the daemon.
 * -EPERM: the mount does not trust this user with the direct path (-o direct=). -ENOTSUP: the drive
 * or the GPU cannot; gpunvme_error() says why.
 *
 * Leases can be revoked (the drive was reset, the mount ends). Reads then end with -ESTALE or
 * -ETIMEDOUT, and so do later calls, until gpunvme_direct_renew() has taken new leases. After the
 * death of the daemon reads end with -ETIMEDOUT, and renewing fails.
 *
 * Several handles may be open at once; each has its own queues. Threads may share a handle. A
 * caller that closes or renews an object makes sure that no read of it is under way. Waits for the
 * drive are bounded by the mount's deadline of a command, waits for the mount's socket by 10 s a
 * reply. A daemon that is stopped (SIGSTOP) blocks opening, renewing and closing as it blocks
 * open(2).
 */
struct gpunvme_direct;
struct gpunvme_file;

/* Zero in a field means its default. */
struct gpunvme_direct_options {
    uint32_t queues; /* to lease, at most GPUNVME_LEASE_MAX: 16, or what the mount has left */
    uint32_t depth;  /* entries of each, at least 2: 64 */
    uint32_t flags;  /* GPUNVME_DIRECT_* */
};
/*
 * Reads do not compare checksums of data (mkfs.gpunvme -O data_csum), which costs them time and the
 * mount memory: wrong data of the drive is taken for good.
 */
#define GPUNVME_DIRECT_UNVERIFIED 1u

/*
 * Buffers of g are reached by it, those registered later too; it takes one of the mount's
 * max_buffers for itself. options may be NULL. Errors also: -EBUSY (all queues are leased), -EAGAIN
 * (the drive was reset meanwhile), -EINVAL (options), -ENOMEM; -EPROTO and -ETIMEDOUT (the mount
 * answers wrongly, or not).
 */
int gpunvme_direct_open(struct gpunvme *g, const struct gpunvme_direct_options *options,
                        struct gpunvme_direct **out);
/* No read may be under way. Files not closed yet end with it. NULL does nothing. */
void gpunvme_direct_close(struct gpunvme_direct *d);
/*
 * After -ESTALE or -ETIMEDOUT, with no read under way: new queues, and new extents of all files.
 * Until the call returns none may begin, and a read that gpunvme_pread_begin() has begun is under
 * way until it is ended: it has a place in a queue that is gone afterwards. On a GPU the call waits
 * for all kernels of the process. Errors are those of gpunvme_direct_open() and
 * gpunvme_file_open(): reads stay -ESTALE, those of all files or of the ones without new extents,
 * and it may be tried again.
 */
int gpunvme_direct_renew(struct gpunvme_direct *d);

/*
 * fd is open for reading; it may be closed afterwards. -EBADF, -EISDIR, -ENOTTY: it is no file of
 * the mount that can be read; -EMFILE: the mount's limit of leases (docs/ioctl.md), or this
 * process's of descriptors; -EDQUOT, -EBUSY: this user, or all, have leased as many extents as the
 * mount lets them. Its end drops the POSIX locks of the process on the file, as close(2) does.
 */
int gpunvme_file_open(struct gpunvme_direct *d, int fd, struct gpunvme_file **out);
/* No read of it may be under way: its blocks may be another file's at once. NULL does nothing. */
void gpunvme_file_close(struct gpunvme_file *f);
/*
 * Reads see the file as it was when it was opened here or last refreshed; blocks that it has lost
 * since keep their old content. 0: unchanged; 1: extents or size were updated; -errno: the file
 * keeps its previous extents. No read of the file may be under way.
 */
int gpunvme_file_refresh(struct gpunvme_file *f);
uint64_t gpunvme_file_size(const struct gpunvme_file *f);
/*
 * After reads with -EIO: 1 when a block has been read twice and did not match its checksum, *offset
 * is where it begins in the file; the last one of several, and none until another is found. 0:
 * there was none since the last call. A failing drive is -EIO without such a block.
 */
int gpunvme_file_bad_block(struct gpunvme_file *f, uint64_t *offset);

/*
 * Reads n bytes at offset to ptr, inside a registered buffer, in stream order (a CUstream or
 * cudaStream_t; NULL: the default stream), like a kernel of that stream. When it is this read's
 * turn to end, *bytes is what pread(2) would return, or -errno; before, it may become 0, and in a
 * captured graph an error while other parts of the read still write to ptr. It is
 * memory that the GPU reaches and the caller keeps until then (pinned host memory, or the
 * device's). On a mount without a GPU: host memory from gpunvme_alloc(), stream NULL, and the read
 * has ended when the call returns.
 *
 * 0: the read was sent off, and *bytes will tell; else it was not, *bytes tells nothing, and
 * nothing is written to ptr after the call: -EFAULT (not inside one buffer), -ESTALE, -EINVAL,
 * -ENOTSUP (the library has no kernels), or what CUDA said. A read may have several launches: when
 * CUDA refuses a later one, the call waits for what the stream has, at least for three deadlines of
 * a command. -ETIMEDOUT: that was not enough; synchronise the stream before ptr or bytes, or the
 * pieces of a list, are used or freed.
 *
 * A graph that captured the call reads the file as it is known now: not after refreshing or
 * renewing. One that captured a call that failed must not run.
 */
int gpunvme_read_async(struct gpunvme_file *f, void *ptr, size_t n, uint64_t offset, void *stream,
                       int64_t *bytes);

/*
 * Many reads of the file, in any order, each with its own result as by gpunvme_readv(), and in
 * stream order as by gpunvme_read_async(): one launch, whose warps share the list and the queues.
 * Offsets in the buffer count from ptr; all pieces lie between ptr and the end of the one buffer
 * around it. `pieces` is memory that the GPU reaches and the caller keeps (device memory, pinned
 * host memory, or memory of gpunvme_pieces_alloc()); the kernel reads and writes it when the stream
 * reaches the list. If lengths change before that, pieces may be left out and keep their previous
 * results. A result is valid once the stream has passed the list: bytes, -EINVAL for a length of
 * 2^31 or more, or an error as in gpunvme_device.h. n is below 2^31.
 *
 * 0: the list was launched. Otherwise it was not, with the errors of gpunvme_read_async(), and
 * results tell nothing; -EINVAL also where n runs past the end of pieces of gpunvme_pieces_alloc().
 * A graph may capture the call, as it may gpunvme_read_async().
 */
int gpunvme_readv_async(struct gpunvme_file *f, void *ptr, struct gpunvme_piece *pieces, size_t n,
                        void *stream);

/*
 * One read for a host thread that waits: bytes or -errno, with fewer bytes than requested only at
 * the end of the file or after an error in the middle. The read has no order with streams: start
 * work that uses the bytes after the call returns, and finish work that uses the previous content
 * before it. This is the fastest path for small reads one after another: a persistent kernel of one
 * block serves such reads of all threads in turn, and leaves after 0.2 ms without one; a long read
 * that is staged is launched instead. -ETIMEDOUT also when other kernels leave no room for either:
 * such a read may still complete, and closing or refreshing the file and unregistering the buffer
 * wait for it. -EIO also when a kernel's fault has ended the process's use of CUDA.
 */
ssize_t gpunvme_file_read(struct gpunvme_file *f, void *ptr, size_t n, uint64_t offset);

/*
 * The argument of kernels of the application (gpunvme_device.h): device memory at one address until
 * the file is closed. Refreshing and renewing change its content.
 */
struct gpunvme_device_file;
const struct gpunvme_device_file *gpunvme_file_device(const struct gpunvme_file *f);

/* Extents from offset on, at most max: the count; flags of the last one tell if it is the last. */
ssize_t gpunvme_extents(int fd, uint64_t offset, struct gpunvme_extent *out, size_t max);

/*
 * Counters of this process, of all connections together, since it began. Reads by kernels of the
 * application (gpunvme_device.h) are not among them. A connection shares those of its own calls
 * with the mount once it has a buffer: `calls` of gpunvme_stats() is the sum over all programs.
 * size: of *out as the program was compiled; later members are added at the end.
 */
void gpunvme_calls(struct gpunvme_calls *out, size_t size);

/* What the last failed call of this thread ran into, in words; never NULL. */
const char *gpunvme_error(void);

#define GPUNVME_LOG_ERROR  1 /* a call failed, or a step of one that goes on without it */
#define GPUNVME_LOG_BOUNCE 2 /* a transfer leaves the GPU path: the `why` of its result */
/*
 * The library prints nothing. A function given here is told of failures and of fallbacks, on the
 * thread that meets them; it must not call the library, and message is good during the call only.
 * It belongs to the process. No other call may be under way. NULL, the default: silence.
 */
typedef void (*gpunvme_log_fn)(void *context, int kind, const char *message);
void gpunvme_set_log(gpunvme_log_fn log, void *context);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
