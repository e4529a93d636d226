/*
 * vfio-user messages on a stream socket: one is received at a time, in as many pieces as it comes,
 * with the descriptors that travel beside it. The peer is not trusted.
 */
#ifndef SIM_SERVE_SERVE_MESSAGE_H
#define SIM_SERVE_SERVE_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "blockdev/vfio_user/vfio_user_spec.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MESSAGE_MAX_FDS     8
#define MESSAGE_MAX_XFER    65536 /* bytes of data in one region access */
#define MESSAGE_MAX_PAYLOAD (sizeof(struct vfio_user_region_access) + MESSAGE_MAX_XFER)

struct message {
    struct vfio_user_header header;
    unsigned char payload[MESSAGE_MAX_PAYLOAD];
    size_t have; /* bytes received, header included */
    int fds[MESSAGE_MAX_FDS];
    unsigned n_fds;
    bool too_many_fds; /* the rest were closed */
};

/* What answers a message. error: an errno; with one, nothing else is sent. */
struct reply {
    unsigned char payload[MESSAGE_MAX_PAYLOAD];
    size_t len;
    int fd; /* sent along; not closed. -1: none */
    int error;
};

/* Bytes of payload of a message that has come whole. */
static inline size_t message_len(const struct message *m)
{
    return m->header.size - sizeof(m->header);
}

/*
 * Receives what is there, without waiting: 1 when the message is whole, 0 when more is to come.
 * -ECONNRESET: the peer has closed. -EPROTO: the header's size cannot be; what follows has no
 * beginning, so the connection is of no more use. The message must be zero at first.
 */
int message_receive(int sock, struct message *m);
/* Closes its descriptors and makes it ready for the next. */
void message_done(struct message *m);
/* Sends the answer to `to`: 0 or -errno, -ETIMEDOUT when the peer does not read. */
int message_reply(int sock, const struct vfio_user_header *to, const struct reply *r);

#ifdef __cplusplus
}
#endif

#endif
