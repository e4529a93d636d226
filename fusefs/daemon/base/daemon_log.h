/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Destination of log lines: standard error in the foreground, syslog in the
 * background. During the start of a daemon that goes into the background
 * warnings and errors go to standard error.
 */
#ifndef FUSEFS_DAEMON_BASE_DAEMON_LOG_H
#define FUSEFS_DAEMON_BASE_DAEMON_LOG_H

#include <stddef.h>

/*
 * level as in syslog(3). One line, without the prefix "gpunvmefs: " and without
 * a newline.
 */
void log_line(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for a finished line; has the type of ffs_mount_opts.log. */
void log_text(int level, const char *line);
/*
 * Later lines below LOG_WARNING go to syslog: a mount that succeeds prints
 * nothing. Called before other threads exist.
 */
void log_in_background(void);
/* All later lines go to syslog. After log_in_background(). */
void log_to_syslog(void);

/*
 * Passes libfuse's messages to log_line(). Between log_capture() and
 * log_captured() they are collected instead: libfuse reports a failed mount in
 * several fragments. Called by the main thread, before the session runs.
 */
void log_take_libfuse(void);
void log_capture(void);
/* Ends the capture and stores the messages in one line of at most len bytes. */
void log_captured(char *text, size_t len);

#endif
