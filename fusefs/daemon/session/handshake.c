/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Negotiates with the kernel. libfuse negotiates the flags that it knows. Its
 * reply to INIT goes into a pipe, and this file adds a flag that some versions
 * of libfuse do not know. Then the connection replaces the pipe under the same
 * descriptor number. Every version of libfuse accepts a descriptor as
 * /dev/fd/N; some builds leave out functions for custom I/O.
 */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/session/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The kernel queues INIT before mount(2) returns. */
#define INIT_MS 10000
/*
 * A request fits; the kernel demands room for at least 4 KiB of data and the
 * headers.
 */
#define REQUEST_ROOM (128u << 10)

struct init_reply {
    struct fuse_out_header head;
    struct fuse_init_out body;
};

/* Returns the flags that the kernel offers. */
static uint32_t offer_of(const char *request, size_t len)
{
    const struct fuse_init_in *init = (const void *)(request + sizeof(struct fuse_in_header));
    size_t needed =
        sizeof(struct fuse_in_header) + offsetof(struct fuse_init_in, flags) + sizeof(init->flags);

    return len >= needed ? init->flags : 0;
}

/*
 * Accepts HANDLE_KILLPRIV_V2: this file system clears set-id bits when a file
 * is written or truncated, so that the kernel need not ask for
 * security.capability before each write.
 */
static void handshake_complete(struct init_reply *reply, size_t len, uint32_t offer)
{
    if (len == sizeof(*reply))
        reply->body.flags |= offer & FUSE_HANDLE_KILLPRIV_V2;
}

/* Reads INIT. Returns its length, or -errno. */
static ssize_t handshake_receive(int fd, char *request)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int ready = poll(&p, 1, INIT_MS);

    if (ready <= 0)
        return ready == 0 ? -ETIMEDOUT : -errno;
    ssize_t n = read(fd, request, REQUEST_ROOM);
    return n < 0 ? -errno : n;
}

/*
 * Lets libfuse serve INIT, reads its reply from the pipe, completes it and
 * sends it to the kernel.
 */
static int handshake_answer(struct fuse_session *session, int fd, int replies, char *request)
{
    struct init_reply reply;
    ssize_t len = handshake_receive(fd, request);

    if (len < 0)
        return (int)len;
    uint32_t offer = offer_of(request, (size_t)len);
    fuse_session_process_buf(session, &(struct fuse_buf){.mem = request, .size = (size_t)len});
    ssize_t n = read(replies, &reply, sizeof(reply));
    if (n <= 0)
        return -EPROTO;
    handshake_complete(&reply, (size_t)n, offer);
    if (write(fd, &reply, (size_t)n) != n)
        return -errno;
    return reply.head.error;
}

/* Gives the session the write end of a pipe. The session closes it. */
static int give_pipe(struct fuse_session *session, int *replies)
{
    char name[32];
    int ends[2];

    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return -errno;
    snprintf(name, sizeof(name), "/dev/fd/%d", ends[1]);
    if (fuse_session_mount(session, name) != 0) {
        close(ends[0]);
        close(ends[1]);
        return -ENOTSUP;
    }
    *replies = ends[0];
    return 0;
}

int handshake_run(struct fuse_session *session, int fd)
{
    char *request = calloc(1, REQUEST_ROOM);
    int replies = -1;
    int err = request ? give_pipe(session, &replies) : -ENOMEM;

    if (!err)
        err = handshake_answer(session, fd, replies, request);
    if (!err && dup3(fd, fuse_session_fd(session), O_CLOEXEC) < 0)
        err = -errno;
    if (replies >= 0)
        close(replies);
    close(fd);
    free(request);
    return err;
}
