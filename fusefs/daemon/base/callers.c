/* SPDX-License-Identifier: BSD-2-Clause */
/* The daemon asks about callers, and the mounter answers. */
#include "fusefs/daemon/base/callers.h"

#include <errno.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define WAIT_S 2

struct question {
    uint64_t number; /* an answer has the number of its question */
    int32_t pid;
    uint32_t admin; /* 1: CAP_SYS_ADMIN; 0: membership in the group */
    uint32_t group;
    uint32_t yes; /* set in the answer */
};

/* --- The daemon ------------------------------------------------------------------------------ */

int callers_open(struct callers *c, int *server)
{
    const struct timeval limit = {.tv_sec = WAIT_S};
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return -errno;
    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    *c = (struct callers){.socket = ends[0]};
    pthread_mutex_init(&c->lock, NULL);
    *server = ends[1];
    return 0;
}

void callers_close(struct callers *c)
{
    close(c->socket);
    pthread_mutex_destroy(&c->lock);
}

/* Skips answers to earlier questions whose wait has timed out. */
static bool callers_ask(struct callers *c, struct question *q)
{
    struct question answer = {0};
    ssize_t n = -1;

    if (q->pid <= 0)
        return false;
    pthread_mutex_lock(&c->lock);
    q->number = ++c->asked;
    if (send(c->socket, q, sizeof(*q), MSG_NOSIGNAL) == (ssize_t)sizeof(*q)) {
        do {
            n = TEMP_FAILURE_RETRY(recv(c->socket, &answer, sizeof(answer), 0));
        } while (n == (ssize_t)sizeof(answer) && answer.number != q->number);
    }
    pthread_mutex_unlock(&c->lock);
    return n == (ssize_t)sizeof(answer) && answer.yes;
}

bool callers_is_member(struct callers *c, pid_t pid, gid_t group)
{
    struct question q = {.pid = pid, .group = group};

    return callers_ask(c, &q);
}

bool callers_is_admin(struct callers *c, pid_t pid)
{
    struct question q = {.pid = pid, .admin = 1};

    return callers_ask(c, &q);
}

/* --- The mounter ----------------------------------------------------------------------------- */

/*
 * Returns the part of the line of /proc/PID/status after the key, or NULL. The
 * caller frees it.
 */
static char *callers_read_status(pid_t pid, const char *key)
{
    char path[64];
    char *line = NULL;
    size_t size = 0, len = strlen(key);
    bool found = false;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && !found && getline(&line, &size, f) > 0)
        found = strncmp(line, key, len) == 0;
    if (f)
        fclose(f);
    if (found) {
        memmove(line, line + len, strlen(line + len) + 1);
        return line;
    }
    free(line);
    return NULL;
}

static bool callers_has_group(pid_t pid, gid_t group)
{
    char *groups = callers_read_status(pid, "Groups:"), *end;
    bool found = false;

    for (char *at = groups; at && !found; at = end) {
        unsigned long id = strtoul(at, &end, 10);
        if (end == at)
            break;
        found = id == group;
    }
    free(groups);
    return found;
}

/*
 * Capabilities of another user namespace do not count here. The mounter of a
 * user cannot see the namespace of root's processes and accepts them.
 */
static bool callers_share_namespace(pid_t pid)
{
    char path[64], own[64], other[64];

    snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
    ssize_t n = readlink("/proc/self/ns/user", own, sizeof(own));
    ssize_t m = readlink(path, other, sizeof(other));
    if (m < 0)
        return geteuid() != 0;
    return n == m && memcmp(own, other, (size_t)n) == 0;
}

static bool callers_has_admin(pid_t pid)
{
    char *caps = callers_read_status(pid, "CapEff:");
    bool has = caps && strtoull(caps, NULL, 16) >> CAP_SYS_ADMIN & 1;

    free(caps);
    return has && callers_share_namespace(pid);
}

void callers_serve(int server)
{
    struct question q;

    while (TEMP_FAILURE_RETRY(recv(server, &q, sizeof(q), 0)) == (ssize_t)sizeof(q)) {
        q.yes = q.admin ? callers_has_admin(q.pid) : callers_has_group(q.pid, q.group);
        if (send(server, &q, sizeof(q), MSG_NOSIGNAL) != (ssize_t)sizeof(q))
            return;
    }
}
