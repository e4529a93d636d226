/* SPDX-License-Identifier: BSD-2-Clause */
/* Host memory behind a descriptor, mapped into this process; used by all executors. */
#ifndef CUDA_GQ_HOST_H
#define CUDA_GQ_HOST_H

#include "cuda/gq_exec.h"

/*
 * Maps the range that mem, of GQ_MEM_FD, names; the descriptor is duplicated.
 * base is the host's address. -EINVAL, -EFAULT (the file ends too early, or
 * cannot be mapped), -ENOMEM.
 */
int gq_host_import(const struct gq_mem *mem, struct gq_import *out);
/*
 * Allocates all its pages, so that pinning them does not wait for allocation.
 * -ENOMEM: the pages cannot be allocated, whatever the errno.
 */
int gq_host_populate(const struct gq_import *imp);
/* Zeroed pages, behind a descriptor for controllers in other processes. */
int gq_host_alloc(size_t len, struct gq_import *out);
/* Releases the result of either; an import without a mapping is left alone. */
void gq_host_release(struct gq_import *imp);

#endif
