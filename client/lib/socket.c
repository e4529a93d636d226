/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the client side of the mount's socket. */
#include "client/lib/socket.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/clock.h"
#include "support/fd_message.h"

#define SOCKET_TIMEOUT_S 10

/* Waits until there is something to receive, also when signals arrive meanwhile. */
static int socket_await(int s)
{
    uint64_t end = now_ms() + SOCKET_TIMEOUT_S * MS_PER_S;
    struct pollfd p = {.fd = s, .events = POLLIN};

    for (int64_t left; (left = (int64_t)(end - now_ms())) > 0;) {
        int n = poll(&p, 1, (int)left);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
    return -ETIMEDOUT;
}

static int socket_connect(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = SOCKET_TIMEOUT_S};
    size_t len = strnlen(path, sizeof(addr.sun_path));

    if (len == 0 || len == sizeof(addr.sun_path))
        return -ENOTSUP;
    memcpy(addr.sun_path, path, len);
    if (path[0] == '@') /* abstract name */
        addr.sun_path[0] = '\0';
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return -errno;
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    if (path[0] != '@')
        size++;
    uint64_t end = now_ms() + SOCKET_TIMEOUT_S * MS_PER_S;
    int err;
    do
        err = connect(s, (struct sockaddr *)&addr, size) == 0 ? 0 : -errno;
    while (err == -EINTR && now_ms() < end); /* a signal came before the server accepted */
    if (!err)
        return s;
    close(s);
    return err == -EAGAIN || err == -EINTR ? -ETIMEDOUT : err;
}

static int open_socket(struct connection *g)
{
    int s = socket_connect(g->info.socket);

    if (s < 0)
        return gpunvme_fail(s, "socket of the mount: %s", strerror(-s));
    if (send(s, g->info.cookie, sizeof(g->info.cookie), MSG_NOSIGNAL) ==
        (ssize_t)sizeof(g->info.cookie))
        return s;
    close(s);
    return gpunvme_fail(-EIO, "the mount's socket was closed");
}

static int send_fds(int s, const int *fds, unsigned n)
{
    uint64_t zero = 0;

    return fd_message_send(s, &zero, sizeof(zero), fds, n, 0) == (ssize_t)sizeof(zero) ? 0 : -EIO;
}

int socket_send_several(struct connection *g, const int *fds, unsigned n, uint64_t *token)
{
    assert(n && n <= FD_MESSAGE_MAX);
    int s = open_socket(g);

    if (s < 0)
        return s;
    int err = send_fds(s, fds, n);
    if (!err)
        err = socket_await(s);
    if (!err && recv(s, token, sizeof(*token), MSG_DONTWAIT) != (ssize_t)sizeof(*token))
        err = -EIO;
    close(s);
    return err ? gpunvme_fail(err, "the mount's socket did not take the memory: %s",
                              err == -EIO ? "it was closed" : strerror(-err))
               : 0;
}

int socket_send_memory(struct connection *g, int fd, uint64_t *token)
{
    return socket_send_several(g, &fd, 1, token);
}

/* Receives one complete message, which the daemon sends in one call. */
static int socket_receive(int s, struct gpunvme_reply *reply, int *fds, unsigned n)
{
    struct fd_message in = {.n = 0};
    ssize_t got = fd_message_receive(s, reply, sizeof(*reply), &in, n, MSG_DONTWAIT);

    if (got < 0)
        return -errno;
    /* The message has room for all, so this process has no descriptor left. */
    bool is_full = in.dropped && in.n < n;
    if (got == (ssize_t)sizeof(*reply) && in.n == n && !in.dropped) {
        memcpy(fds, in.fd, n * sizeof(*fds));
        return 0;
    }
    fd_message_close(&in);
    if (is_full)
        return -EMFILE;
    return got ? -EPROTO : -ENOENT;
}

static int ask_failed(int err)
{
    if (err == -ENOENT)
        return gpunvme_fail(err, "the mount closed its socket: the lease has ended");
    if (err == -EPROTO)
        return gpunvme_fail(err, "the mount's socket answered nonsense");
    return gpunvme_fail(err, "the mount's socket does not hand out the lease: %s", strerror(-err));
}

int socket_request(struct connection *g, const struct gpunvme_request *request,
                   struct gpunvme_reply *reply, int *fds, unsigned n)
{
    assert(n <= SOCKET_FDS);
    int s = open_socket(g);
    if (s < 0)
        return s;
    int err =
        send(s, request, sizeof(*request), MSG_NOSIGNAL) == (ssize_t)sizeof(*request) ? 0 : -EIO;
    if (!err)
        err = socket_await(s);
    if (!err)
        err = socket_receive(s, reply, fds, n);
    close(s);
    return err ? ask_failed(err) : 0;
}
