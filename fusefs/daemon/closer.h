/*
 * Closes descriptors received from clients. close(2) may block for an unbounded
 * time in the file's implementation (a FUSE server, a TCP socket with
 * SO_LINGER), so each descriptor is closed by a thread of its own.
 */
#ifndef FUSEFS_DAEMON_CLOSER_H
#define FUSEFS_DAEMON_CLOSER_H

#include <stdbool.h>
#include <sys/types.h>

struct closing;

/* Used by one thread only. */
struct closer {
    struct closing *slots[16];
};

/* Takes ownership of fd, which uid sent. */
void closer_close(struct closer *c, int fd, uid_t uid);
/*
 * True when uid's slots, or all slots but one user's share, are busy: receive
 * no more descriptors.
 */
bool closer_is_busy(struct closer *c, uid_t uid);
/*
 * Waits up to 1 s for the close calls under way, then detaches their threads.
 */
void closer_end(struct closer *c);

#endif
