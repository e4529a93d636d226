/* SPDX-License-Identifier: BSD-2-Clause */
/* Rows of the bare loop. */
#include "bench/lib/bare_rows.h"

#include <stdio.h>

#ifdef GPUNVME_HAVE_CUDA

int bare_rows_time_one(struct bare_rows *rows, const char *program, struct bare_loop *loop,
                       unsigned leased, unsigned i, uint64_t bytes)
{
    double seconds;
    int err = bare_loop_time(loop, leased >> i, &seconds);

    if (err) {
        fprintf(stderr, "%s: bare loop: a command failed\n", program);
        return err;
    }
    rows->queues[i] = leased >> i;
    bench_add(&rows->rates[i], (double)bytes * 1e-9 / seconds);
    return 0;
}

int bare_rows_time(struct bare_rows *rows, const char *program, struct bare_loop *loop,
                   unsigned leased, uint64_t bytes)
{
    int err = 0;

    for (unsigned i = 0; i < BARE_ROWS && leased >> i && !err; i++)
        err = bare_rows_time_one(rows, program, loop, leased, i, bytes);
    return err;
}

#endif

void bare_rows_report(struct bare_rows *rows, struct bench_report *report, const char *what,
                      const char *against, char *name, size_t len)
{
    double best = 0;

    snprintf(name, len, "%s", "");
    for (unsigned i = 0; i < BARE_ROWS; i++) {
        struct bench_samples *s = &rows->rates[i];
        char row[64];

        if (s->n == 0)
            continue;
        snprintf(row, sizeof(row), "bare loop, %s, %u queues", what, rows->queues[i]);
        bench_report_row(report, row, "GB/s", s, against);
        if (bench_median(s) > best) {
            best = bench_median(s);
            snprintf(name, len, "%s", row);
        }
    }
}
