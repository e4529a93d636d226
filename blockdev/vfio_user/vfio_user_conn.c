/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Exchanges messages over the socket, one command at a time, with a deadline.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "blockdev/vfio_user/vfio_user_internal.h"
#include "support/clock.h"

/*
 * Maximum length of a server's command with its data, which is read only to
 * find the next message.
 */
#define MAX_REFUSED (VFIO_USER_DEFAULT_DATA_XFER_SIZE + 4096u)

static int conn_wrong(struct vfio_user_conn *c, const char *trouble)
{
    c->trouble = trouble;
    return -EPROTO;
}

int vfio_user_break(struct vfio_user_conn *c, const char *trouble)
{
    __atomic_store_n(&c->gone, true, __ATOMIC_RELAXED);
    /* The server then releases our memory, and a poll sees the end. */
    shutdown(c->fd, SHUT_RDWR);
    return conn_wrong(c, trouble);
}

/* Returns 0 if the socket may be ready or broken, or -ETIMEDOUT. */
static int conn_wait_for(const struct vfio_user_conn *c, short events, uint64_t deadline)
{
    for (;;) {
        struct pollfd p = {.fd = c->fd, .events = events};
        uint64_t now = now_ns();
        uint64_t ms = now < deadline ? (deadline - now + 999999) / 1000000 : 0;

        if (ms == 0)
            return -ETIMEDOUT;
        if (poll(&p, 1, ms < 1000 ? (int)ms : 1000) > 0)
            return 0;
    }
}

/* Called after a failed call on the socket. Returns 0 to try again. */
static int after_error(const struct vfio_user_conn *c, short events, uint64_t deadline)
{
    if (errno == EAGAIN || errno == EINTR)
        return conn_wait_for(c, events, deadline);
    return -ECONNRESET;
}

/* Some servers read a payload with one call: one sendmsg() if possible. */
static int send_bytes(const struct vfio_user_conn *c, const void *bytes, size_t len, int fd,
                      uint64_t deadline)
{
    const char *at = bytes;

    while (len) {
        ssize_t n = fd_message_send(c->fd, at, len, &fd, fd >= 0 && at == bytes, MSG_DONTWAIT);
        int rc = n < 0 ? after_error(c, POLLOUT, deadline) : 0;
        if (rc)
            return rc;
        at += n < 0 ? 0 : n;
        len -= n < 0 ? 0 : (size_t)n;
    }
    return 0;
}

