/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Rates of the processes, files and queues that move data on a mount, between
 * two readings.
 */
#ifndef CLIENT_CLI_CMD_TOP_ACTIVITY_H
#define CLIENT_CLI_CMD_TOP_ACTIVITY_H

#include <stddef.h>
#include <sys/types.h>

#include <json-c/json.h>

#include "gpunvme/gpunvme.h"

/* A reading of the counters of open files and queues. */
struct cli_counts {
    struct gpunvme_open_file *files; /* in order of id */
    size_t n_files, room;
    struct gpunvme_ioc_queues queues;
};

/*
 * Reads the counters. Returns 0, or 1 after a message. A mount that does not
 * support the request has no files and no queues.
 */
int cli_counts_read(struct gpunvme *g, const char *point, struct cli_counts *out);
void cli_counts_free(struct cli_counts *c);

#define CLI_USES 20 /* number of busiest processes, and of busiest files */
/* Bytes read and written by the GPU path, the bounce path and the kernel. */
#define CLI_RATES 6

struct cli_use {
    uint64_t key; /* process or inode */
    pid_t process;
    char name[512];
    double rates[CLI_RATES]; /* GB/s */
};

struct cli_queue_use {
    unsigned qid;
    const char *use;
    double commands;  /* per second; -1: not counted */
    uint64_t process; /* 0: none or unknown */
};

struct cli_activity {
    struct cli_use processes[CLI_USES], files[CLI_USES];
    size_t n_processes, n_files, n_queues;
    struct cli_queue_use queues[GPUNVME_QUEUES_MAX];
};

/* Computes the rates between two readings of the file system `dev`. */
void cli_activity_between(const struct cli_counts *before, const struct cli_counts *now,
                          double seconds, dev_t dev, struct cli_activity *out);
void cli_activity_print(const struct cli_activity *a);
/* Adds "processes", "files" and "queues" to o. */
void cli_activity_json(const struct cli_activity *a, struct json_object *o);

#endif
