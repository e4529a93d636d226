/* SPDX-License-Identifier: BSD-2-Clause */
/* The counters of a mount by name, and all of them as Prometheus' text format. */
#ifndef SUPPORT_METRICS_H
#define SUPPORT_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gpunvme/gpunvme_ioctl.h"

struct metrics_counter {
    const char *name; /* Prometheus' name of a counter ends in _total, that of a gauge does not */
    const char *label, *help;
    size_t at; /* in struct gpunvme_ioc_stats, uint64_t */
    bool gauge;
};
extern const struct metrics_counter metrics_counters[];
extern const size_t metrics_n_counters;

/* By GPUNVME_OP_*, by GPUNVME_PATH_* or GPUNVME_CALLS_DIRECT - 1, and by GPUNVME_FALLBACK_*. */
extern const char *const metrics_ops[3];
extern const char *const metrics_paths[GPUNVME_CALLS_PATHS]; /* the last one of programs only */
extern const char *const metrics_fallbacks[8];

uint64_t metrics_value(const struct gpunvme_ioc_stats *stats, const struct metrics_counter *c);
/* How many calls were counted. */
uint64_t metrics_calls(const struct gpunvme_latency *l);
/* In us, the limit of calls in bucket i; 0: it has none. */
uint64_t metrics_bucket_us(unsigned i);

struct metrics_mount {
    const char *point;
    const struct gpunvme_ioc_stats *stats;
};
void metrics_print(const struct metrics_mount *mounts, size_t n, FILE *to);

#endif
