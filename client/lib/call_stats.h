/* SPDX-License-Identifier: BSD-2-Clause */
/* Counters of calls of this process, their bytes and times: gpunvme_calls(). */
#ifndef CLIENT_LIB_CALL_STATS_H
#define CLIENT_LIB_CALL_STATS_H

#include <stdint.h>

#include "client/lib/connection.h"
#include "support/clock.h"

/*
 * The first call shares the counters of this connection with the mount, which reads them. Without a
 * mount, or where it does not accept them, only the process has them. To be called without locks.
 */
void call_stats_share(struct connection *g);
/* No call may be under way. */
void call_stats_end(struct connection *g);

/*
 * A call that began at now_ns() = begun has ended. path: GPUNVME_CALLS_DIRECT or a path of a
 * result; 0, or no bytes: nothing is counted.
 */
void call_stats_count(struct connection *g, unsigned op, uint32_t path, uint64_t bytes,
                      uint64_t begun);
/* Bytes of such a call that the bounce pipeline moved. */
void call_stats_pipeline(struct connection *g, unsigned op, uint64_t bytes);
/* Counts a read put into a stream; a list with 0 bytes, since adding up its pieces takes longer. */
void call_stats_enqueued(struct connection *g, uint64_t bytes);

#endif
