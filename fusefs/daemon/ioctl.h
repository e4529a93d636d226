/*
 * What the ioctls that are answered at once do; ioctl.c decodes and replies.
 */
#ifndef FUSEFS_DAEMON_IOCTL_H
#define FUSEFS_DAEMON_IOCTL_H

#include "client/gpunvme_ioctl.h"
#include "fusefs/daemon/buffers.h"
#include "fusefs/daemon/daemon.h"

void ioctl_fill_info(struct daemon *d, struct gpunvme_ioc_info *info);
void ioctl_fill_stats(struct daemon *d, struct gpunvme_ioc_stats *stats);
int ioctl_register(struct daemon *d, struct open_file *file, uid_t uid,
                   struct gpunvme_ioc_register *reg);
int ioctl_buffer_iova(struct daemon *d, uid_t uid, struct gpunvme_ioc_buffer_iova *arg);
int ioctl_extents(struct ffs_inode *inode, struct gpunvme_ioc_extents *out);

#endif
