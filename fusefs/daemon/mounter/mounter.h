/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the mounter, a process of the daemon that mounts, unmounts, syncs
 * files of the mount, passes log lines to syslog, and answers questions about
 * callers. It keeps the privileges and the view of the file system that the
 * daemon drops (sandbox.h), and does not read the image. It has a fixed
 * mountpoint and exits with the daemon.
 *
 * Only one thread at a time calls these functions: the main thread, or the
 * thread of shutdown.c while the session serves.
 */
#ifndef FUSEFS_DAEMON_MOUNTER_MOUNTER_H
#define FUSEFS_DAEMON_MOUNTER_MOUNTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fusefs/daemon/base/callers.h"
#include "support/reason.h"

struct fuse_args;
struct options;
struct sync_target;

struct mounter {
    pid_t pid;
    int socket;
    struct callers callers; /* a thread of the process answers questions at any time */
};

/*
 * Starts the process, and calls log_through() with a socket to it. The process
 * closes the descriptor `spare` (-1: none). Returns 0 or -errno. Precondition:
 * there is one thread, and neither the drive nor CUDA is open.
 */
int mounter_start(struct mounter *m, const struct options *opts, const struct fuse_args *args,
                  int spare);
/*
 * Mounts, with the option ro if read_only is set, and raises the kernel's read-ahead window to
 * *readahead bytes, or sets that to 0 if it cannot. Returns 0 and stores the connection's
 * descriptor in *fd, or returns -errno and stores libfuse's message, or "", in text.
 */
int mounter_mount(const struct mounter *m, bool read_only, int *fd, uint32_t *readahead,
                  struct reason *why);
/*
 * Unmounts the mount that mounter_mount() made, and no other one. lazily
 * permits open files. Returns 0, -EINVAL if that mount is not the topmost one
 * at the mountpoint, or another -errno.
 */
int mounter_unmount(const struct mounter *m, bool lazily);
/*
 * These are the two halves of mounter_unmount(). The second one does not wait
 * once m->socket is readable. No other function of the mounter may be called in
 * between.
 */
int mounter_unmount_begin(const struct mounter *m, bool lazily);
int mounter_unmount_end(const struct mounter *m);
/*
 * Aborts the connection: each pending request ends with ECONNABORTED. Returns 0
 * or -errno.
 */
int mounter_abort(const struct mounter *m);
/* Ends the process and waits for it. Does nothing for a mounter that never started. */
void mounter_end(struct mounter *m);

/* Writes back files with pages that programs dirtied through mappings. */

struct daemon;

/*
 * Lets the mounter sync the files open for writing and waits until the writes
 * have reached the file system, for at most `seconds` (0: unbounded). Must not
 * run in a session thread, since these threads serve the writes.
 */
void mounter_write_back_files(struct daemon *d, unsigned seconds);

#endif
