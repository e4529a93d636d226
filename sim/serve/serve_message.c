/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Frames messages. Header and payload are received separately, so that
 * descriptors belong to one message only.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sim/serve/serve_message.h"

static void keep_fd(struct serve_message *m, int fd)
{
    if (m->n_fds < MESSAGE_MAX_FDS) {
        m->fds[m->n_fds++] = fd;
    } else {
        close(fd);
        m->too_many_fds = true;
    }
}

static void keep_fds(struct serve_message *m, struct msghdr *h)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
            keep_fd(m, fd);
        }
    }
    if (h->msg_flags & MSG_CTRUNC) /* the kernel has closed the remaining ones */
        m->too_many_fds = true;
}

/* Receives up to len bytes: their number, 0 if there are none, -errno. */
static ssize_t receive_some(int sock, struct serve_message *m, void *to, size_t len)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(MESSAGE_MAX_FDS * sizeof(int))];
    struct iovec iov = {.iov_base = to, .iov_len = len};
    struct msghdr h = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    if (n > 0) {
        keep_fds(m, &h);
        return n;
    }
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
    for (unsigned i = 0; i < m->n_fds; i++)
        close(m->fds[i]);
    m->n_fds = 0;
    m->too_many_fds = false;
    m->have = 0;
}

static void attach_fd(struct msghdr *h, char *control, size_t len, int fd)
{
    h->msg_control = control;
    h->msg_controllen = len;
    struct cmsghdr *c = CMSG_FIRSTHDR(h);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
}

/* Sends the message, within the socket's time limit. */
static int send_all(int sock, struct msghdr *h)
{
    while (h->msg_iovlen > 0) {
        ssize_t n = sendmsg(sock, h, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        h->msg_control = NULL;
        h->msg_controllen = 0;
        while (h->msg_iovlen > 0 && (size_t)n >= h->msg_iov->iov_len) {
            n -= (ssize_t)h->msg_iov->iov_len;
            h->msg_iov++;
            h->msg_iovlen--;
        }
        if (h->msg_iovlen > 0) {
            h->msg_iov->iov_base = (char *)h->msg_iov->iov_base + n;
            h->msg_iov->iov_len -= (size_t)n;
        }
    }
    return 0;
}

int serve_message_reply(int sock, const struct vfio_user_header *to, const struct serve_reply *r)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct vfio_user_header head = {
        .id = to->id,
        .command = to->command,
        .size = (uint32_t)(sizeof(head) + (r->error ? 0 : r->len)),
        .flags = VFIO_USER_TYPE_REPLY | (r->error ? VFIO_USER_ERROR : 0),
        .error = (uint32_t)r->error,
    };
    struct iovec iov[2] = {
        {.iov_base = &head, .iov_len = sizeof(head)},
        {.iov_base = (void *)r->payload, .iov_len = r->len},
    };
    struct msghdr h = {.msg_iov = iov, .msg_iovlen = !r->error && r->len ? 2 : 1};

    assert(r->error >= 0 && r->len <= sizeof(((struct serve_message *)0)->payload));
    if (!r->error && r->fd >= 0)
        attach_fd(&h, control, sizeof(control), r->fd);
    return send_all(sock, &h);
}
