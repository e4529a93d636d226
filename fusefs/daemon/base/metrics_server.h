/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counters for Prometheus: a thread that answers GET / and GET /metrics by HTTP/1.0 on an address
 * of the loopback interface. Every user of the machine can read them.
 *
 * At most 8 connections are open at a time, each for 2 s at most; further ones wait in the
 * listener's queue.
 */
#ifndef FUSEFS_DAEMON_BASE_METRICS_SERVER_H
#define FUSEFS_DAEMON_BASE_METRICS_SERVER_H

#include <netinet/in.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct metrics_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at;
    socklen_t len; /* 0: none */
};

/*
 * "PORT" (of 127.0.0.1), "127.0.0.1:PORT" or "[::1]:PORT". -EINVAL: something else; -EPERM: an
 * address of another interface.
 */
int metrics_address_parse(const char *text, struct metrics_address *out);
/* The listening socket, close-on-exec, or -errno. */
int metrics_listen(const struct metrics_address *address);

struct metrics_server;
/*
 * print() is called by the server's thread for each answer; it must not block. listener becomes the
 * server's, also on failure.
 */
int metrics_server_open(int listener, void (*print)(void *context, FILE *to), void *context,
                        struct metrics_server **out);
/* NULL does nothing. */
void metrics_server_close(struct metrics_server *s);

#ifdef __cplusplus
}
#endif

#endif
