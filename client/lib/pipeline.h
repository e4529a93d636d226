/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The bounce pipeline: bytes between a file and memory that the mount cannot reach, through pinned
 * host memory. A transfer is cut into chunks that threads take in order, each with a staging pair
 * of two chunks of staging: while the copy engine empties one, the other is filled.
 */
#ifndef CLIENT_LIB_PIPELINE_H
#define CLIENT_LIB_PIPELINE_H

#include "client/lib/client_internal.h"

#define PIPELINE_MAX_THREADS 64u

struct pipeline;

/* At most `threads` run at a time, for all transfers together; pairs are made as needed. */
int pipeline_new(struct connection *g, unsigned threads, size_t chunk, struct pipeline **out);
/* NULL does nothing. No transfer may be under way. */
void pipeline_free(struct pipeline *p);

/* All pairs that no transfer uses now are made and attached to the device. */
int pipeline_warm(struct pipeline *p, struct cuda_driver *cuda, int device);

/*
 * Moves the range; returns the bytes moved without a gap from its start. That is short at the end
 * of the file, or with *err (and gpunvme_error()): of several errors the first in the file, not in
 * time. Of a read, bytes behind the error may have reached the buffer; a write is moved in order,
 * so none behind it reached the file. b->ending ends a transfer with -EINTR. Adds the commands and
 * the drive's status to *result.
 */
size_t pipeline_run(struct pipeline *p, struct gpunvme_buffer *b, const struct range *r,
                    struct gpunvme_result *result, int *err);

#endif
