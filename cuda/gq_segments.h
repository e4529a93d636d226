/* SPDX-License-Identifier: BSD-2-Clause */
/* Describes memory that consists of several segments, each with a handle of its own. */
#ifndef CUDA_GQ_SEGMENTS_H
#define CUDA_GQ_SEGMENTS_H

#include <sys/cdefs.h>

#include "cuda/gq_exec.h"

__BEGIN_DECLS

/*
 * Checks the segments of GQ_MEM_SEGMENTS and stores the sum of their lengths in
 * *len. Returns 0, -EINVAL (number, alignment, overflow) or -EFAULT (the buffer
 * is not inside).
 */
int gq_segments_check(const struct gq_mem *mem, uint64_t *len);
/*
 * Describes the whole pages around the buffer in *out: the parts of the
 * segments that it touches, with duplicated descriptors of their handles for
 * the controller (`exported` or else fd). `base` is the executor's address of
 * the first segment. Parts are left out if one of them has no handle. Returns 0,
 * -ENOMEM or another -errno; gq_segments_forget() frees the parts.
 */
int gq_segments_describe(const struct gq_mem *mem, uint64_t base, bool exported,
                         struct gq_import *out);
/* Closes the descriptors of the parts. Has no effect on an import without parts. */
void gq_segments_forget(struct gq_import *imp);

__END_DECLS

#endif
