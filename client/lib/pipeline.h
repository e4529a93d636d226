/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The bounce pipeline moves bytes between a file and memory that the mount cannot reach, through
 * pinned host memory. Threads take the chunks of a transfer, or parts of a list, in order. Each has
 * a staging pair of two chunks: the copy engine empties one while the other is filled.
 */
#ifndef CLIENT_LIB_PIPELINE_H
#define CLIENT_LIB_PIPELINE_H

#include "client/lib/staging_pair.h"

#define PIPELINE_MAX_THREADS 64u

struct pipeline;

/*
 * Creates a pipeline that runs at most `threads` threads at a time, for all transfers except short
 * ones, which their callers make. Pairs are created when needed.
 */
int pipeline_new(struct connection *g, unsigned threads, size_t chunk, struct pipeline **out);
/* Frees a pipeline without transfers in flight. NULL does nothing. */
void pipeline_free(struct pipeline *p);

/* Creates all pairs that no transfer uses, and attaches them to the device. */
int pipeline_warm(struct pipeline *p, struct cuda_driver *cuda, int device);

/*
 * Moves the range, and returns the bytes moved without a gap from its start.
 * Fewer are moved at the end of the file, or after an error. *err and
 * gpunvme_error() then describe the error, and if there were several, the first
 * one in the file. Bytes of a read behind the error may have reached the
 * buffer. A write is moved in order, so no bytes behind the chunk with an error
 * reached the file. Adds the commands and the status of the drive to *result.
 */
size_t pipeline_run(struct pipeline *p, struct gpunvme_buffer *b, const struct range *r,
                    struct gpunvme_result *result, int *err);
/*
 * Reads a list of at least one piece, and stores the bytes read. The results of
 * the pieces are -ECANCELED at first, and stay so if an error ends the list.
 * Returns that error, described like one of pipeline_run(), or 0. A piece that
 * is longer than a chunk has the result -E2BIG.
 */
int pipeline_readv(struct pipeline *p, const struct staging_list *l, uint64_t *bytes,
                   struct gpunvme_result *result);

#endif
