/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads of a plan by the direct path: kernels of this process, on queues leased from the mount. */
#ifndef CLIENT_IO_IO_STREAM_DIRECT_H
#define CLIENT_IO_IO_STREAM_DIRECT_H

#include "gpunvme/gpunvme_stream.h"

struct io_stream_direct;

/* -ENOTSUP: files of several mounts or of none, or a ring that the mount does not reach. */
int io_stream_direct_open(struct gpunvme_io *io, const struct gpunvme_range *ranges, size_t n,
                          void *ring, size_t ring_len, unsigned readers,
                          struct io_stream_direct **out);
/* By reader number `reader`, one read at a time: bytes or -errno, as gpunvme_io_read(). */
ssize_t io_stream_direct_read(struct io_stream_direct *d, unsigned reader,
                              const struct gpunvme_range *r, void *to);
/* No read may be under way. NULL does nothing. */
void io_stream_direct_close(struct io_stream_direct *d);

#endif
