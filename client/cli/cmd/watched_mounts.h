/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the mounts that a command watches. Without operands, a command watches all mounts. */
#ifndef CLIENT_CLI_CMD_WATCHED_MOUNTS_H
#define CLIENT_CLI_CMD_WATCHED_MOUNTS_H

#include <stddef.h>

#include "client/lib/connection.h"

#define CLI_WATCH_MOUNTS 64

struct cli_watched {
    char *point;
    struct connection *g;
    struct gpunvme_ioc_stats now, before;
};

struct cli_watch {
    struct cli_watched mounts[CLI_WATCH_MOUNTS];
    size_t n;
};

/*
 * Opens the mounts. Returns 0, or 1 after a message if a mount could not be
 * opened; *w then has the remaining ones.
 */
int cli_watch_open(struct cli_watch *w, char **paths, int n);
void cli_watch_close(struct cli_watch *w);

#endif
