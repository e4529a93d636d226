/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests of the kernel that libfuse 3.14 has no operation for, seen before libfuse does.
 *
 * SYNCFS (50) and STATX (52, Linux 6.6), which carries the birth time, are answered here. TMPFILE
 * (51, Linux 6.1) is passed on as CREATE with an empty name, which no other request has. Of other
 * requests it notes a flag that libfuse does not pass on.
 */
#ifndef FUSEFS_DAEMON_REQUEST_RAW_REQUESTS_H
#define FUSEFS_DAEMON_REQUEST_RAW_REQUESTS_H

#include <stdbool.h>
#include <stddef.h>

struct daemon;

/*
 * Handles one request: buf has len bytes read from the connection fd. Returns
 * true if it was answered, and false if libfuse must handle it, perhaps
 * modified.
 */
bool raw_request(struct daemon *d, int fd, void *buf, size_t len);
/*
 * Returns whether the request that this thread serves clears set-id bits. The
 * kernel reports that (HANDLE_KILLPRIV_V2) in WRITE, and if SETATTR, OPEN and
 * CREATE truncate, for callers without CAP_FSETID.
 */
bool raw_clears_setid(void);

#endif
