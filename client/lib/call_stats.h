/* SPDX-License-Identifier: BSD-2-Clause */
/* What the calls of this process moved, and how long they took: gpunvme_calls(). */
#ifndef CLIENT_LIB_CALL_STATS_H
#define CLIENT_LIB_CALL_STATS_H

#include <stdint.h>

#include "gpunvme/gpunvme.h"
#include "support/clock.h"

/*
 * A call that began at now_ns() = begun has ended. path: GPUNVME_CALLS_DIRECT or a path of a
 * result; 0, or no bytes: nothing is counted.
 */
void call_stats_count(unsigned op, uint32_t path, uint64_t bytes, uint64_t begun);
/* A read was put into a stream. */
void call_stats_enqueued(void);

#endif
