/* SPDX-License-Identifier: BSD-2-Clause */
/* Processor time, for what a benchmark costs. */
#ifndef BENCH_LIB_CPU_H
#define BENCH_LIB_CPU_H

#include <stdbool.h>

/* Processor time in seconds, of all threads. */
struct bench_cpu {
    double self;
    double daemon; /* of the mount's daemon, without the simulated drive; 0 where it is not known */
    double drive;  /* of the simulated drive in it */
};

/*
 * Returns true if the times of the daemon are known. The environment variable
 * BENCH_DAEMON names its process (on_mount.sh sets it), and the kernel must
 * report the times of its threads.
 */
bool bench_cpu_knows_daemon(void);
struct bench_cpu bench_cpu_now(void);
/* Adds what has passed since `start`. */
void bench_cpu_add(struct bench_cpu *sum, const struct bench_cpu *start);

#endif
