/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A thread that keeps every multiprocessor of the GPU, or without one a processor, busy with
 * kernels of about a millisecond, so that a benchmark can measure beside computing.
 */
#ifndef BENCH_LIB_COMPUTER_H
#define BENCH_LIB_COMPUTER_H

#include <pthread.h>
#include <stdatomic.h>

#include "bench/lib/bench_report.h"
#include "bench/lib/memory.h"

/*
 * The struct is zero before bench_computer_open(); then the other functions do
 * nothing and return 0.
 */
struct bench_computer {
    struct bench_stream stream; /* of its kernels */
    uint64_t work;              /* of a step */
    double alone, rate;         /* steps a second: without anything beside, and the last time */
    pthread_t thread;
    atomic_bool stop;
    int err;
};

/*
 * Measures the rate of computing without other work. Returns -EIO or -ENOMEM,
 * reported on stderr.
 */
int bench_computer_open(struct bench_computer *c, bool gpu);
void bench_computer_close(struct bench_computer *c);
int bench_computer_start(struct bench_computer *c);
/*
 * Adds the rate since bench_computer_start() to `shares`, as a fraction of the
 * rate without other work.
 */
int bench_computer_stop(struct bench_computer *c, struct bench_samples *shares);
/* Adds the row "computing beside NAME", unless there are no samples. */
void bench_computer_report(struct bench_report *r, const char *name, struct bench_samples *shares);
/*
 * Returns how contexts share the device: "MPS", "time-sliced", "unknown" or "no
 * GPU".
 */
const char *bench_computer_sharing(bool gpu);

#endif
