/* SPDX-License-Identifier: BSD-2-Clause */
/* Counts the calls of this process, with their bytes and times, for gpunvme_calls(). */
#ifndef CLIENT_LIB_CALL_STATS_H
#define CLIENT_LIB_CALL_STATS_H

#include <stdint.h>

#include "client/lib/connection.h"
#include "support/clock.h"

/*
 * Shares the counters of this connection with the mount. The first call does so. Without a mount,
 * or if it refuses, only the process has counters. The caller holds no locks.
 */
void call_stats_share(struct connection *g);
/* No call may be under way. */
void call_stats_end(struct connection *g);

/*
 * Counts a call that began at now_ns() = begun and has ended. `path` is GPUNVME_CALLS_DIRECT or the
 * path of a result. Nothing is counted if path or bytes is 0.
 */
void call_stats_count(struct connection *g, unsigned op, uint32_t path, uint64_t bytes,
                      uint64_t begun);
/* Counts the bytes of such a call that the bounce pipeline moved. */
void call_stats_pipeline(struct connection *g, unsigned op, uint64_t bytes);
/*
 * Counts a read that was enqueued in a stream. A list counts with 0 bytes, because adding up its
 * pieces would take longer.
 */
void call_stats_enqueued(struct connection *g, uint64_t bytes);

#endif
