/* SPDX-License-Identifier: BSD-2-Clause */
/* Bytes with file descriptors, over a UNIX socket. */
#ifndef TESTS_FD_MESSAGE_H
#define TESTS_FD_MESSAGE_H

#include <assert.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#define FD_MESSAGE_FDS 64u /* of one message, at most */

/* One sendmsg(2) with MSG_NOSIGNAL and the given flags, and its result. */
static inline ssize_t fd_message_send(int sock, const void *data, size_t len, const int *fds,
                                      size_t n, int flags)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FD_MESSAGE_FDS * sizeof(int))];
    } control;
    struct iovec iov;
    struct msghdr msg;

    assert(n <= FD_MESSAGE_FDS);
    memset(&control, 0, sizeof(control));
    memset(&msg, 0, sizeof(msg));
    iov.iov_base = (void *)data;
    iov.iov_len = len;
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    if (n > 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n * sizeof(int));
    }
    return sendmsg(sock, &msg, MSG_NOSIGNAL | flags);
}

#endif
