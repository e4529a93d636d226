/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Divides the session threads between users, by a ledger. If a user occupies a
 * full share, the next request of that user is copied to a queue, and its
 * thread receives another request. So requests that block leave threads to
 * other users.
 *
 * Requests that another request may wait for are served at once and not charged:
 * write-back, and those that end something.
 *
 * Any thread may call the functions.
 */
#ifndef FUSEFS_DAEMON_SESSION_SESSION_SHARE_H
#define FUSEFS_DAEMON_SESSION_SESSION_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/cdefs.h>
#include <sys/types.h>

__BEGIN_DECLS

struct session_share;

/* This struct names the user who is charged for a request. */
struct session_charge {
    bool charged;
    uid_t uid;
};

/*
 * `threads` is the number of charges at a time, of which `for_root` are left to
 * root. `bytes` bounds the copies of queued requests, of which a user may have
 * half; the next requests of that user are served at once. Returns NULL if
 * memory is exhausted.
 */
struct session_share *session_share_new(unsigned threads, unsigned for_root, size_t bytes);
/* Drops queued requests. Called after their connection has ended. */
void session_share_free(struct session_share *s);

/*
 * Charges the user of a request of len bytes. Returns true if it is to be served
 * now, and false if it was copied to the queue.
 */
bool session_share_begin(struct session_share *s, const void *request, size_t len,
                         struct session_charge *charge);
/*
 * Ends the charge of a request that was served. Returns 0, or the length of
 * a queued request, which is moved to `buf` with its charge and is to be served
 * next. `buf` has room for every request.
 */
size_t session_share_end(struct session_share *s, struct session_charge *charge, void *buf);

__END_DECLS

#endif
