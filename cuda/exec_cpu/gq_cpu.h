/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the protocol's two instantiations for the host, which the CPU
 * executor calls.
 */
#ifndef CUDA_EXEC_CPU_GQ_CPU_H
#define CUDA_EXEC_CPU_GQ_CPU_H

#include "cuda/queue/gq_reads.h"

/* Work of one run. Queue i of n has rank i. */
struct gq_cpu_drive {
    const struct gq_run *run;
    const struct gq_port *const *ports;
    struct gq_state *states;
    unsigned n;
    const struct gq_reads *reads;
    const uint16_t *areas; /* areas of staging */
};

/*
 * These functions drive the queues of ranks first, first + step, ... to the end
 * of the run, with 1 or 32 lanes.
 */
void gq_cpu_drive_1(const struct gq_cpu_drive *d, unsigned first, unsigned step);
void gq_cpu_drive_32(const struct gq_cpu_drive *d, unsigned first, unsigned step);

#endif
