/*
 * Where the daemon's lines go: standard error while it is in the foreground or starting, the
 * system log once it is in the background.
 */
#ifndef FUSEFS_DAEMON_DAEMON_LOG_H
#define FUSEFS_DAEMON_DAEMON_LOG_H

#include <stddef.h>

/* level as in syslog(3); one line, without "gpunvmefs: " and without a newline. */
void log_line(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same with the text ready: what ffs_mount_opts.log wants. */
void log_text(int level, const char *line);
/* From now on to the system log. */
void log_to_syslog(void);

/*
 * What libfuse says goes to log_line(). Between log_capture() and log_captured() it is collected
 * instead, because libfuse reports a failed mount in fragments and lines of its own wording.
 * For the main thread, before the session runs.
 */
void log_take_libfuse(void);
void log_capture(void);
/* Ends the capture: what was said, on one line, never longer than len. */
void log_captured(char *text, size_t len);

#endif
