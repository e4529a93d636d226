/* SPDX-License-Identifier: BSD-2-Clause */
/* Names a mount's counters and prints them in Prometheus' text format. */
#ifndef FUSEFS_METRICS_H
#define FUSEFS_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gpunvme/gpunvme_ioctl.h"

struct metrics_counter {
    const char *name; /* Prometheus' name, to which _total is added for a counter */
    const char *label, *help;
    size_t at; /* offset of a uint64_t in struct gpunvme_ioc_stats */
    bool gauge;
};
extern const struct metrics_counter metrics_counters[];
extern const size_t metrics_n_counters;

/*
 * Names by GPUNVME_OP_*, by GPUNVME_PATH_* - 1 or GPUNVME_CALLS_DIRECT - 1, and
 * by GPUNVME_FALLBACK_*.
 */
extern const char *const metrics_ops[3];
extern const char *const metrics_paths[GPUNVME_CALLS_PATHS]; /* the last one is for programs only */
extern const char *const metrics_fallbacks[8];

/* Returns the name of a GPUNVME_DISTANCE_*. */
const char *metrics_distance(unsigned distance);
/* Returns the counter's value. */
uint64_t metrics_value(const struct gpunvme_ioc_stats *stats, const struct metrics_counter *c);
/* Returns the number of calls counted. */
uint64_t metrics_calls(const struct gpunvme_latency *l);
/* Returns the upper limit of bucket i in us, or 0 if it has none. */
uint64_t metrics_bucket_us(unsigned i);

struct metrics_mount {
    const char *point;
    const struct gpunvme_ioc_stats *stats;
    const struct gpunvme_ioc_gpus *gpus;
};
/*
 * Prints the statistics of n mounts. The caller keeps ownership of points and
 * statistics.
 */
void metrics_print(const struct metrics_mount *mounts, size_t n, FILE *to);

#endif
