/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opens a controller that another process serves over a UNIX socket (the
 * vfio-user protocol), as a transport (transport.h). Memory must be file-backed
 * (nvme_mem.fd), because it is shared by sending the descriptor. Doorbells are
 * a page of the server that this process maps.
 */
#ifndef BLOCKDEV_VFIO_USER_VFIO_USER_H
#define BLOCKDEV_VFIO_USER_VFIO_USER_H

#include <stddef.h>
#include <sys/cdefs.h>

#include "blockdev/transport.h"
#include "support/reason.h"

__BEGIN_DECLS

/*
 * Connects to the socket `path` and opens the controller. On an error `why`
 * holds a sentence. Returns errors of connect(2), -ETIMEDOUT if
 * the server does not answer (it may have another client), -EPROTO if it does
 * not speak vfio-user or sends invalid data, and -ENOTSUP if it has no NVMe
 * controller or its doorbells cannot be mapped.
 */
int vfio_user_open(const char *path, const struct bd_open_opts *opts, struct nvme_transport **out,
                   struct reason *why);

__END_DECLS

#endif
