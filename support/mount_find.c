/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads a table of mounts. */
#include "support/mount_find.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "support/mount_line.h"

#define DEPTH_MAX 4096u /* mounts on the way to a path */

/* Returns the length of the mount point if the path begins with it, otherwise SIZE_MAX. */
static size_t mount_find_match(const char *path, const char *point)
{
    size_t n = strlen(point);

    n -= n > 0 && point[n - 1] == '/'; /* the root directory */
    return strncmp(path, point, n) != 0 || (path[n] && path[n] != '/') ? SIZE_MAX : n;
}

/* Each turn enters the first mount on the way from the mount that the turn before has entered. */
bool mount_find(const char *table, const char *path, struct mount_found *out)
{
    FILE *mounts = fopen(table, "re");
    unsigned spare = 0; /* the text that the best entry does not use */
    unsigned long on = 0;
    bool found = false, more = mounts;
    struct mount_line m;

    for (unsigned turn = 0; more && turn < DEPTH_MAX; turn++) {
        size_t best = SIZE_MAX;
        unsigned long next = on;
        more = false;
        rewind(mounts);
        while (fgets(out->text[spare], sizeof(out->text[0]), mounts)) {
            if (!mount_line_parse(out->text[spare], &m) || (turn && (m.parent != on || m.id == on)))
                continue;
            size_t n = mount_find_match(path, m.point);
            if (n >= best)
                continue;
            best = n;
            next = m.id;
            out->entry = (struct mntent){.mnt_fsname = m.source,
                                         .mnt_dir = m.point,
                                         .mnt_type = m.type,
                                         .mnt_opts = m.options};
            spare = !spare;
            found = more = true;
        }
        on = next;
    }
    if (mounts)
        fclose(mounts);
    return found;
}

static bool mount_find_both(const char *path, const char *other)
{
    struct mount_found a, b;
    bool found = mount_find("/proc/self/mountinfo", path, &a);

    if (mount_find("/proc/self/mountinfo", other, &b) != found)
        return false;
    return !found || (strcmp(a.entry.mnt_fsname, b.entry.mnt_fsname) == 0 &&
                      strcmp(a.entry.mnt_type, b.entry.mnt_type) == 0);
}

bool mount_same_file(const char *path, const char *other)
{
    struct stat a, b;

    return mount_find_both(path, other) && stat(path, &a) == 0 && stat(other, &b) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}
