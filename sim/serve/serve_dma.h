/*
 * The client's memory, mapped into this process and into the controller. A process has one table,
 * because the handler of SIGBUS must find it: a client can take pages away under us by shrinking
 * its file.
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
 * From now on memory that its owner has taken away reads as zeros, all of the mapping, and *torn_fd
 * (an eventfd of the table's) becomes readable. 0 or -errno.
 */
int dma_guard(int *torn_fd);

/*
 * Maps [m->offset, m->offset + m->size) of the file fd at m->addr. fd stays the caller's. -EINVAL
 * (not whole pages, address not possible, file too short, no plain file), -EEXIST (overlap),
 * -ENOTSUP (no descriptor, or not both readable and writable), -ENOSPC, errors of mmap(2).
 */
int dma_map(struct nvme_transport *t, const struct vfio_user_dma_map *m, int fd);
/* -ENOENT unless address and size are those of a mapping. */
int dma_unmap(struct nvme_transport *t, const struct vfio_user_dma_unmap *u);
/* Unmaps everything from this process; the transport must be closed. */
void dma_forget(void);

#ifdef __cplusplus
}
#endif

#endif
