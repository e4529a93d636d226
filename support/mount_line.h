/* SPDX-License-Identifier: BSD-2-Clause */
/* Parses lines of /proc/PID/mountinfo, see proc(5). */
#ifndef SUPPORT_MOUNT_LINE_H
#define SUPPORT_MOUNT_LINE_H

#include <stdbool.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct mount_line {
    unsigned long id, parent;
    char *device; /* "259:1" */
    char *root, *point;
    char *type;
    char *source;  /* "/dev/nvme0n1p1"; file systems over several devices show only this */
    char *options; /* of the file system, not those of the mount */
};

/*
 * Splits a line in place and replaces its escapes. The fields point into the
 * line. Returns false if it is not a line of mountinfo.
 */
bool mount_line_parse(char *line, struct mount_line *out);

__END_DECLS

#endif
