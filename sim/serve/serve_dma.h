/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The client's memory, mapped into this process and into the controller. The
 * table is one for the process, because the handler of SIGBUS uses it: a client
 * can remove pages by shrinking its file.
 */
#ifndef SIM_SERVE_SERVE_DMA_H
#define SIM_SERVE_SERVE_DMA_H

#include "blockdev/transport.h"
#include "blockdev/vfio_user/vfio_user_spec.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DMA_MAX_MAPS 4096 /* at a time */

/*
 * Installs the handler of SIGBUS: a mapping of which the client has removed
 * pages is replaced by zeros, and *torn_fd (an eventfd of the table) becomes
 * readable. 0 or -errno.
 */
int serve_dma_guard(int *torn_fd);

/*
 * Maps [m->offset, m->offset + m->size) of the file fd at m->addr. fd stays the caller's. -EINVAL
 * (not whole pages, address not possible, file too short, no plain file), -EEXIST (overlap),
 * -ENOTSUP (no descriptor, or not both readable and writable), -ENOSPC, errors of mmap(2). With
 * `most` regions mapped (not 0), -EINVAL, as libvfio-user has it.
 */
int serve_dma_map(struct nvme_transport *t, const struct vfio_user_dma_map *m, int fd,
                  unsigned most);
/* -ENOENT unless address and size are those of a mapping. */
int serve_dma_unmap(struct nvme_transport *t, const struct vfio_user_dma_unmap *u);
/* Unmaps everything from this process; the transport must be closed. */
void serve_dma_forget(void);

#ifdef __cplusplus
}
#endif

#endif
