/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the mount that has a path, without a request to its file system. */
#ifndef SUPPORT_MOUNT_FIND_H
#define SUPPORT_MOUNT_FIND_H

#include <mntent.h>
#include <stdbool.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct mount_found {
    struct mntent entry; /* the fields lie in text */
    char text[2][8192];  /* longer lines lose options */
};

/*
 * Finds the mount of an absolute path without symbolic links. Does not find a mount that is hidden
 * by a later mount over a parent directory. `table` is a file such as /proc/self/mountinfo. Returns
 * false if the table cannot be read or has no such mount.
 */
bool mount_find(const char *table, const char *path, struct mount_found *out);

/*
 * Returns true if two paths as above are those of one file. If they are not in
 * the same file system, `other` is not touched, because its file system may
 * hang. Paths whose mounts are unknown count as paths of one file system,
 * because the root of a chroot need not be a mount point.
 */
bool mount_same_file(const char *path, const char *other);

__END_DECLS

#endif
