/*
 * File descriptors for REGISTER. A restricted FUSE ioctl carries no descriptor, so a client sends
 * it over a UNIX socket first and gets a token that stands for it.
 *
 * The socket has an abstract name, so that none is left behind by a daemon that was killed. A
 * token is 64 random bits, bound to the user the kernel names for the connection, good once and
 * for a few seconds; tokens and connections are bounded in number.
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

int fdsocket_open(struct fdsocket **out);
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
