/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens the mounts that `gpunvme stats` and `gpunvme top` watch. */
#include "client/cli/cmd/watched_mounts.h"

#include <stdlib.h>
#include <string.h>

#include "client/cli/common/cli.h"
#include "client/cli/common/mounts.h"

static int watch_one(struct cli_watch *w, const char *path)
{
    struct cli_watched *m = &w->mounts[w->n];

    if (w->n == CLI_WATCH_MOUNTS)
        return cli_error(path, "more than %d mounts, name fewer", CLI_WATCH_MOUNTS);
    if (!cli_mount_answers(path))
        return cli_error(path, "does not answer: its daemon is stopped, or waits for its drive");
    if (connection_open(path, &m->g))
        return cli_error(path, "%s", gpunvme_error());
    m->point = strdup(path);
    if (!m->point || gpunvme_stats(connection_fd(m->g), &m->now)) {
        connection_close(m->g);
        free(m->point);
        return cli_error(path, "%s", m->point ? gpunvme_error() : "out of memory");
    }
    w->n++;
    return 0;
}

static int watch_all(struct cli_watch *w)
{
    struct cli_mounts mounts;
    int err = cli_mounts_read(CLI_MOUNTS, &mounts), failed = 0;

    if (err)
        return cli_error(CLI_MOUNTS, "%s", strerror(-err));
    for (size_t i = 0; i < mounts.n; i++)
        failed |= watch_one(w, mounts.all[i].point);
    cli_mounts_free(&mounts);
    return failed;
}

int cli_watch_open(struct cli_watch *w, char **paths, int n)
{
    int failed = 0;

    *w = (struct cli_watch){0};
    if (!n)
        return watch_all(w);
    for (int i = 0; i < n; i++)
        failed |= watch_one(w, paths[i]);
    return failed;
}

void cli_watch_close(struct cli_watch *w)
{
    for (size_t i = 0; i < w->n; i++) {
        connection_close(w->mounts[i].g);
        free(w->mounts[i].point);
    }
}
