/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Starts the daemon in the background. The fork precedes the opening of the
 * device and of CUDA, since a CUDA context does not survive a fork. The parent
 * waits until the child serves or has failed, and exits with the status that
 * the child reports through a pipe.
 */
#ifndef FUSEFS_DAEMON_START_BACKGROUND_H
#define FUSEFS_DAEMON_START_BACKGROUND_H

/*
 * Called with SIGTERM and SIGINT blocked, which the parent passes on to the
 * child. Returns only in the child, with the write end of the pipe in
 * *status_fd, or with -errno if the fork failed. The parent exits in this call.
 */
int background_start(int *status_fd);
/*
 * Called when the mount is served. The parent exits with 0, log lines go to
 * syslog, and descriptors 0 to 2 become /dev/null. Closes status_fd.
 */
void background_ready(int status_fd);
/* Lets the parent exit with status. Closes status_fd. */
void background_failed(int status_fd, int status);

#endif
