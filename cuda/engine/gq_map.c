/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies maps of files to memory of the executor. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/engine/gq_job.h"

int gq_job_put_map(struct gq_job *j, const struct gq_file_extent *extents, size_t n,
                   const struct gq_file_extent **out)
{
    struct gq_engine *e = j->e;
    struct gq_workspace *workspace = &e->workspaces[j->reservation.workspace];
    size_t room = GQ_READV_EXTENTS * sizeof(*workspace->map);
    size_t len = n * sizeof(*workspace->map);
    uint64_t at = e->maps.base + j->reservation.workspace * room;
    int err;

    *out = (const struct gq_file_extent *)(uintptr_t)at;
    if (workspace->map_extents == n && (len == 0 || !memcmp(workspace->map, extents, len)))
        return 0;
    if (!workspace->map)
        workspace->map = malloc(room);
    if (!workspace->map)
        return -ENOMEM;
    workspace->map_extents = 0;
    err = e->exec->ops->put(e->exec, at, extents, len);
    if (err)
        return err;
    memcpy(workspace->map, extents, len);
    workspace->map_extents = n;
    return 0;
}
