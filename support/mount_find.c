/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads a table of mounts. Finds the mount of a path, and parses the lines of
 * /proc/self/mountinfo.
 */
#include "support/mount_line.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "support/mount_find.h"

/*
 * Decodes spaces, tabs, newlines and backslashes, which are octal numbers in
 * the names.
 */
static void mount_line_unescape(char *text)
{
    char *to = text;

    for (const char *at = text; *at; to++) {
        bool octal = at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] && at[3];
        *to = octal ? (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0')) : *at;
        at += octal ? 4 : 1;
    }
    *to = '\0';
}

bool mount_line_parse(char *line, struct mount_line *out)
{
    char *field[9], *rest = line;

    line[strcspn(line, "\n")] = '\0';
    for (unsigned i = 0; i < 9; i++) {
        if (i == 6 && rest) { /* a hyphen ends the optional fields */
            rest = strstr(rest, "- ");
            rest = rest ? rest + 2 : NULL;
        }
        field[i] = strsep(&rest, " ");
        if (!field[i])
            return false;
        mount_line_unescape(field[i]);
    }
    *out = (struct mount_line){.id = strtoul(field[0], NULL, 10),
                               .parent = strtoul(field[1], NULL, 10),
                               .device = field[2],
                               .root = field[3],
                               .point = field[4],
                               .type = field[6],
                               .source = field[7],
                               .options = field[8]};
    return true;
}

#define DEPTH_MAX 4096u /* mounts on the way to a path */

/* Returns the length of the mount point if the path is at or below it, else SIZE_MAX. */
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
