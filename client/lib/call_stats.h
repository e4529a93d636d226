/* SPDX-License-Identifier: BSD-2-Clause */
/* What the calls of this process moved, and how long they took: gpunvme_calls(). */
#ifndef CLIENT_LIB_CALL_STATS_H
#define CLIENT_LIB_CALL_STATS_H

#include <stdint.h>

#include "gpunvme/gpunvme.h"
#include "support/clock.h"

/*
 * Gives the mount the counters of this connection to read, the first time; without a mount, and
 * where the mount does not take them, they are the process's alone. Under no lock.
 */
void call_stats_share(struct gpunvme *g);
/* No call may be under way. */
void call_stats_end(struct gpunvme *g);

/*
 * A call that began at now_ns() = begun has ended. path: GPUNVME_CALLS_DIRECT or a path of a
 * result; 0, or no bytes: nothing is counted.
 */
void call_stats_count(struct gpunvme *g, unsigned op, uint32_t path, uint64_t bytes,
                      uint64_t begun);
/* Bytes of such a call that the bounce pipeline moved. */
void call_stats_pipeline(struct gpunvme *g, unsigned op, uint64_t bytes);
/* A read, or a list (of 0 bytes: adding up its pieces would take longer), was put into a stream. */
void call_stats_enqueued(struct gpunvme *g, uint64_t bytes);

#endif
