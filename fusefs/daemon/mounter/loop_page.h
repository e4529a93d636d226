/* SPDX-License-Identifier: BSD-2-Clause */
/* Attaches loop devices of one page: a fuseblk mount needs a block device. */
#ifndef FUSEFS_DAEMON_MOUNTER_LOOP_PAGE_H
#define FUSEFS_DAEMON_MOUNTER_LOOP_PAGE_H

#include <sys/types.h>

/*
 * Attaches a page of zeros in memory to a free loop device, and stores its
 * number in *device. The kernel detaches it when the last descriptor and the
 * last mount of it are gone, also after SIGKILL. Returns a descriptor, which
 * the caller closes, or -errno.
 */
int loop_page_attach(dev_t *device);

#endif
