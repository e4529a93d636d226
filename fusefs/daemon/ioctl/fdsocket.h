/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the descriptor socket, a UNIX socket that carries the file
 * descriptors which a restricted FUSE ioctl cannot carry. For REGISTER a client
 * sends descriptors and receives a token that stands for them. For a lease a
 * client sends a struct gpunvme_request and receives descriptors.
 *
 * The socket has an abstract name, so a killed daemon leaves no file behind. A
 * token is 64 random bits, bound to the connection's user (SO_PEERCRED), valid
 * once and for LIFETIME_S seconds. Tokens, connections and unread replies are
 * bounded in number: a connection with too many unread replies is closed.
 *
 * The first 8 bytes of a connection are the cookie of INFO. A peer without it
 * is not served, and its messages are not received. The connection of such a
 * peer occupies no place of the peers that sent the cookie. It is closed early
 * if many such connections wait. The other connections, the tokens and their
 * descriptors are shared between users by ledger.h, which reserves some for
 * root.
 */
#ifndef FUSEFS_DAEMON_IOCTL_FDSOCKET_H
#define FUSEFS_DAEMON_IOCTL_FDSOCKET_H

#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>

#include "support/fd_message.h"

__BEGIN_DECLS

struct fdsocket;
struct gpunvme_request;
struct gpunvme_reply;
struct gq_segment;

/* Serves requests for descriptors. */
struct fdsocket_handler {
    /*
     * Fills in *reply and up to 2 descriptors, which the socket closes after
     * sending. Returns the number of descriptors, or -errno, after which the
     * connection is closed. Called by the socket's thread.
     */
    int (*serve)(void *context, const struct gpunvme_request *request, uid_t uid,
                 struct gpunvme_reply *reply, int fds[2]);
    void *context;
};

/*
 * Makes the listener. Called before the sandbox forbids new sockets. Returns a
 * descriptor or -errno.
 */
int fdsocket_listen(void);
/*
 * Serves the listener. Takes ownership of it, even if the call fails, and
 * copies the handler. If the handler is NULL, every request for descriptors is
 * refused.
 */
int fdsocket_open(int listener, const struct fdsocket_handler *handler, struct fdsocket **out);
void fdsocket_close(struct fdsocket *s);
/* Returns "@NAME" for the abstract name NAME. */
const char *fdsocket_name(const struct fdsocket *s);
/*
 * Returns the first 8 bytes of each connection. INFO reports them to users of
 * the mount.
 */
uint64_t fdsocket_cookie(const struct fdsocket *s);
/*
 * Reads the segments of GPUNVME_MEM_SEGMENTS, whose table is in the first
 * descriptor. Stores them, with their descriptors, in `out`, which has room for
 * GQ_SEGMENTS. Returns the number of segments, or -EINVAL if the table is not a
 * memfd of valid elements, or names another number of descriptors than were sent.
 */
int fdsocket_segments(const struct fd_message *fds, struct gq_segment *out);
/*
 * Removes the descriptors of a token and gives them to the caller, in the order
 * of the message. Returns -ENOENT (no such token, or used or expired) or
 * -EACCES (another user's token, which remains valid).
 */
int fdsocket_take_all(struct fdsocket *s, uint64_t token, uid_t uid, struct fd_message *out);
/* Like fdsocket_take_all(), but closes all descriptors except the first. */
int fdsocket_take(struct fdsocket *s, uint64_t token, uid_t uid, int *fd);

__END_DECLS

#endif
