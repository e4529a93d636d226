/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Maps the client's memory into this process and into the controller. There is
 * one table per process, because the handler of SIGBUS uses it: a client can
 * remove pages by shrinking its file.
 */
#ifndef SIM_SERVE_SERVE_DMA_H
#define SIM_SERVE_SERVE_DMA_H

#include "blockdev/transport.h"
#include "blockdev/vfio_user/vfio_user_spec.h"

#define DMA_MAX_MAPS 4096 /* number of mappings at a time */

/*
 * Installs the handler of SIGBUS. It replaces a mapping whose pages the client
 * has removed by zeros, and makes *torn_fd, an eventfd of the table, readable.
 * Returns 0 or -errno.
 */
int serve_dma_guard(int *torn_fd);

/*
 * Maps [m->offset, m->offset + m->size) of the file fd at m->addr. The caller
 * still owns fd. Memory without a descriptor (fd < 0) and memory that is not
 * both readable and writable is recorded only: QEMU maps ROMs so, and a command
 * that points there reaches nothing. Returns -EINVAL (not whole pages,
 * impossible address, file too short, not a plain file), -EEXIST (overlap),
 * -ENOSPC, or the errors of mmap(2). If `most` is not 0 and as many regions are
 * mapped, it returns -EINVAL, as libvfio-user does.
 */
int serve_dma_map(struct nvme_transport *t, const struct vfio_user_dma_map *m, int fd,
                  unsigned most);
/*
 * Returns -ENOENT unless address and size are those of a mapping. With
 * VFIO_DMA_UNMAP_FLAG_ALL both are 0, and all mappings are removed.
 */
int serve_dma_unmap(struct nvme_transport *t, const struct vfio_user_dma_unmap *u);
/* Unmaps everything from this process. The transport must be closed. */
void serve_dma_forget(void);

#endif
