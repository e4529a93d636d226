/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * vfio-user messages on a stream socket. One message with its descriptors is
 * received at a time, possibly in parts. The peer is not trusted.
 */
#ifndef SIM_SERVE_SERVE_MESSAGE_H
#define SIM_SERVE_SERVE_MESSAGE_H

#include <stddef.h>

#include "blockdev/vfio_user/vfio_user_spec.h"
#include "support/fd_message.h"

#define MESSAGE_MAX_FDS     8
#define MESSAGE_MAX_XFER    65536 /* bytes of data in one region access */
#define MESSAGE_MAX_PAYLOAD (sizeof(struct vfio_user_region_access) + MESSAGE_MAX_XFER)

struct serve_message {
    struct vfio_user_header header;
    unsigned char payload[MESSAGE_MAX_PAYLOAD];
    size_t have;           /* bytes received, including the header */
    struct fd_message fds; /* up to MESSAGE_MAX_FDS */
};

/*
 * The reply to a message. `error` is an errno; a reply with an error has no
 * payload.
 */
struct serve_reply {
    unsigned char payload[MESSAGE_MAX_PAYLOAD];
    size_t len;
    int fd; /* sent with the reply and not closed, or -1 */
    int error;
};

/* Returns the bytes of payload of a complete message. */
static inline size_t serve_message_len(const struct serve_message *m)
{
    return m->header.size - sizeof(m->header);
}

/*
 * Receives without waiting. Returns 1 if the message is complete, and 0 if it
 * is not yet. -ECONNRESET means that the peer has closed. -EPROTO means that
 * the size in the header is invalid: the next message cannot be found, so the
 * connection is unusable. Precondition: the message was zeroed.
 */
int serve_message_receive(int sock, struct serve_message *m);
/* Closes the descriptors of the message and zeroes it for the next one. */
void serve_message_done(struct serve_message *m);
/* Replies. Returns 0 or -errno: -ETIMEDOUT if the peer does not read. */
int serve_message_reply(int sock, const struct vfio_user_header *to, const struct serve_reply *r);

#endif
