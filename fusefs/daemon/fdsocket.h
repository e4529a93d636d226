/*
 * File descriptors beside the ioctls, over a UNIX socket, since a restricted FUSE ioctl carries
 * none. For REGISTER a client sends one and gets a token that stands for it; for a lease it asks
 * and gets descriptors (struct gpunvme_ask).
 *
 * The socket has an abstract name, so that none is left behind by a daemon that was killed. A
 * token is 64 random bits, bound to the user the kernel names for the connection, good once and
 * for a few seconds; tokens and connections are bounded in number, and so are answers that nobody
 * reads: a connection ends at a handful of them.
 */
#ifndef FUSEFS_DAEMON_FDSOCKET_H
#define FUSEFS_DAEMON_FDSOCKET_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fdsocket;
struct gpunvme_ask;
struct gpunvme_told;

/* Who answers what is asked over the socket. */
struct fdsocket_answers {
    /*
     * Fills in what is told and up to 2 descriptors, which are closed once they are sent. How
     * many, or -errno: the connection ends then. Called by the socket's thread.
     */
    int (*answer)(void *context, const struct gpunvme_ask *ask, uid_t uid,
                  struct gpunvme_told *told, int fds[2]);
    void *context;
};

/* answers: copied; NULL: nothing may be asked. */
int fdsocket_open(const struct fdsocket_answers *answers, struct fdsocket **out);
void fdsocket_close(struct fdsocket *s);
/* "@NAME": the abstract name NAME. */
const char *fdsocket_name(const struct fdsocket *s);
/*
 * The descriptor behind a token, now the caller's. -ENOENT (none such, used or too old), -EACCES
 * (another user's; the token stays good for its owner).
 */
int fdsocket_take(struct fdsocket *s, uint64_t token, uid_t uid, int *fd);

#ifdef __cplusplus
}
#endif

#endif
