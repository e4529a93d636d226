/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the names of processes and of their open files. */
#include "client/cli/cmd/activity_names.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/*
 * Masks control characters, which would move the cursor of a terminal or make
 * JSON invalid.
 */
static void make_printable(char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < ' ' || *text == 127)
            *text = '?';
    }
}

pid_t cli_process_of(pid_t thread, char *command, size_t len)
{
    char name[64], line[128];
    pid_t process = thread;

    snprintf(command, len, "-");
    snprintf(name, sizeof(name), "/proc/%d/status", (int)thread);
    FILE *f = thread ? fopen(name, "re") : NULL;
    if (!f)
        return thread;
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "Name:\t", 6) == 0)
            snprintf(command, len, "%s", line + 6);
        else if (strncmp(line, "Tgid:\t", 6) == 0)
            process = (pid_t)strtol(line + 6, NULL, 10);
    }
    fclose(f);
    make_printable(command);
    return process;
}

/*
 * AT_STATX_DONT_SYNC avoids a request to a network file system that may not
 * answer.
 */
static bool is_file(int dir, const char *entry, dev_t dev, ino_t ino)
{
    struct statx st;

    return statx(dir, entry, AT_STATX_DONT_SYNC, STATX_INO, &st) == 0 && st.stx_ino == ino &&
           makedev(st.stx_dev_major, st.stx_dev_minor) == dev;
}

bool cli_path_of(pid_t process, dev_t dev, ino_t ino, char *path, size_t len)
{
    char name[64];
    bool found = false;

    snprintf(name, sizeof(name), "/proc/%d/fd", (int)process);
    DIR *dir = opendir(name);
    if (!dir)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(dir));) {
        if (*entry->d_name == '.' || !is_file(dirfd(dir), entry->d_name, dev, ino))
            continue;
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, path, len - 1);
        found = n > 0;
        path[found ? n : 0] = '\0';
    }
    closedir(dir);
    if (found)
        make_printable(path);
    return found;
}
