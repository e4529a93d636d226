/* SPDX-License-Identifier: BSD-2-Clause */
/* Serves counters to Prometheus by HTTP/1.0 on the loopback interface. */
#include "fusefs/daemon/base/metrics_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/clock.h"
#include "support/minmax.h"
#include "support/number.h"

#define CONNECTIONS   8
#define LIFETIME_MS   2000
#define REQUEST_BYTES 4096

struct connection {
    int fd;           /* -1 in a free entry */
    uint64_t left_ns; /* of the time that the thread may wait with it open */
    size_t received;
    char request[REQUEST_BYTES + 1];
    char *reply; /* NULL until the request is complete */
    size_t sent, len;
};

struct metrics_server {
    int listener;
    int stop; /* eventfd */
    pthread_t thread;
    void (*print)(void *context, FILE *to);
    void *context;
    struct connection connections[CONNECTIONS]; /* used by the thread only */
};

/* --- Address --------------------------------------------------------------------------------- */

/* Returns a port from 1 to 65535, or 0 if the text is none. */
static in_port_t parse_port(const char *text)
{
    uint64_t port;

    return number_parse(text, 10, UINT16_MAX, &port) ? (in_port_t)port : 0;
}

static int take_v4(const char *host, in_port_t port, struct metrics_address *out)
{
    out->at.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    out->len = sizeof(out->at.v4);
    if (inet_pton(AF_INET, host, &out->at.v4.sin_addr) != 1)
        return -EINVAL;
    return ntohl(out->at.v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET ? 0 : -EPERM;
}

static int take_v6(const char *host, in_port_t port, struct metrics_address *out)
{
    out->at.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
    out->len = sizeof(out->at.v6);
    if (inet_pton(AF_INET6, host, &out->at.v6.sin6_addr) != 1)
        return -EINVAL;
    return IN6_IS_ADDR_LOOPBACK(&out->at.v6.sin6_addr) ? 0 : -EPERM;
}

int metrics_address_parse(const char *text, struct metrics_address *out)
{
    char host[INET6_ADDRSTRLEN + 2] = "127.0.0.1";
    const char *colon = strrchr(text, ':');
    in_port_t port = parse_port(colon ? colon + 1 : text);
    size_t n = colon ? (size_t)(colon - text) : 0;

    if (!port || n >= sizeof(host))
        return -EINVAL;
    if (!colon)
        return take_v4(host, port, out);
    memcpy(host, text, n);
    host[n] = '\0';
    if (n < 2 || host[0] != '[' || host[n - 1] != ']')
        return take_v4(host, port, out);
    host[n - 1] = '\0';
    return take_v6(host + 1, port, out);
}

int metrics_listen(const struct metrics_address *address)
{
    int on = 1;
    int fd = socket(address->at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    /* Allows binding the port while connections of an earlier mount linger. */
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(fd, &address->at.any, address->len) == 0 && listen(fd, CONNECTIONS) == 0)
        return fd;
    int err = -errno;
    close(fd);
    return err;
}

/* --- Answers --------------------------------------------------------------------------------- */

/* Answers a request for the status and the headers only. */
static bool is_head(const char *request)
{
    return strncmp(request, "HEAD ", 5) == 0;
}

/* Returns the text of the status line, or NULL if the metrics are requested. */
static const char *refusal(const char *request)
{
    if (strncmp(request, "GET ", 4) != 0 && !is_head(request))
        return "405 Method Not Allowed";
    const char *path = strchr(request, ' ') + 1;
    size_t n = strcspn(path, " \r\n");
    if ((n == 1 && *path == '/') || (n == 8 && memcmp(path, "/metrics", 8) == 0))
        return NULL;
    return "404 Not Found";
}

/*
 * Stores the metrics in *text, which the caller frees, and their length in
 * *len. *text is NULL if memory is exhausted.
 */
static void print_body(struct metrics_server *s, char **text, size_t *len)
{
    FILE *to = open_memstream(text, len);

    if (!to)
        return;
    s->print(s->context, to);
    if (fclose(to) != 0) {
        free(*text);
        *text = NULL;
    }
}

static bool make_reply(struct metrics_server *s, struct connection *c)
{
    const char *refused = refusal(c->request);
    char *body = NULL;
    size_t len = 0;

    if (!refused)
        print_body(s, &body, &len);
    if (!refused && !body)
        return false;
    FILE *to = open_memstream(&c->reply, &c->len);
    if (to) {
        fprintf(to,
                "HTTP/1.0 %s\r\nContent-Type: text/plain; version=0.0.4\r\n"
                "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                refused ? refused : "200 OK", len);
        if (body && !is_head(c->request))
            fwrite(body, 1, len, to);
        if (fclose(to) != 0) {
            free(c->reply);
            c->reply = NULL;
        }
    }
    free(body);
    return c->reply != NULL;
}

/* --- Connections ----------------------------------------------------------------------------- */

static void end_connection(struct connection *c)
{
    close(c->fd);
    free(c->reply);
    *c = (struct connection){.fd = -1};
}

static bool would_block(void)
{
    return errno == EAGAIN || errno == EINTR;
}

/* Returns false if the connection must be closed. */
static bool metrics_server_receive(struct metrics_server *s, struct connection *c)
{
    ssize_t n = recv(c->fd, c->request + c->received, REQUEST_BYTES - c->received, 0);

    if (n < 0)
        return would_block();
    c->received += (size_t)n;
    c->request[c->received] = '\0';
    if (strstr(c->request, "\r\n\r\n") || strstr(c->request, "\n\n"))
        return make_reply(s, c);
    return n > 0 && c->received < REQUEST_BYTES;
}

static bool transmit(struct connection *c)
{
    ssize_t n = send(c->fd, c->reply + c->sent, c->len - c->sent, MSG_NOSIGNAL);

    if (n < 0)
        return would_block();
    c->sent += (size_t)n;
    return c->sent < c->len;
}

static void metrics_server_serve_connection(struct metrics_server *s, struct connection *c,
                                            short events)
{
    bool keep = c->left_ns > 0;

    if (keep && events)
        keep = c->reply ? transmit(c) : metrics_server_receive(s, c);
    if (!keep)
        end_connection(c);
}

/*
 * Accepts a connection. Returns false if descriptors or memory are exhausted;
 * the connection then remains in the listener's queue. Precondition: an entry
 * is free.
 */
static bool metrics_server_accept_one(struct metrics_server *s)
{
    struct connection *c = s->connections;
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    while (c->fd >= 0)
        c++;
    c->fd = fd;
    c->left_ns = LIFETIME_MS * NS_PER_MS;
    return true;
}

/*
 * Fills in entry 0 for the stop event, entry 1 for the listener, and the
 * connections. Returns the number of open connections.
 */
static size_t fill_polls(const struct metrics_server *s, bool accepts, struct pollfd *p)
{
    size_t open = 0;

    for (size_t i = 0; i < CONNECTIONS; i++) {
        const struct connection *c = &s->connections[i];
        p[2 + i] = (struct pollfd){.fd = c->fd, .events = c->reply ? POLLOUT : POLLIN};
        open += c->fd >= 0;
    }
    p[0] = (struct pollfd){.fd = s->stop, .events = POLLIN};
    p[1] =
        (struct pollfd){.fd = accepts && open < CONNECTIONS ? s->listener : -1, .events = POLLIN};
    return open;
}

/*
 * Waits for events and subtracts the time of the wait from that of each open
 * connection. The time of replies is not subtracted, because replies to other
 * clients, or a busy machine, could otherwise end the connection of a client
 * that does not delay anybody.
 */
static int wait_for_clients(struct metrics_server *s, bool accepts, struct pollfd *p)
{
    size_t open = fill_polls(s, accepts, p);
    uint64_t begun = now_ns(), most = LIFETIME_MS * NS_PER_MS;

    for (size_t i = 0; i < CONNECTIONS; i++) {
        if (s->connections[i].fd >= 0)
            most = min_u64(most, s->connections[i].left_ns);
    }
    int n = poll(p, 2 + CONNECTIONS, open || !accepts ? (int)(most / NS_PER_MS) + 1 : -1);
    uint64_t waited = now_ns() - begun;

    for (size_t i = 0; i < CONNECTIONS; i++)
        s->connections[i].left_ns -= min_u64(waited, s->connections[i].left_ns);
    return n;
}

static void *metrics_server_serve(void *arg)
{
    struct metrics_server *s = arg;
    struct pollfd p[2 + CONNECTIONS];
    bool accepts = true;

    for (;;) {
        if (wait_for_clients(s, accepts, p) < 0 && errno != EINTR)
            return NULL;
        if (p[0].revents)
            return NULL;
        for (size_t i = 0; i < CONNECTIONS; i++) {
            if (s->connections[i].fd >= 0)
                metrics_server_serve_connection(s, &s->connections[i], p[2 + i].revents);
        }
        accepts = !p[1].revents || metrics_server_accept_one(s);
    }
}

int metrics_server_open(int listener, void (*print)(void *context, FILE *to), void *context,
                        struct metrics_server **out)
{
    struct metrics_server *s = calloc(1, sizeof(*s));

    if (!s) {
        close(listener);
        return -ENOMEM;
    }
    *s = (struct metrics_server){.listener = listener, .print = print, .context = context};
    for (size_t i = 0; i < CONNECTIONS; i++)
        s->connections[i].fd = -1;
    s->stop = eventfd(0, EFD_CLOEXEC);
    int err = s->stop < 0 ? -errno : -pthread_create(&s->thread, NULL, metrics_server_serve, s);
    if (!err) {
        *out = s;
        return 0;
    }
    if (s->stop >= 0)
        close(s->stop);
    close(listener);
    free(s);
    return err;
}

void metrics_server_close(struct metrics_server *s)
{
    if (!s)
        return;
    eventfd_write(s->stop, 1); /* cannot fail: the counter is far from its limit */
    pthread_join(s->thread, NULL);
    for (size_t i = 0; i < CONNECTIONS; i++) {
        if (s->connections[i].fd >= 0)
            end_connection(&s->connections[i]);
    }
    close(s->stop);
    close(s->listener);
    free(s);
}
