/* SPDX-License-Identifier: BSD-2-Clause */
/* The mount's UNIX socket: descriptors travel over it, which ioctls cannot carry. */
#ifndef CLIENT_LIB_SOCKET_H
#define CLIENT_LIB_SOCKET_H

#include "client/lib/client_internal.h"

/* Both functions wait for 10 s at most, also with signals: -ETIMEDOUT. */

/* Sends the memory fd to the daemon; the token stands for it in REGISTER. */
int socket_send_memory(struct connection *g, int fd, uint64_t *token);

/* The most descriptors of a reply. */
#define SOCKET_FDS 2
/*
 * Requests a part of a lease, which comes with exactly n descriptors that the caller then owns.
 * -EPROTO: another number of descriptors; -ENOENT: the daemon has no such lease.
 */
int socket_request(struct connection *g, const struct gpunvme_request *request,
                   struct gpunvme_reply *reply, int *fds, unsigned n);

#endif
