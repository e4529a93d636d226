/* CopyKernels of applications (gq_peer_window.h), as those see them who have an engine and buffers.
 */
#ifndef CUDA_GQ_REMOTE_H
#define CUDA_GQ_REMOTE_H

#include "cuda/gq.h"
#include "cuda/gq_peer_window.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A copy kernel for what comes from this media, the memory of a simulated drive in this process;
 * with opts->blocks filled in for the device. To be closed before the engine. -ENOTSUP: the
 * executor is not CUDA, or copies nothing by itself; otherwise as gq_peer_open().
 */
int gq_peer_open_on(struct gq_engine *e, const struct gq_peer_options *opts, struct gq_peer **out);
/*
 * Its way to a buffer, until that ends: `there` is the address, in the copy kernel's process, of
 * the buffer's first page. As gq_peer_window_add(); -ENOTSUP: the buffer is not reached by copies.
 */
int gq_buffer_add_window(struct gq_buffer *b, struct gq_peer *m, uint64_t there,
                         uint64_t media_there);

#ifdef __cplusplus
}
#endif

#endif
