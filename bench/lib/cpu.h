/* SPDX-License-Identifier: BSD-2-Clause */
/* Processor time, for what a benchmark costs. */
#ifndef BENCH_LIB_CPU_H
#define BENCH_LIB_CPU_H

#include <stdbool.h>

/* Seconds, of all threads. */
struct bench_cpu {
    double self;
    double daemon; /* of the mount's daemon, without the simulated drive; 0 where it is not known */
    double drive;  /* of the simulated drive in it */
};

/*
 * The daemon is the process that the environment variable BENCH_DAEMON names (on_mount.sh sets it).
 * False also where the kernel does not tell what its threads use.
 */
bool bench_cpu_knows_daemon(void);
struct bench_cpu bench_cpu_now(void);
/* Adds what has passed since `start`. */
void bench_cpu_add(struct bench_cpu *sum, const struct bench_cpu *start);

#endif
