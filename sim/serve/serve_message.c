/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Frames messages. Header and payload are received separately, so that
 * descriptors belong to one message only.
 */
#include <assert.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sim/serve/serve.h"

/* Receives up to len bytes: their number, 0 if there are none, -errno. */
static ssize_t receive_some(int sock, struct serve_message *m, void *to, size_t len)
{
    ssize_t n = fd_message_receive(sock, to, len, &m->fds, MESSAGE_MAX_FDS, MSG_DONTWAIT);

    if (n > 0)
        return n;
    if (n == 0)
        return -ECONNRESET;
    return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

/* Receives the first `until` bytes; 1 if they are complete. */
static int receive_until(int sock, struct serve_message *m, void *to, size_t from, size_t until)
{
    while (m->have < until) {
        ssize_t n = receive_some(sock, m, (unsigned char *)to + (m->have - from), until - m->have);

        if (n <= 0)
            return (int)n;
        m->have += (size_t)n;
    }
    return 1;
}

int serve_message_receive(int sock, struct serve_message *m)
{
    const size_t head = sizeof(m->header);
    int rc = receive_until(sock, m, &m->header, 0, head);

    if (rc != 1)
        return rc;
    if (m->header.size < head || m->header.size - head > sizeof(m->payload))
        return -EPROTO;
    return receive_until(sock, m, m->payload, head, m->header.size);
}

void serve_message_done(struct serve_message *m)
{
    fd_message_close(&m->fds);
    m->have = 0;
}

/*
 * Sends the bytes, with the descriptor unless it is -1. Each sendmsg(2) has the
 * socket's time limit.
 */
static int send_all(int sock, const void *bytes, size_t len, int fd)
{
    for (const char *at = bytes; len > 0;) {
        ssize_t n = TEMP_FAILURE_RETRY(fd_message_send(sock, at, len, &fd, fd >= 0, 0));

        if (n < 0)
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        fd = -1;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

int serve_message_reply(int sock, const struct vfio_user_header *to, const struct serve_reply *r)
{
    struct vfio_user_header head = {
        .id = to->id,
        .command = to->command,
        .size = (uint32_t)(sizeof(head) + (r->error ? 0 : r->len)),
        .flags = VFIO_USER_TYPE_REPLY | (r->error ? VFIO_USER_ERROR : 0),
        .error = (uint32_t)r->error,
    };

    assert(r->error >= 0 && r->len <= sizeof(((struct serve_message *)0)->payload));
    int rc = send_all(sock, &head, sizeof(head), r->error ? -1 : r->fd);
    return rc ? rc : send_all(sock, r->payload, head.size - sizeof(head), -1);
}
