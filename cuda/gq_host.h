/* SPDX-License-Identifier: BSD-2-Clause */
/* Maps host memory behind a descriptor into this process, for all executors. */
#ifndef CUDA_GQ_HOST_H
#define CUDA_GQ_HOST_H

#include "cuda/gq_exec.h"

/*
 * Maps the range of mem, of kind GQ_MEM_FD, and duplicates its descriptor. base
 * is the host's address. Returns -EINVAL, -EFAULT (the file ends too early or
 * cannot be mapped) or -ENOMEM.
 */
int gq_host_import(const struct gq_mem *mem, struct gq_import *out);
/*
 * Allocates all its pages, so that pinning them does not wait for allocation.
 * Returns 0, or -ENOMEM if the pages cannot be allocated for any reason.
 */
int gq_host_populate(const struct gq_import *imp);
/*
 * Allocates zeroed pages behind a descriptor that controllers in other
 * processes can map.
 */
int gq_host_alloc(size_t len, struct gq_import *out);
/* Releases the result of either function; ignores an import without a mapping. */
void gq_host_release(struct gq_import *imp);

#endif
