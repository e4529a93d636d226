/* SPDX-License-Identifier: BSD-2-Clause */
/* Sends and receives bytes with file descriptors over a UNIX socket. */
#ifndef SUPPORT_FD_MESSAGE_H
#define SUPPORT_FD_MESSAGE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FD_MESSAGE_MAX 253u /* descriptors of one message: SCM_MAX_FD of Linux */

/*
 * Holds descriptors that came with a message or its parts. The owner of the
 * struct closes them.
 */
struct fd_message {
    size_t n;
    bool dropped; /* others came, for which there was no room */
    int fd[FD_MESSAGE_MAX];
};

union fd_message_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(FD_MESSAGE_MAX * sizeof(int))];
};

/*
 * Calls sendmsg(2) once with n descriptors, MSG_NOSIGNAL and the given flags, and
 * returns its result.
 */
static inline ssize_t fd_message_send(int sock, const void *data, size_t len, const int *fds,
                                      size_t n, int flags)
{
    union fd_message_control control;
    struct iovec iov;
    struct msghdr msg;

    assert(n <= FD_MESSAGE_MAX);
    memset(&msg, 0, sizeof(msg));
    iov.iov_base = (void *)data;
    iov.iov_len = len;
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    if (n > 0) {
        memset(&control, 0, CMSG_SPACE(n * sizeof(int)));
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(&control.align), fds, n * sizeof(int));
    }
    return sendmsg(sock, &msg, MSG_NOSIGNAL | flags);
}

/*
 * Calls recvmsg(2) once with MSG_CMSG_CLOEXEC and the given flags, and returns
 * its result. The descriptors are added to those in `in`, up to `room` in total.
 * The socket must not have SO_PASSCRED or SO_TIMESTAMP, because only the first
 * control message is read.
 */
static inline ssize_t fd_message_receive(int sock, void *data, size_t len, struct fd_message *in,
                                         size_t room, int flags)
{
    union fd_message_control control;
    struct iovec iov;
    struct msghdr msg;
    int fd;

    memset(&msg, 0, sizeof(msg));
    iov.iov_base = data;
    iov.iov_len = len;
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.bytes;
    msg.msg_controllen = sizeof(control.bytes);
    ssize_t got = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | flags);
    const struct cmsghdr *c = got >= 0 ? CMSG_FIRSTHDR(&msg) : NULL;
    in->dropped |= (msg.msg_flags & MSG_CTRUNC) != 0;
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
        return got;
    for (size_t at = CMSG_LEN(0); at < c->cmsg_len; at += sizeof(fd)) {
        memcpy(&fd, (const char *)c + at, sizeof(fd));
        if (in->n < room && in->n < FD_MESSAGE_MAX) {
            in->fd[in->n++] = fd;
        } else {
            close(fd);
            in->dropped = true;
        }
    }
    return got;
}

/* Closes the descriptors and clears `dropped`. */
static inline void fd_message_close(struct fd_message *in)
{
    while (in->n)
        close(in->fd[--in->n]);
    in->dropped = false;
}

#endif
