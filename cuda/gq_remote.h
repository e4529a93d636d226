/* Copiers of applications (gq_route.h), as those see them who have an engine and buffers. */
#ifndef CUDA_GQ_REMOTE_H
#define CUDA_GQ_REMOTE_H

#include "cuda/gq.h"
#include "cuda/gq_route.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A copier for what comes from this media, the memory of a simulated drive in this process; with
 * opts->blocks filled in for the device. To be closed before the engine. -ENOTSUP: the executor is
 * not CUDA, or copies nothing by itself; otherwise as gq_remote_open().
 */
int gq_remote_open_on(struct gq_engine *e, const struct gq_remote_options *opts,
                      struct gq_remote **out);
/*
 * Its way to a buffer, until that ends: `there` is the address, in the copier's process, of the
 * buffer's first page. As gq_route_add(); -ENOTSUP: the buffer is not reached by copies.
 */
int gq_buffer_route(struct gq_buffer *b, struct gq_remote *m, uint64_t there, uint64_t media_there);

#ifdef __cplusplus
}
#endif

#endif
