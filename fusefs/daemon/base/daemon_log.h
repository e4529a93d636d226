/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Log lines go to standard error in the foreground and to syslog in the
 * background. While a daemon that will run in the background starts, its
 * warnings and errors go to standard error.
 */
#ifndef FUSEFS_DAEMON_BASE_DAEMON_LOG_H
#define FUSEFS_DAEMON_BASE_DAEMON_LOG_H

#include <stddef.h>

/*
 * Logs one line, without the prefix "gpunvmefs: " and without a newline.
 * `level` is one of syslog(3).
 */
void log_line(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Logs a complete line. Has the type of ffs_mount_opts.log. */
void log_text(int level, const char *line);
/*
 * From now on lines below LOG_WARNING go to syslog, so that a successful mount
 * prints nothing. Called before other threads exist.
 */
void log_in_background(void);
/* From now on all lines go to syslog. Called after log_in_background(). */
void log_to_syslog(void);

/*
 * Sends all later lines for syslog to the socket, since the sandbox permits no
 * new connection to the system log. Takes ownership of the socket and closes
 * the previous one. -1 sends lines to syslog again. log_relay() serves the
 * other end.
 */
void log_through(int socket);
/*
 * Passes lines from the socket to syslog until all copies of the other end are
 * closed.
 */
void log_relay(int socket);

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
