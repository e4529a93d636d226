/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the layer below the public header. A connection belongs to one
 * mount. It has buffers, transfers, and leased queues and extents. The files
 * and memory of gpunvme.h are built on connections (handle.h). Functions return
 * 0 or a byte count on success, and -errno on failure. gpunvme_error()
 * describes the failure. Tests use this header from C++.
 */
#ifndef CLIENT_LIB_CONNECTION_H
#define CLIENT_LIB_CONNECTION_H

#include <stdbool.h>
#include <sys/cdefs.h>

#include "gpunvme/gpunvme.h"

__BEGIN_DECLS

struct connection;
struct gpunvme_buffer;
struct gpunvme_direct;
struct leased_file;

/*
 * Connects to the mount that contains `path`, any file or directory of it.
 * Returns -ENOTTY if `path` is not on a gpunvmefs mount, and -EPROTO if the
 * daemon has another version of the ABI.
 */
int connection_open(const char *path, struct connection **out);
/*
 * Creates a connection without a mount, for files of any file system. Every
 * transfer takes the bounce pipeline.
 */
int connection_local(struct connection **out);
/*
 * Ends all buffers, lists and handles of the direct path of the connection, and
 * the connection. NULL does nothing.
 */
void connection_close(struct connection *g);
/* Returns a descriptor of the mount for gpunvme_info(), or -1. */
int connection_fd(const struct connection *g);
/*
 * Sets the options of all buffers of g. No transfer may be in flight. Returns
 * -EINVAL if a value is out of range.
 */
int bounce_set_options(struct connection *g, const struct gpunvme_options *options);

/*
 * Registers memory as a buffer. Memory that the mount does not take becomes a
 * buffer whose transfers take the bounce pipeline, or with GPUNVME_PATH_GPU is
 * refused with -ENOTSUP, -EXDEV or -ENODEV. `held` means that the caller of the
 * library has registered the memory; a mount takes VMM memory only then.
 */
int buffer_register(struct connection *g, void *addr, size_t len, bool held,
                    struct gpunvme_buffer **out);
/* Allocate and register memory like gpunvme_alloc() and gpunvme_alloc_host(). */
int buffer_alloc(struct connection *g, size_t len, struct gpunvme_buffer **out);
int buffer_alloc_host(struct connection *g, size_t len, struct gpunvme_buffer **out);
/*
 * Ends a buffer. Returns when neither the drive nor a kernel can access the
 * memory, and frees memory that the library allocated. No transfer through the
 * buffer may be in flight. The buffer has ended even if an error of the mount is
 * returned.
 */
int buffer_unregister(struct gpunvme_buffer *b);
void *buffer_addr(const struct gpunvme_buffer *b); /* device or host address */
size_t buffer_len(const struct gpunvme_buffer *b);
/*
 * Copy bytes between host memory and a buffer in any memory. Return -ERANGE
 * past the end of the buffer.
 */
int buffer_copy_out(struct gpunvme_buffer *b, size_t offset, void *dst, size_t len);
int buffer_copy_in(struct gpunvme_buffer *b, size_t offset, const void *src, size_t len);

/*
 * Move bytes between the buffer and fd, an open file of the buffer's mount, like
 * gpunvme_read(), gpunvme_write() and gpunvme_readv(). `why` of the result is
 * valid as long as the buffer. Return -ENOTTY if fd is not a file of the mount.
 */
ssize_t transfer_read(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                      size_t len, struct gpunvme_result *result);
ssize_t transfer_write(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                       size_t len, struct gpunvme_result *result);
int readv_buffer(struct gpunvme_buffer *b, int fd, struct gpunvme_piece *pieces, size_t n,
                 struct gpunvme_result *result);
/* Allocate and free lists like gpunvme_pieces_alloc(). */
int shared_list_alloc_pieces(struct connection *g, size_t n, struct gpunvme_piece **out);
void shared_list_free_pieces(struct connection *g, struct gpunvme_piece *pieces);

/* Queue pairs to lease (0: 16, or the number that is left), entries per queue (0: 64). */
struct direct_options {
    uint32_t queues, depth;
    uint32_t flags; /* GPUNVME_UNVERIFIED */
};
/* Returns -EINVAL if an option is out of range. */
int direct_check_options(const struct direct_options *o);
/*
 * Leases queues. The handle reaches all buffers of g, including those registered
 * later, and uses one of the mount's max_buffers itself. `options` may be NULL.
 * Returns the errors of gpunvme_file_open() for GPUNVME_FILE_DIRECT.
 */
int direct_open(struct connection *g, const struct direct_options *options,
                struct gpunvme_direct **out);
/*
 * Ends the leases, and its files. No read may be in flight. Returns false if a kernel of its reads
 * does not end: the memory stays then, and that of the connection too. Returns true for NULL.
 */
bool direct_close(struct gpunvme_direct *d);
/* Behaves like gpunvme_file_renew() for all files of d. */
int direct_renew(struct gpunvme_direct *d);

/*
 * Leases the extents of a file, which is open for reading. own: duplicates fd.
 * Without, the caller keeps fd open until the file is closed, and the process
 * then keeps its POSIX locks on the file.
 */
int leased_file_open(struct gpunvme_direct *d, int fd, bool own, struct leased_file **out);
/* Ends the lease. No read of the file may be in flight. NULL does nothing. */
void leased_file_close(struct leased_file *f);
/* Behave like gpunvme_file_refresh(), _size(), _bad_block() and _device(). */
int leased_file_refresh(struct leased_file *f);
uint64_t leased_file_size(const struct leased_file *f);
int direct_bad_block(struct leased_file *f, uint64_t *offset);
const struct gpunvme_device_file *leased_file_device(const struct leased_file *f);
/*
 * Launch a read or a list in stream order, like gpunvme_submit_stream() of a
 * direct file. Return 0 if it was launched.
 */
int direct_read_async(struct leased_file *f, void *ptr, size_t n, uint64_t offset, void *stream,
                      int64_t *bytes);
int direct_readv_async(struct leased_file *f, void *ptr, struct gpunvme_piece *pieces, size_t n,
                       void *stream);
/*
 * Reads n bytes to ptr and waits. A persistent kernel serves the reads of all
 * threads; a long read that is staged is launched instead. -ETIMEDOUT also
 * means that other kernels leave no room on the GPU for either. Such a read may
 * still complete; closing or refreshing the file and unregistering the buffer
 * wait for it.
 */
ssize_t direct_read_wait(struct leased_file *f, void *ptr, size_t n, uint64_t offset);

__END_DECLS

#endif
