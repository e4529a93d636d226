/* Peers of an engine: copy kernels of applications (gq_peer_window.h). */
#ifndef CUDA_GQ_PEER_H
#define CUDA_GQ_PEER_H

#include "cuda/gq.h"
#include "cuda/gq_peer_window.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Opens a peer for copies from this media, the memory of a simulated drive in
 * this process; opts->blocks is set here. To be closed before the engine.
 * -ENOTSUP: the executor is not CUDA, or the drive makes its copies itself;
 * otherwise as gq_peer_open().
 */
int gq_peer_open_on(struct gq_engine *e, const struct gq_peer_options *opts, struct gq_peer **out);
/*
 * Adds a peer window to a buffer until the end of the buffer. `there`: address
 * of the buffer's first page in the peer's process. As gq_peer_window_add();
 * -ENOTSUP: the buffer is not reached by copies.
 */
int gq_buffer_add_window(struct gq_buffer *b, struct gq_peer *m, uint64_t there,
                         uint64_t media_there);

#ifdef __cplusplus
}
#endif

#endif
