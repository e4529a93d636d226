/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads a table of mounts. */
#include "support/mount_find.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

bool mount_find(const char *table, const char *path, struct mount_found *out)
{
    FILE *mounts = setmntent(table, "re");
    unsigned spare = 0; /* the text that the best entry does not use */
    bool found = false;
    struct mntent m;
    size_t best = 0;

    while (mounts && getmntent_r(mounts, &m, out->text[spare], sizeof(out->text[0]))) {
        size_t n = strlen(m.mnt_dir);
        n -= n > 0 && m.mnt_dir[n - 1] == '/'; /* the root directory */
        if (n < best || strncmp(path, m.mnt_dir, n) != 0 || (path[n] && path[n] != '/'))
            continue;
        out->entry = m;
        best = n;
        found = true;
        spare = !spare;
    }
    if (mounts)
        endmntent(mounts);
    return found;
}

static bool mount_find_both(const char *path, const char *other)
{
    struct mount_found a, b;
    bool found = mount_find("/proc/self/mounts", path, &a);

    if (mount_find("/proc/self/mounts", other, &b) != found)
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
