/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads and writes any file from and to any memory, for programs that handle
 * neither mounts nor buffers.
 *
 *     struct gpunvme_io *io;
 *     struct gpunvme_io_file *f;
 *     gpunvme_io_open(NULL, &io);
 *     gpunvme_io_file_open(io, fd, &f);
 *     ssize_t n = gpunvme_io_read(f, pointer, bytes, offset, NULL);
 *
 * A file of a gpunvmefs mount is read through that mount, and any other regular
 * file or block device through the bounce pipeline (gpunvme_set_options()).
 * Memory is host memory or GPU memory. Pointers, offsets and lengths need no
 * alignment, even if the file is open with O_DIRECT: bytes that O_DIRECT cannot
 * move go through a second open file description without the flag, which the
 * library opens. It never changes the flags of a caller's description.
 *
 * The first transfer that needs a buffer registers it at the mount. The buffer
 * covers the CUDA allocation around the pointer and lasts until the allocation
 * is freed, so interior pointers of caching allocators cost nothing. Memory
 * without such a registration (host memory, VMM, managed memory, pools) takes
 * the pipeline.
 *
 * Functions return 0 or a byte count on success, and -errno on failure, which
 * gpunvme_error() describes. They may be called from any thread. In a child of
 * fork() the parent's handles return -EPERM, and closing them does nothing; the
 * child opens handles of its own.
 */
#ifndef GPUNVME_IO_H
#define GPUNVME_IO_H

#include "gpunvme.h" /* this file's folder, also in an installation */

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct gpunvme_io;
struct gpunvme_io_file;

/*
 * Opens a handle. `options` apply to all mounts as in gpunvme_set_options();
 * NULL selects the defaults.
 */
int gpunvme_io_open(const struct gpunvme_options *options, struct gpunvme_io **out);
/*
 * Waits for asynchronous transfers, then ends all files and registrations, and
 * releases the mounts, which are busy until then. No other call may be in
 * progress. NULL does nothing.
 */
void gpunvme_io_close(struct gpunvme_io *io);

/*
 * Opens a file. The library duplicates fd, which the caller may then close; the
 * open file description stays in use until gpunvme_io_file_close(). Returns
 * -EINVAL if fd is neither a regular file nor a block device. If the library
 * cannot connect to a mount, it uses the file like one of any other file system.
 */
int gpunvme_io_file_open(struct gpunvme_io *io, int fd, struct gpunvme_io_file **out);
/*
 * Closes a file. No further call with f may begin. Transfers in flight continue,
 * and the last one closes the library's descriptors. As close(2) of any
 * descriptor of a file does, this drops the POSIX record locks of the process on
 * the file, but not its OFD locks. NULL does nothing.
 */
void gpunvme_io_file_close(struct gpunvme_io_file *f);
/*
 * Returns the library's duplicate of the descriptor, which stays open as long
 * as f.
 */
int gpunvme_io_file_fd(const struct gpunvme_io_file *f);
/*
 * Returns why no mount serves the file, or NULL if one does. The text is valid
 * as long as the file.
 */
const char *gpunvme_io_file_why(const struct gpunvme_io_file *f);

/*
 * Keeps [addr, +len) registered, at each mount from the first transfer there
 * on. The memory must stay allocated until gpunvme_io_unregister() has
 * returned; after -ETIMEDOUT, until the device has been synchronised, as after
 * gpunvme_unregister(). Returns -EEXIST if the range overlaps another
 * registration, and -EINVAL if it exceeds its CUDA allocation.
 */
int gpunvme_io_register(struct gpunvme_io *io, void *addr, size_t len);
/*
 * Waits for transfers of the memory and ends its registration. `addr` is the
 * registered address, otherwise -ENOENT is returned.
 */
int gpunvme_io_unregister(struct gpunvme_io *io, void *addr);
/*
 * Allocates zeroed host memory that the mount of f can reach, as
 * gpunvme_alloc_host() does, or plain memory if no mount serves f.
 * gpunvme_io_unregister(io, *out) frees it.
 */
int gpunvme_io_alloc_host(struct gpunvme_io_file *f, size_t len, void **out);

/*
 * Behave like gpunvme_read() and gpunvme_write(). A transfer past the end of a
 * registration or a CUDA allocation is a mistake of the caller and takes the
 * bounce pipeline. `result` may be NULL; its `why` is valid until the next call
 * of this thread.
 */
ssize_t gpunvme_io_read(struct gpunvme_io_file *f, void *addr, size_t len, uint64_t file_offset,
                        struct gpunvme_result *result);
