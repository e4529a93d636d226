/*
 * Closes descriptors of files that others chose. close(2) may wait for whoever stands behind the
 * file (a FUSE server, the peer of a socket that lingers), perhaps for ever, so each is closed by a
 * thread of its own.
 */
#ifndef FUSEFS_DAEMON_CLOSER_H
#define FUSEFS_DAEMON_CLOSER_H

#include <stdbool.h>
#include <sys/types.h>

struct closing;

/* One thread uses it. */
struct closer {
    struct closing *slots[16];
};

/* Takes fd, which came from uid. */
void closer_close(struct closer *c, int fd, uid_t uid);
/* Too much that came from uid is being closed: take nothing more. */
bool closer_is_busy(struct closer *c, uid_t uid);
/* Gives what is still being closed a moment, then leaves it to its thread. */
void closer_end(struct closer *c);

#endif
