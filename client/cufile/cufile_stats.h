/* SPDX-License-Identifier: BSD-2-Clause */
/* Counts the calls of this process since the first transfer or cuFileStatsReset(). */
#ifndef CLIENT_CUFILE_CUFILE_STATS_H
#define CLIENT_CUFILE_CUFILE_STATS_H

#include "client/cufile/cufile_transfer.h"

/* Names the counter of a kind of calls for cufile_stats_count(). */
#define CUFILE_STAT(calls) offsetof(CUfileStatsLevel1_t, calls##_ops)

/* Resets the lock in a child of fork(), since the parent may have held it. */
void cufile_stats_forked(void);
/* Counts a call, which has failed if err is not 0. */
void cufile_stats_count(size_t stat, int err);
void cufile_stats_buffer(size_t len, int err);
void cufile_stats_transfer(const struct cufile_transfer *t, ssize_t bytes,
                           const struct gpunvme_result *result);
/*
 * Counts a vector, whose parts are also counted as transfers. `bytes` may be a
 * negative error.
 */
void cufile_stats_vector(bool write, ssize_t bytes);
/* Logs the totals at level INFO. */
void cufile_stats_log(void);

#endif
