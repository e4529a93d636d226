/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests of the kernel that libfuse 3.14 has no operation for, seen before libfuse does.
 *
 * STATX (52, Linux 6.6) is answered here: it carries the birth time. TMPFILE (51, Linux 6.1) is
 * passed on as CREATE with an empty name, which no other request has.
 */
#ifndef FUSEFS_DAEMON_RAW_REQUESTS_H
#define FUSEFS_DAEMON_RAW_REQUESTS_H

#include <stdbool.h>
#include <stddef.h>

struct daemon;

/*
 * buf holds len bytes read from the connection fd: one request. true: it was answered; false: it
 * is for libfuse, perhaps changed. Called with cancellation of the thread enabled, which is off
 * while the file system is called.
 */
bool raw_request(struct daemon *d, int fd, void *buf, size_t len);

#endif