static int recv_bytes(struct vfio_user_conn *c, struct fd_message *fds, void *bytes, size_t len,
                      uint64_t deadline)
{
    char *at = bytes;

    while (len) {
        ssize_t n =
            fd_message_receive(c->fd, at, len, fds, fds->n + VFIO_USER_MAX_FDS, MSG_DONTWAIT);

        if (n == 0)
            return -ECONNRESET;
        if (n < 0) {
            int rc = after_error(c, POLLIN, deadline);
            if (rc)
                return rc;
            continue;
        }
        if (fds->dropped)
            return conn_wrong(c, "more descriptors than were offered room");
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

static int skip_bytes(struct vfio_user_conn *c, struct fd_message *fds, size_t len,
                      uint64_t deadline)
{
    char sink[4096];
    int rc = 0;

    while (len && rc == 0) {
        size_t part = len < sizeof(sink) ? len : sizeof(sink);

        rc = recv_bytes(c, fds, sink, part, deadline);
        len -= part;
    }
    return rc;
}

/*
 * Refuses a command of the server. It may request access to memory that it
 * cannot map (DMA_READ, DMA_WRITE); but all memory is sent with a descriptor,
 * and the socket is read only between commands.
 */
static int refuse_command(struct vfio_user_conn *c, struct fd_message *fds,
                          const struct vfio_user_header *h, uint64_t deadline)
{
    struct vfio_user_header reply = {.id = h->id,
                                     .command = h->command,
                                     .size = sizeof(reply),
                                     .flags = VFIO_USER_TYPE_REPLY | VFIO_USER_ERROR,
                                     .error = EOPNOTSUPP};
    int rc;

    if (h->size - sizeof(*h) > MAX_REFUSED)
        return conn_wrong(c, "a command longer than there is");
    rc = skip_bytes(c, fds, h->size - sizeof(*h), deadline);
    fd_message_close(fds);
    if (rc || h->flags & VFIO_USER_NO_REPLY)
        return rc;
    return send_bytes(c, &reply, sizeof(reply), -1, deadline);
}

static int take_reply(struct vfio_user_conn *c, struct vfio_user_msg *m, struct fd_message *fds,
                      const struct vfio_user_header *h, uint64_t deadline)
{
    size_t len = h->size - sizeof(*h);
    int rc;

    if (h->id != c->id)
        return conn_wrong(c, "a reply with the id of another command");
    /* Early servers leave the command out of their replies. */
    if (h->command != m->command && h->command != 0)
        return conn_wrong(c, "a reply to another command");
    if (h->flags & VFIO_USER_ERROR) {
        /* The header should be all, but some servers append unused space. */
        rc = len <= VFIO_USER_MAX_REPLY ? skip_bytes(c, fds, len, deadline)
                                        : conn_wrong(c, "a reply longer than was asked for");
        return rc ? rc : h->error > 0 && h->error < 4096 ? (int)h->error : EIO;
    }
    if (len > m->reply_max)
        return conn_wrong(c, "a reply longer than was asked for");
    m->reply_len = len;
    return recv_bytes(c, fds, m->reply, len, deadline);
}

static uint64_t rest_ms(const struct vfio_user_conn *c)
{
    return c->silence_ms < VFIO_USER_REST_MS ? c->silence_ms : VFIO_USER_REST_MS;
}

/*
 * Waits for the reply. Commands of the server may come first; the deadline
 * bounds their number. Returns -EAGAIN if no byte has arrived by `until`. A
 * message whose first byte has arrived must be complete rest_ms() later.
 */
static int wait_reply(struct vfio_user_conn *c, struct vfio_user_msg *m, struct fd_message *fds,
                      uint64_t until)
{
    for (;;) {
        uint64_t deadline = until + rest_ms(c) * NS_PER_MS;
        struct vfio_user_header h;
        int rc = conn_wait_for(c, POLLIN, until) ? -EAGAIN : 0;

        if (rc == 0)
            rc = recv_bytes(c, fds, &h, sizeof(h), deadline);
        if (rc)
            return rc;
        if (h.size < sizeof(h))
            return conn_wrong(c, "a message shorter than its header");
        if ((h.flags & VFIO_USER_TYPE_MASK) == VFIO_USER_TYPE_REPLY)
            return take_reply(c, m, fds, &h, deadline);
        if ((h.flags & VFIO_USER_TYPE_MASK) != VFIO_USER_TYPE_COMMAND)
            return conn_wrong(c, "a message that is neither command nor reply");
        rc = refuse_command(c, fds, &h, deadline);
        if (rc)
            return rc;
    }
}

static int send_command(struct vfio_user_conn *c, const struct vfio_user_msg *m, uint64_t deadline)
{
    unsigned char bytes[sizeof(struct vfio_user_header) + VFIO_USER_MAX_COMMAND];
    struct vfio_user_header h = {.id = ++c->id,
                                 .command = m->command,
                                 .size = (uint32_t)(sizeof(h) + m->len),
                                 .flags = VFIO_USER_TYPE_COMMAND};

    assert(m->len <= VFIO_USER_MAX_COMMAND);
    memcpy(bytes, &h, sizeof(h));
    if (m->len)
        memcpy(bytes + sizeof(h), m->payload, m->len);
    return send_bytes(c, bytes, h.size, m->fd, deadline);
}

static void set_late(struct vfio_user_conn *c, bool late)
{
    __atomic_store_n(&c->late, late, __ATOMIC_RELAXED);
}

/*
 * Counts a register access or reset that was not answered in time. Returns true
 * if no such command has been answered in time for silence_ms.
 */
static bool conn_is_too_slow(struct vfio_user_conn *c)
{
    if (!c->slow_since)
        c->slow_since = now_ns();
    return now_ns() >= c->slow_since + c->silence_ms * NS_PER_MS;
}

/* Sends a command and waits for its reply; no earlier reply is late. */
static int conn_call(struct vfio_user_conn *c, struct vfio_user_msg *m, struct fd_message *fds)
{
    uint64_t until = deadline_after_ms(c->timeout_ms);
    int rc = send_command(c, m, until);

    if (rc == 0)
        rc = wait_reply(c, m, fds, until);
    if (rc >= 0 && m->counts)
        c->slow_since = 0;
    if (rc != -EAGAIN)
        return rc;
    if (!c->silence_ms || (m->counts && conn_is_too_slow(c)))
        return -ETIMEDOUT;
    c->late_command = m->command;
    c->late_since = now_ns();
    set_late(c, true);
    return rc;
}

static int break_unless_late(struct vfio_user_conn *c, int rc)
{
    if (rc < 0 && rc != -EAGAIN)
        vfio_user_break(c, c->trouble);
    return rc;
}

int vfio_user_call(struct vfio_user_conn *c, struct vfio_user_msg *m)
{
    struct fd_message fds = {.n = 0};
    int rc;

    m->reply_len = 0;
    if (c->gone)
        return -EIO;
    assert(!c->late);
    rc = conn_call(c, m, &fds);
    if (rc == 0 && m->fds)
        *m->fds = fds;
    else
        fd_message_close(&fds);
    return break_unless_late(c, rc);
}

/*
 * Returns the end of a wait for a late reply: one deadline in total, then a
 * short moment per call, because thousands of buffers may be unmapped before
 * the reply arrives.
 */
static uint64_t patience(const struct vfio_user_conn *c, unsigned ms, bool counts)
{
    uint64_t until = deadline_after_ms(ms), all = c->late_since + c->timeout_ms * NS_PER_MS;
    uint64_t moment = deadline_after_ms(counts ? VFIO_USER_LATE_MS : VFIO_USER_MOMENT_MS);

    if (until > all)
        until = all;
    return until > moment ? until : moment;
}

int vfio_user_take_late(struct vfio_user_conn *c, unsigned ms, bool counts)
{
    unsigned char dropped[VFIO_USER_MAX_REPLY];
    struct vfio_user_msg m = {
        .command = c->late_command, .reply = dropped, .reply_max = sizeof(dropped)};
    struct fd_message fds = {.n = 0};
    int rc;

    if (c->gone)
        return -EIO;
    assert(c->late);
    rc = wait_reply(c, &m, &fds, patience(c, ms, counts));
    fd_message_close(&fds);
    if (rc == -EAGAIN && counts && conn_is_too_slow(c))
        rc = -ETIMEDOUT;
    if (rc >= 0)
        set_late(c, false);
    return break_unless_late(c, rc);
}

static const char *command_name(uint16_t command)
{
    static const char *const names[] = {
        [VFIO_USER_VERSION] = "VERSION",
        [VFIO_USER_DMA_MAP] = "DMA_MAP",
        [VFIO_USER_DMA_UNMAP] = "DMA_UNMAP",
        [VFIO_USER_DEVICE_GET_INFO] = "DEVICE_GET_INFO",
        [VFIO_USER_DEVICE_GET_REGION_INFO] = "DEVICE_GET_REGION_INFO",
        [VFIO_USER_REGION_READ] = "REGION_READ",
        [VFIO_USER_REGION_WRITE] = "REGION_WRITE",
        [VFIO_USER_DEVICE_RESET] = "DEVICE_RESET",
    };

    assert(command < sizeof(names) / sizeof(names[0]) && names[command]);
    return names[command];
}

int vfio_user_explain(const struct vfio_user_conn *c, uint16_t command, int rc, struct reason *why)
{
    const char *name = command_name(command);

    if (rc > 0)
        return reason_set(why, -EPROTO, "the server refuses %s: %s", name, strerror(rc));
    if (rc == -ETIMEDOUT)
        return reason_set(why, rc, "no answer to %s within %u ms: %s", name, c->timeout_ms,
                          command == VFIO_USER_VERSION
                              ? "the server is busy with another client, paused, or no "
                                "vfio-user; end that client or give it more time (deadline)"
                              : "give the server more time (deadline), or start it again");
    if (rc == -ECONNRESET)
        return reason_set(why, -EPROTO,
                          "the server closed the connection at %s: end its other client, or "
                          "start it again",
                          name);
    return reason_set(why, -EPROTO, "the answer to %s is no vfio-user: %s", name, c->trouble);
}
