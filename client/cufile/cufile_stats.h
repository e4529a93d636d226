/* SPDX-License-Identifier: BSD-2-Clause */
/* Counters of this process, since the first transfer or cuFileStatsReset(). */
#ifndef CLIENT_CUFILE_CUFILE_STATS_H
#define CLIENT_CUFILE_CUFILE_STATS_H

#include "client/cufile/cufile_transfer.h"

enum cufile_stat {
    CUFILE_STAT_HANDLE_REGISTER,
    CUFILE_STAT_HANDLE_DEREGISTER,
    CUFILE_STAT_BUFFER_DEREGISTER,
    CUFILE_STAT_BATCH_SETUP,
    CUFILE_STAT_BATCH_SUBMIT,
    CUFILE_STAT_BATCH_CANCEL,
    CUFILE_STAT_BATCH_DESTROY,
    CUFILE_STAT_BATCH_COMPLETE,
};

/* In a child of fork(): the lock may have been held. */
void cufile_stats_forked(void);
/* err: 0, or the call failed. */
void cufile_stats_count(enum cufile_stat stat, int err);
void cufile_stats_buffer(size_t len, int err);
void cufile_stats_transfer(const struct cufile_transfer *t, ssize_t bytes,
                           const struct gpunvme_result *result);
/* A vector; its parts are counted as transfers too. bytes: or a negative error. */
void cufile_stats_vector(bool write, ssize_t bytes);
/* The totals, at level INFO. */
void cufile_stats_log(void);

#endif
