/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes log lines of the daemon and of libfuse. */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/base/daemon_log.h"

#include <fuse_log.h>
#include <fuse_lowlevel.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

/*
 * This is global, because syslog(3) and libfuse's log function pass no context.
 * Release and acquire order openlog() before the first syslog() of another
 * thread.
 */
static atomic_bool to_syslog;
/*
 * Lines below this level always go to syslog. Written before other threads
 * exist.
 */
static int stderr_level = LOG_DEBUG;

/* Written by the main thread only, before another thread can call libfuse. */
static bool capturing;
static char captured[512];

void log_text(int level, const char *line)
{
    if (level > stderr_level || atomic_load_explicit(&to_syslog, memory_order_acquire))
        syslog(level, "%s", line);
    else
        dprintf(STDERR_FILENO, "gpunvmefs: %s\n", line); /* unlike stdio, takes no lock */
}

void log_line(int level, const char *format, ...)
{
    char line[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    log_text(level, line);
}

void log_in_background(void)
{
    openlog("gpunvmefs", LOG_PID, LOG_DAEMON);
    stderr_level = LOG_WARNING;
}

void log_to_syslog(void)
{
    atomic_store_explicit(&to_syslog, true, memory_order_release);
}

/* libfuse ends its messages with a newline and starts them with "fuse: ". */
static void daemon_log_trim(char *text)
{
    static const char prefix[] = "fuse: ";

    for (char *c = text; *c; c++) {
        if (*c == '\n')
            *c = ' ';
    }
    size_t len = strlen(text);
    while (len > 0 && text[len - 1] == ' ')
        text[--len] = '\0';
    if (strncmp(text, prefix, strlen(prefix)) == 0)
        memmove(text, text + strlen(prefix), len - strlen(prefix) + 1);
}

/*
 * Has the type of libfuse's log function. libfuse's levels equal those of
 * syslog(3).
 */
static void from_libfuse(enum fuse_log_level level, const char *format, va_list args)
{
    char text[512];

    if (capturing) {
        size_t used = strlen(captured);
        vsnprintf(captured + used, sizeof(captured) - used, format, args);
        return;
    }
    vsnprintf(text, sizeof(text), format, args);
    daemon_log_trim(text);
    log_text((int)level, text);
}

void log_take_libfuse(void)
{
    fuse_set_log_func(from_libfuse);
}

void log_capture(void)
{
    captured[0] = '\0';
    capturing = true;
}

void log_captured(char *text, size_t len)
{
    capturing = false;
    daemon_log_trim(captured);
    snprintf(text, len, "%s", captured);
}
