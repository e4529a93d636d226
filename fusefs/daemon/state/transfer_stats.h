/* SPDX-License-Identifier: BSD-2-Clause */
/* How long transfers of buffers take, and why they leave the GPU path. */
#ifndef FUSEFS_DAEMON_STATE_TRANSFER_STATS_H
#define FUSEFS_DAEMON_STATE_TRANSFER_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#include "gpunvme/gpunvme_ioctl.h"

/* Relaxed: each number is right by itself, and orders no other memory. */
struct transfer_stats {
    struct {
        _Atomic uint64_t ns, buckets[GPUNVME_LATENCY_BUCKETS];
    } latency[3][3]; /* [GPUNVME_OP_*][GPUNVME_PATH_* - 1] */
    _Atomic uint64_t fallbacks[8];
};

/* One call that took `path` (GPUNVME_PATH_*); with 0, no byte was moved and nothing is counted. */
void transfer_stats_count(struct transfer_stats *s, unsigned op, unsigned path, uint64_t ns);
/* err: what ended the GPU path; 0: there was none for the buffer. */
void transfer_stats_fell_back(struct transfer_stats *s, int err);
/* Sets latency and fallbacks of out. */
void transfer_stats_fill(struct transfer_stats *s, struct gpunvme_ioc_stats *out);

#endif
