/* SPDX-License-Identifier: BSD-2-Clause */
/* Waits for the lock of a drive. */
#include "support/lock_wait.h"

#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/clock.h"
#include "support/mount_find.h"
#include "support/wait.h"

#define SHORT_MS 5000
#define LONG_MS  60000
#define POLL_MS  10
#define DAEMON   "gpunvmefs"

/* The image may have been mounted by another name: a hard link, or a path through a bind mount. */
static bool lock_wait_is_source(const struct mntent *entry, const char *path)
{
    return strcmp(entry->mnt_fsname, path) == 0 ||
           (strstr(entry->mnt_type, "." DAEMON) && mount_same_file(path, entry->mnt_fsname));
}

static bool lock_wait_is_mounted(const char *path)
{
    FILE *mounts = setmntent("/proc/self/mounts", "re");
    struct mntent entry;
    char text[4096];
    bool found = false;

    while (mounts && !found && getmntent_r(mounts, &entry, text, sizeof(text)))
        found = lock_wait_is_source(&entry, path);
    if (mounts)
        endmntent(mounts);
    return found;
}

static bool is_daemon(long pid)
{
    char path[40], name[32] = "";

    snprintf(path, sizeof(path), "/proc/%ld/comm", pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool is = fgets(name, sizeof(name), f) && strcmp(name, DAEMON "\n") == 0;
    fclose(f);
    return is;
}

/*
 * Parses a line of /proc/locks, "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF", in place.
 * Returns false if it is not a lock of flock(2).
 */
static bool parse_lock(char *line, long *pid, unsigned long long *inode)
{
    char *fields[6] = {NULL}, *rest = line;

    for (int i = 0; i < 6; i++) {
        fields[i] = strtok_r(i ? NULL : line, " ", &rest);
        if (!fields[i])
            return false;
    }
    const char *number = strrchr(fields[5], ':');
    if (!number || strcmp(fields[1], "FLOCK") != 0)
        return false;
    *pid = strtol(fields[4], NULL, 10);
    *inode = strtoull(number + 1, NULL, 10);
    return true;
}

/*
 * Returns true if a gpunvmefs daemon locks a file with this inode number. The
 * device numbers in /proc/locks are those of the file system, which stat(2)
 * does not always report.
 */
static bool has_daemon(int fd)
{
    FILE *locks = fopen("/proc/locks", "re");
    struct stat st;
    char line[256];
    bool found = false;

    while (locks && !found && fstat(fd, &st) == 0 && fgets(line, sizeof(line), locks)) {
        long pid;
        unsigned long long inode;
        found = parse_lock(line, &pid, &inode) && inode == st.st_ino && is_daemon(pid);
    }
    if (locks)
        fclose(locks);
    return found;
}

static bool lock_wait_is_free(int fd, int kind)
{
    return flock(fd, kind | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

/* Waits until `end` at most. True if another process still has the lock. */
static bool is_held_until(int fd, const char *path, int kind, uint64_t end)
{
    while (!lock_wait_is_free(fd, kind)) {
        if (lock_wait_is_mounted(path))
            return false;
        if (now_ms() >= end)
            return true;
        wait_ms(POLL_MS);
    }
    return false;
}

void lock_wait(const char *path, int kind, void (*say)(const char *path))
{
    const uint64_t start = now_ms();
    char *full = realpath(path, NULL);
    int fd = full ? open(full, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;

    if (fd >= 0 && is_held_until(fd, full, kind, start + SHORT_MS) && has_daemon(fd)) {
        say(path);
        is_held_until(fd, full, kind, start + LONG_MS);
    }
    if (fd >= 0)
        close(fd);
    free(full);
}
