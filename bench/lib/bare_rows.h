/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Rows of the bare loop with all leased queues, with half and with a quarter of
 * them, each with samples of its own. The best median is the controller's rate.
 */
#ifndef BENCH_LIB_BARE_ROWS_H
#define BENCH_LIB_BARE_ROWS_H

#include "bench/lib/bare_kernels.h"
#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"

#define BARE_ROWS 3u

struct bare_rows {
    unsigned queues[BARE_ROWS];
    struct bench_samples rates[BARE_ROWS]; /* GB/s */
};

/* A sample of each number. The loop is bare_loop_open()'s. -EIO, reported on stderr. */
int bare_rows_time(struct bare_rows *rows, const char *program, struct bare_loop *loop,
                   unsigned leased, uint64_t bytes);
/* A sample of row i alone, which has leased >> i queues, not 0. */
int bare_rows_time_one(struct bare_rows *rows, const char *program, struct bare_loop *loop,
                       unsigned leased, unsigned i, uint64_t bytes);
/* The rows "bare loop, ..., N queues". name[len]: the best one's, as a base; "" without samples. */
void bare_rows_report(struct bare_rows *rows, struct bench_report *report, const char *what,
                      const char *against, char *name, size_t len);

#endif
