/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Any file, any memory: reads and writes for programs that know neither mounts nor buffers.
 *
 *     struct gpunvme_io *io;
 *     struct gpunvme_io_file *f;
 *     gpunvme_io_open(NULL, &io);
 *     gpunvme_io_file_open(io, fd, &f);
 *     ssize_t n = gpunvme_io_read(f, pointer, bytes, offset, NULL);
 *
 * A file of a gpunvmefs mount is read through that mount, any other regular file or block device
 * through the bounce pipeline (gpunvme_set_options()). Memory is the host's or a GPU's; pointers,
 * offsets and lengths need no alignment, also where the file is open with O_DIRECT: bytes that it
 * cannot move go through a second open file description, without the flag, that the library makes.
 * The library never changes the flags of a caller's description.
 *
 * Buffers are registered at the mounts when a transfer first needs them: one for the CUDA
 * allocation around the pointer, kept until the allocation is gone, so interior pointers of caching
 * allocators cost nothing. Memory that has no such registration (the host's, VMM, managed, pools)
 * takes the pipeline.
 *
 * Functions return 0 or a byte count, or -errno with a sentence in gpunvme_error(), and may be
 * called from any thread. In a child of fork(2) the parent's handles return -EPERM, and closing
 * them does nothing; the child opens handles of its own.
 */
#ifndef GPUNVME_IO_H
#define GPUNVME_IO_H

#include "gpunvme.h" /* beside this file also where it is installed */

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct gpunvme_io;
struct gpunvme_io_file;

/* options: as gpunvme_set_options(), for all mounts; NULL: the defaults. */
int gpunvme_io_open(const struct gpunvme_options *options, struct gpunvme_io **out);
/*
 * No call may be under way; asynchronous ones are waited for. All files and registrations end with
 * it, and so does its hold on the mounts, which are busy until then. NULL does nothing.
 */
void gpunvme_io_close(struct gpunvme_io *io);

/*
 * The library duplicates fd, which may be closed afterwards; the file that it was open on remains
 * in use until gpunvme_io_file_close(). -EINVAL: neither a regular file nor a block device. A mount
 * that cannot be connected to is used as any other file system.
 */
int gpunvme_io_file_open(struct gpunvme_io *io, int fd, struct gpunvme_io_file **out);
/*
 * No call with f may begin any more. Transfers under way go on, and the last one closes the
 * library's descriptors; as close(2) of any descriptor of a file, that drops the POSIX record locks
 * of the process on the file (not its OFD locks). NULL does nothing.
 */
void gpunvme_io_file_close(struct gpunvme_io_file *f);
/* Returns the library's duplicate of the descriptor, which stays open as long as f. */
int gpunvme_io_file_fd(const struct gpunvme_io_file *f);
/* Why no mount serves the file; NULL: one does. Good as long as the file. */
const char *gpunvme_io_file_why(const struct gpunvme_io_file *f);

/*
 * Keeps [addr, +len) registered from now on, at each mount from the first transfer there on. The
 * memory must stay until gpunvme_io_unregister() has returned; after -ETIMEDOUT, until the device
 * was synchronised, as after gpunvme_unregister(). -EEXIST: it overlaps another one;
 * -EINVAL: it leaves its CUDA allocation of which it is a part.
 */
int gpunvme_io_register(struct gpunvme_io *io, void *addr, size_t len);
/* addr: as registered, else -ENOENT. Waits for transfers to and from the memory. */
int gpunvme_io_unregister(struct gpunvme_io *io, void *addr);
/*
 * Host memory, zeroed, that the mount of f reaches by itself: as gpunvme_alloc_host(), or plain
 * memory where no mount serves f. Freed by gpunvme_io_unregister(io, *out).
 */
int gpunvme_io_alloc_host(struct gpunvme_io_file *f, size_t len, void **out);

/*
 * As gpunvme_read() and gpunvme_write(); a transfer past the end of a registration or of a CUDA
 * allocation is the caller's mistake and bounces. result may be NULL; its `why` is good until this
 * thread's next call.
 */
ssize_t gpunvme_io_read(struct gpunvme_io_file *f, void *addr, size_t len, uint64_t file_offset,
                        struct gpunvme_result *result);
ssize_t gpunvme_io_write(struct gpunvme_io_file *f, const void *addr, size_t len,
                         uint64_t file_offset, struct gpunvme_result *result);

/*
 * As gpunvme_readv(), with buffer_offset counted from addr; all pieces lie in [addr, +len), else
 * -ERANGE for those. buffer_offset is changed while the call lasts.
 */
int gpunvme_io_readv(struct gpunvme_io_file *f, void *addr, size_t len,
                     struct gpunvme_piece *pieces, size_t n, struct gpunvme_result *result);

/* A transfer by a thread of io. Request and memory belong to the library until done() is called. */
struct gpunvme_io_request {
    void *reserved[2]; /* the library's */
    struct gpunvme_io_file *file;
    int write;
    void *addr;
    size_t len;
    uint64_t file_offset;
    /*
     * Not NULL: a read of n_pieces as gpunvme_io_readv(); file_offset means nothing, bytes is 0 or
     * -errno.
     */
    struct gpunvme_piece *pieces;
    size_t n_pieces;
    ssize_t bytes;                              /* out: or -errno */
    struct gpunvme_result result;               /* out: its `why` is good while done() runs */
    void (*done)(struct gpunvme_io_request *r); /* may free it */
};
/*
 * Up to 16 run at a time, in the order of the calls. -errno: done() will not be called; -EINVAL: a
 * write of pieces. gpunvme_error() tells done() why the transfer failed.
 */
int gpunvme_io_start(struct gpunvme_io_request *r);
/*
 * The same for n of them, in order. Successive reads (without pieces) of one file into memory that
 * its mount has registered, in one piece, become one READV: they end together, and the first one's
 * result has the commands of all. How many were started: done() will not be called for the rest.
 */
size_t gpunvme_io_start_list(struct gpunvme_io_request *const *requests, size_t n);

/*
 * A transfer in stream order. The pointed-to values are read when the stream reaches the transfer,
 * and must stay valid until then.
 */
struct gpunvme_io_async {
    int write;
    void *addr;
    const size_t *len;
    const int64_t *file_offset;
    const int64_t *addr_offset; /* bytes, added to addr */
    int64_t *bytes;             /* host memory: bytes moved or -errno, before the stream goes on */
    /* NULL, or called by a thread of io when *bytes is set and the stream still waits. */
    void (*done)(void *arg, const struct gpunvme_io_async *a, const struct gpunvme_result *result);
    void *arg;
};

/*
 * 0: *bytes will tell. The stream waits (cuStreamWaitValue32) while a thread of this process makes
 * the transfer; where the GPU cannot, the call waits. -ENOTSUP: the stream is being captured.
 * Without a CUDA driver, or with CUDA not in use, stream must be NULL and the transfer has ended
 * when the call returns; else -ENODEV.
 */
int gpunvme_io_submit(struct gpunvme_io_file *f, const struct gpunvme_io_async *a, void *stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
