/* SPDX-License-Identifier: BSD-2-Clause */
/* Uses the mount's UNIX socket for descriptors, which ioctls cannot carry. */
#ifndef CLIENT_LIB_SOCKET_H
#define CLIENT_LIB_SOCKET_H

#include "client/lib/client_internal.h"

/* All functions wait up to 10 s, also when signals arrive, and then return -ETIMEDOUT. */

/* Sends the memory fd to the daemon. REGISTER identifies it by the token. */
int socket_send_memory(struct connection *g, int fd, uint64_t *token);
/*
 * Sends up to FD_MESSAGE_MAX descriptors in one message. The token identifies all
 * of them.
 */
int socket_send_several(struct connection *g, const int *fds, unsigned n, uint64_t *token);

/* Maximum number of descriptors in a reply. */
#define SOCKET_FDS 2
/*
 * Requests a part of a lease, which arrives with exactly n descriptors that the caller then owns.
 * Returns -EPROTO for another number of descriptors, and -ENOENT if the daemon has no such lease.
 */
int socket_request(struct connection *g, const struct gpunvme_request *request,
                   struct gpunvme_reply *reply, int *fds, unsigned n);

#endif
