/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Determines the groups of a caller. It does not use fuse_req_getgroups(),
 * which reads past its buffer in libfuse before 3.17 (pull request 966).
 */
#include "fusefs/daemon/request/caller_groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/daemon/request/fuse_request.h"

#define GROUPS "Groups:"

/* Returns true if the line, a list of numbers, contains the group. */
static bool lists(const char *line, gid_t group)
{
    char *end = NULL;

    for (const char *at = line;; at = end) {
        unsigned long id = strtoul(at, &end, 10);
        if (end == at)
            return false;
        if (id == group)
            return true;
    }
}

bool caller_is_member(struct fuse_req *req, gid_t group)
{
    const struct fuse_ctx *caller = fuse_req_ctx(req);
    char path[64];
    char *line = NULL;
    size_t size = 0;
    bool found = false;

    if (caller->gid == group)
        return true;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/status", (int)caller->pid, (int)caller->pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    while (getline(&line, &size, f) > 0) {
        if (strncmp(line, GROUPS, strlen(GROUPS)) == 0) {
            found = lists(line + strlen(GROUPS), group);
            break;
        }
    }
    free(line);
    fclose(f);
    return found;
}
