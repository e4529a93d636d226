/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A controller served by another process over a UNIX socket (the vfio-user protocol), as a
 * transport (transport.h). Memory must be file-backed (nvme_mem.fd), for it is shared by sending
 * the descriptor. Doorbells are a page of the server's, mapped.
 */
#ifndef BLOCKDEV_VFIO_USER_VFIO_USER_H
#define BLOCKDEV_VFIO_USER_VFIO_USER_H

#include <stddef.h>

#include "blockdev/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

struct vfio_user_opts {
    unsigned timeout_ms; /* for the connection and for each message: 0: 10,000 */
    unsigned silence_ms; /* a reset waits so long for a server that does not answer; 0: 20,000 */
};

/*
 * opts may be NULL. Errors with a sentence in why: those of connect(2); -ETIMEDOUT (the server does
 * not answer: it may have another client); -EPROTO (no vfio-user, or nonsense); -ENOTSUP (no NVMe
 * controller, doorbells that cannot be mapped).
 */
int vfio_user_open(const char *path, const struct vfio_user_opts *opts, struct nvme_transport **out,
                   char *why, size_t len);

#ifdef __cplusplus
}
#endif

#endif
