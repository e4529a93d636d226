/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Closes descriptors received from clients. close(2) may block for an unbounded
 * time in the file's implementation (the flush of a FUSE file, the last
 * reference to a TCP socket with SO_LINGER), so the caller never closes them
 * itself.
 */
#ifndef FUSEFS_DAEMON_BASE_CLOSER_H
#define FUSEFS_DAEMON_BASE_CLOSER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct closing;

/* Used by one thread only. */
struct closer {
    struct closing *entries[128];
};

/* Takes ownership of n descriptors, which uid sent in one message. */
void closer_close(struct closer *c, const int *fds, size_t n, uid_t uid);
/*
 * Returns true if uid's entries, or those of all users, are busy. The caller
 * then receives no more descriptors from uid. Some entries are reserved for
 * root.
 */
bool closer_is_busy(struct closer *c, uid_t uid);
/* Waits up to 1 s for the close calls under way, then detaches their threads. */
void closer_end(struct closer *c);

/*
 * Closes a socket and the descriptors in its queue without blocking: an exiting
 * task holds the last reference, and a task that exits does not linger.
 */
void closer_discard(int socket);

#endif