ssize_t gpunvme_io_write(struct gpunvme_io_file *f, const void *addr, size_t len,
                         uint64_t file_offset, struct gpunvme_result *result);

/*
 * Behaves like gpunvme_readv(), with buffer_offset relative to addr. Pieces
 * outside [addr, +len) get -ERANGE. The call modifies buffer_offset while it
 * lasts.
 */
int gpunvme_io_readv(struct gpunvme_io_file *f, void *addr, size_t len,
                     struct gpunvme_piece *pieces, size_t n, struct gpunvme_result *result);

/*
 * A lease of a file's extents, and of queue pairs that all leases of a mount
 * share. Reads of a lease make no call into the daemon.
 */
struct gpunvme_io_lease;
/*
 * Takes a lease, which keeps the file in use until it is closed. Returns -ENOTTY
 * if no mount serves the file, and the errors of gpunvme_direct_open() and
 * gpunvme_file_open().
 */
int gpunvme_io_lease_open(struct gpunvme_io_file *f, struct gpunvme_io_lease **out);
/*
 * Ends a lease, before gpunvme_io_close(). No read of it may be in progress.
 * NULL does nothing.
 */
void gpunvme_io_lease_close(struct gpunvme_io_lease *l);
/*
 * Reads like gpunvme_io_read() from the file as it was when the lease was taken;
 * result->path is GPUNVME_CALLS_DIRECT. Returns -EFAULT if the mount does not
 * reach the memory: it reaches CUDA memory of its GPU and memory of
 * gpunvme_io_alloc_host(). After -ESTALE or -ETIMEDOUT the caller takes a new
 * lease.
 */
ssize_t gpunvme_io_lease_read(struct gpunvme_io_lease *l, void *addr, size_t len,
                              uint64_t file_offset, struct gpunvme_result *result);

/*
 * A transfer made by a thread of io. The library owns the request and uses the
 * memory until it calls done().
 */
struct gpunvme_io_request {
    void *reserved[2]; /* used by the library */
    struct gpunvme_io_file *file;
    int write;
    void *addr;
    size_t len;
    uint64_t file_offset;
    /*
     * If not NULL, the request reads n_pieces as gpunvme_io_readv() does:
     * file_offset is ignored, and `bytes` becomes 0 or -errno.
     */
    struct gpunvme_piece *pieces;
    size_t n_pieces;
    ssize_t bytes;                              /* out: bytes moved, or -errno */
    struct gpunvme_result result;               /* out: `why` is valid while done() runs */
    void (*done)(struct gpunvme_io_request *r); /* may free the request */
};
/*
 * Starts a transfer. Up to 16 run at a time, in the order of the calls. If
 * -errno is returned, done() will not be called; -EINVAL means a write of
 * pieces. In done(), gpunvme_error() describes the failure of the transfer.
 */
int gpunvme_io_start(struct gpunvme_io_request *r);
/*
 * Starts n transfers in order and returns how many were started; done() will
 * not be called for the rest. Successive reads without pieces of one file, into
 * memory of one registration at its mount, are combined into one READV: they
 * end together, and the result of the first has the commands of all.
 */
size_t gpunvme_io_start_list(struct gpunvme_io_request *const *requests, size_t n);

/*
 * A transfer in stream order. The library reads the values behind the pointers
 * when the stream reaches the transfer; they must stay valid until then.
 */
struct gpunvme_io_async {
    int write;
    void *addr;
    const size_t *len;
    const int64_t *file_offset;
    const int64_t *addr_offset; /* bytes, added to addr */
    int64_t *bytes; /* host memory: bytes moved or -errno, set before the stream continues */
    /*
     * NULL, or a function that a thread of io calls after *bytes is set, while
     * the stream still waits.
     */
    void (*done)(void *arg, const struct gpunvme_io_async *a, const struct gpunvme_result *result);
    void *arg;
};

/*
 * Makes a transfer in stream order. Returns 0 if the result will be in *bytes.
 * The stream waits (cuStreamWaitValue32) while a thread of this process makes
 * the transfer. If the GPU cannot wait for memory, the call waits. Returns
 * -ENOTSUP if the stream is being captured. If CUDA is missing or unused,
 * stream must be NULL (-ENODEV otherwise), and the transfer has ended when the
 * call returns.
 */
int gpunvme_io_submit(struct gpunvme_io_file *f, const struct gpunvme_io_async *a, void *stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
