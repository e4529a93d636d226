/* SPDX-License-Identifier: BSD-2-Clause */
/* The mount's UNIX socket: descriptors travel over it, which ioctls cannot carry. */
#ifndef CLIENT_LIB_SOCKET_H
#define CLIENT_LIB_SOCKET_H

#include "client/lib/client_internal.h"

/* Both wait for 10 s at most, signals or not: -ETIMEDOUT. */

/* Hands the memory fd to the daemon; the token stands for it in REGISTER. */
int socket_send_memory(struct gpunvme *g, int fd, uint64_t *token);

/* At most this many descriptors come with an answer. */
#define SOCKET_FDS 2
/*
 * A part of a lease: exactly n descriptors, the caller's from now on. -EPROTO: another number of
 * them; -ENOENT: the daemon knows no such lease.
 */
int socket_request(struct gpunvme *g, const struct gpunvme_request *request,
                   struct gpunvme_reply *reply, int *fds, unsigned n);

#endif
