/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes log lines of the daemon and of libfuse. */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/base/daemon_log.h"

#include <errno.h>
#include <fuse_log.h>
#include <fuse_lowlevel.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <syslog.h>
#include <unistd.h>

/*
 * These are global, because syslog(3) and libfuse's log function pass no
 * context. Release and acquire order openlog() before the first syslog() of
 * another thread.
 */
static atomic_bool to_syslog;
/* The socket that log_through() has set, or -1. */
static atomic_int log_relay_socket = -1;
/*
 * Lines below this level always go to syslog. Written before other threads
 * exist.
 */
static int stderr_level = LOG_DEBUG;

/* Written by the main thread only, before another thread can call libfuse. */
static bool capturing;
static char captured[512];

/* A message to the relay is one digit, the level, and the line. */
#define RELAY_BYTES 2048
/* The sender waits this long for a slow system log. */
#define RELAY_S 1

static void log_to_system(int level, const char *line)
{
    int relay = atomic_load(&log_relay_socket);
    char message[RELAY_BYTES];

    if (relay < 0) {
        syslog(level, "%s", line);
        return;
    }
    int n = snprintf(message, sizeof(message), "%d%s", LOG_PRI(level), line);
    size_t len = n < RELAY_BYTES ? (size_t)n : RELAY_BYTES - 1u;
    ssize_t sent = send(relay, message, len, MSG_NOSIGNAL);

    (void)sent; /* without the mounter the line is lost, as with syslog(3) */
}

void log_text(int level, const char *line)
{
    if (level > stderr_level || atomic_load_explicit(&to_syslog, memory_order_acquire))
        log_to_system(level, line);
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
    static char name[32]; /* syslog(3) keeps the pointer; the relay has another process ID */

    snprintf(name, sizeof(name), "gpunvmefs[%d]", (int)getpid());
    openlog(name, 0, LOG_DAEMON);
    stderr_level = LOG_WARNING;
}

void log_through(int socket)
{
    const struct timeval limit = {.tv_sec = RELAY_S};

    if (socket >= 0)
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    int before = atomic_exchange(&log_relay_socket, socket);
    if (before >= 0)
        close(before);
}

void log_relay(int socket)
{
    char message[RELAY_BYTES];
    ssize_t n;

    while ((n = TEMP_FAILURE_RETRY(recv(socket, message, sizeof(message) - 1, 0))) > 0) {
        message[n] = '\0';
        syslog(LOG_PRI(message[0] - '0'), "%s", message + 1);
    }
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
