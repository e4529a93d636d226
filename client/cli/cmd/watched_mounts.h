/* SPDX-License-Identifier: BSD-2-Clause */
/* The mounts that a command looks at: those of its operands, or all. */
#ifndef CLIENT_CLI_CMD_WATCHED_MOUNTS_H
#define CLIENT_CLI_CMD_WATCHED_MOUNTS_H

#include <stddef.h>

#include "gpunvme/gpunvme.h"

#define CLI_WATCH_MOUNTS 64

struct cli_watched {
    char *point;
    struct gpunvme *g;
    struct gpunvme_ioc_stats now, before;
};

struct cli_watch {
    struct cli_watched mounts[CLI_WATCH_MOUNTS];
    size_t n;
};

/* 0, or 1 after a message when a mount could not be opened; *w has the rest. */
int cli_watch_open(struct cli_watch *w, char **paths, int n);
void cli_watch_close(struct cli_watch *w);

#endif
