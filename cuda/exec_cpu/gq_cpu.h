/* SPDX-License-Identifier: BSD-2-Clause */
/* The protocol's two host instantiations, called by the CPU executor. */
#ifndef CUDA_EXEC_CPU_GQ_CPU_H
#define CUDA_EXEC_CPU_GQ_CPU_H

#include "cuda/queue/gq_reads.h"

/* Work of one run: queue i of n has rank i. */
struct gq_cpu_drive {
    const struct gq_run *run;
    const struct gq_port *const *ports;
    struct gq_state *states;
    unsigned n;
    const struct gq_reads *reads; /* NULL: run is of commands */
    const uint16_t *areas;        /* of staging, for reads */
};

void gq_cpu_drive_1(const struct gq_cpu_drive *d, unsigned first, unsigned step);
void gq_cpu_drive_32(const struct gq_cpu_drive *d, unsigned first, unsigned step);

#endif
