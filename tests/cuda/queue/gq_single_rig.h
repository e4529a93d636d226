/* SPDX-License-Identifier: BSD-2-Clause */
/* cuda/gq_single.h for tests: the header itself is C11. */
#ifndef TESTS_CUDA_QUEUE_GQ_SINGLE_RIG_H
#define TESTS_CUDA_QUEUE_GQ_SINGLE_RIG_H

#include <stdbool.h>

#include "cuda/queue/gq_reads.h"

/* A queue pair, and how the last command on it ended. Zero but for phase: 1. */
struct single_rig {
    struct gq_run run;
    struct gq_port port;
    uint32_t entry, phase, cq_db_pending; /* struct gq_position */
    uint32_t outcome, status;
};

void single_rig_command(struct single_rig *r, const struct gq_cmd *cmd);
/* of the extent: its first byte in the file, and the first behind it; -> *cmd */
bool single_rig_make(const struct gq_file_map *map, const struct gq_target *target,
                     const uint64_t extent[2], uint64_t lba, const struct gq_read *read,
                     struct gq_cmd *cmd);

#endif
