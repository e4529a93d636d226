/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A controller served by another process over a UNIX socket (the vfio-user
 * protocol), as a transport (transport.h). Memory must be file-backed
 * (nvme_mem.fd), because it is shared by sending the descriptor. Doorbells are
 * a page of the server, mapped here.
 */
#ifndef BLOCKDEV_VFIO_USER_VFIO_USER_H
#define BLOCKDEV_VFIO_USER_VFIO_USER_H

#include <stddef.h>

#include "blockdev/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

struct vfio_user_opts {
    unsigned timeout_ms; /* limit for the connection and each message; 0: 10,000 */
    unsigned silence_ms; /* how long a reset waits for a silent server; 0: 20,000 */
    /* NULL, or called after connect(2), before the server is read: see device.h */
    int (*opened)(void *arg, char *why, size_t len);
    void *arg;
};

/*
 * Connects to the socket `path` and opens the controller. opts may be NULL. On
 * an error `why` holds a sentence. Returns errors of connect(2), -ETIMEDOUT if
 * the server does not answer (it may have another client), -EPROTO if it does
 * not speak vfio-user or sends invalid data, and -ENOTSUP if it has no NVMe
 * controller or its doorbells cannot be mapped.
 */
int vfio_user_open(const char *path, const struct vfio_user_opts *opts, struct nvme_transport **out,
                   char *why, size_t len);

#ifdef __cplusplus
}
#endif

#endif
