/* Host memory behind a descriptor, mapped into this process: the same for all executors. */
#ifndef CUDA_GQ_HOST_H
#define CUDA_GQ_HOST_H

#include "cuda/gq_exec.h"

/*
 * Maps what mem, of GQ_MEM_FD, names; the descriptor is duplicated. base is the host's address.
 * -EINVAL, -EFAULT (it ends too early, or cannot be mapped), -ENOMEM.
 */
int gq_host_import(const struct gq_mem *mem, struct gq_import *out);
/*
 * Has all its pages there, so that whoever pins them waits for none. -ENOMEM: there is no room for
 * them, whatever the kernel calls it.
 */
int gq_host_populate(const struct gq_import *imp);
/* Zeroed pages, behind a descriptor for controllers of other processes. */
int gq_host_alloc(size_t len, struct gq_import *out);
/* What either made; nothing, for an import without a mapping. */
void gq_host_release(struct gq_import *imp);

#endif
