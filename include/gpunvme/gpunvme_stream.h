/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A plan of file ranges that is read ahead through a ring of memory: weights of a model that is
 * larger than the GPU, layer by layer.
 *
 *     gpunvme_stream_open(plan, steps, ring, ring_len, NULL, &s);
 *     while ((n = gpunvme_stream_next(s, stream, &addr)) > 0)
 *         launch(kernel, stream, addr);
 *     gpunvme_stream_close(s);
 *
 * One thread at a time calls next() and close(). Errors are those of gpunvme_io.h.
 */
#ifndef GPUNVME_STREAM_H
#define GPUNVME_STREAM_H

#include "gpunvme_io.h" /* beside this file also where it is installed */

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct gpunvme_range {
    struct gpunvme_io_file *file; /* open as long as the stream */
    uint64_t offset;
    size_t len;
};

/* What one next() gives: its ranges one behind the other, each at a multiple of this. */
#define GPUNVME_STREAM_ALIGN 4096

struct gpunvme_step {
    const struct gpunvme_range *ranges;
    size_t n;
};

/* Zero in a field means its default. */
struct gpunvme_stream_options {
    uint32_t readers; /* ranges that are read at the same time, at most 64: 2 */
    uint32_t loop;    /* 1: after the last step the first one comes again, without an end */
    /*
     * 1: by the direct path (gpunvme_direct_open(), with its errors): kernels of this process read,
     * which share the GPU with its other kernels, while those of a daemon take turns with them. All
     * files are of one mount, the ring is in one allocation that the mount reaches, else -ENOTSUP.
     */
    uint32_t direct;
};

struct gpunvme_stream;

/*
 * Starts to read. ring: memory of any kind that is the caller's until the stream is closed, at
 * least as large as the largest step; reads are ahead of their use where it has room for two or
 * more. The plan is copied, and options may be NULL. -EINVAL: an empty plan or step, a value out of
 * range, or a ring that is too small.
 */
int gpunvme_stream_open(struct gpunvme_io *io, const struct gpunvme_step *plan, size_t steps,
                        void *ring, size_t ring_len, const struct gpunvme_stream_options *options,
                        struct gpunvme_stream **out);

/*
 * The next step of the plan: its bytes (with the gaps of GPUNVME_STREAM_ALIGN), at *addr; 0 at the
 * end of the plan. The call waits until the step has been read. Work that is then put into `stream`
 * (CUstream or cudaStream_t; NULL: the default stream) may use it; its memory is given back when
 * the stream has come to the following next(), for which it may be another stream.
 *
 * -EIO, and what reads return: this step could not be read, and the following call goes on behind
 * it. -ETIMEDOUT: the stream has not come to a step given back for 30 s. -ENOTSUP: the stream is
 * being captured. Without a CUDA driver, or with CUDA not in use, stream is NULL and work has ended
 * before the following call.
 */
ssize_t gpunvme_stream_next(struct gpunvme_stream *s, void *stream, void **addr);

/* Waits for reads and for the streams (30 s at most). NULL does nothing. */
void gpunvme_stream_close(struct gpunvme_stream *s);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
