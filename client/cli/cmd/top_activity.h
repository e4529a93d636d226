/* SPDX-License-Identifier: BSD-2-Clause */
/* Which processes, files and queues move data on a mount: rates between two turns. */
#ifndef CLIENT_CLI_CMD_TOP_ACTIVITY_H
#define CLIENT_CLI_CMD_TOP_ACTIVITY_H

#include <stddef.h>
#include <sys/types.h>

#include <json-c/json.h>

#include "gpunvme/gpunvme.h"

/* What open files and queues have counted. */
struct cli_counts {
    struct gpunvme_open_file *files; /* by id */
    size_t n_files, room;
    struct gpunvme_ioc_queues queues;
};

/* 0, or 1 after a message. A mount that cannot tell has no files and no queues. */
int cli_counts_read(struct gpunvme *g, const char *point, struct cli_counts *out);
void cli_counts_free(struct cli_counts *c);

#define CLI_USES  20 /* the busiest processes, and as many files */
#define CLI_RATES 6  /* read and written by the GPU path, the bounce path, the kernel */

struct cli_use {
    uint64_t key; /* process, or inode */
    pid_t process;
    char name[512];
    double rates[CLI_RATES]; /* GB/s */
};

struct cli_queue_use {
    unsigned qid;
    const char *use;
    double commands;  /* 1/s; -1: not counted */
    uint64_t process; /* 0: none, or unknown */
};

struct cli_activity {
    struct cli_use processes[CLI_USES], files[CLI_USES];
    size_t n_processes, n_files, n_queues;
    struct cli_queue_use queues[GPUNVME_QUEUES_MAX];
};

/* What happened between two countings on the file system `dev`. */
void cli_activity_between(const struct cli_counts *before, const struct cli_counts *now,
                          double seconds, dev_t dev, struct cli_activity *out);
void cli_activity_print(const struct cli_activity *a);
/* Adds "processes", "files" and "queues" to o. */
void cli_activity_json(const struct cli_activity *a, struct json_object *o);

#endif
