/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Serves counters to Prometheus. A thread answers GET / and GET /metrics by
 * HTTP/1.0 on an address of the loopback interface. Every user of the machine
 * can read them.
 *
 * At most 8 connections are open at a time. The thread waits at most 2 s while
 * a connection is open. The time in which the thread prints and sends is not
 * counted. Further connections wait in the queue of the listener.
 */
#ifndef FUSEFS_DAEMON_BASE_METRICS_SERVER_H
#define FUSEFS_DAEMON_BASE_METRICS_SERVER_H

#include <netinet/in.h>
#include <stdio.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct metrics_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at;
    socklen_t len; /* 0 without an address */
};

/*
 * Parses "PORT" (on 127.0.0.1), "127.0.0.1:PORT" or "[::1]:PORT". Returns
 * -EPERM for an address of another interface, and -EINVAL for anything else.
 */
int metrics_address_parse(const char *text, struct metrics_address *out);
/* Returns the listening socket, which is close-on-exec, or -errno. */
int metrics_listen(const struct metrics_address *address);

struct metrics_server;
/*
 * Starts a server. Its thread calls print() for each reply; print() must not
 * block. The server owns the listener, even on failure.
 */
int metrics_server_open(int listener, void (*print)(void *context, FILE *to), void *context,
                        struct metrics_server **out);
/* Stops the server. NULL does nothing. */
void metrics_server_close(struct metrics_server *s);

__END_DECLS

#endif
