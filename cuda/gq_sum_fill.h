/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fills the table with which groups of lanes compute CRC-32C
 * (cuda/queue/gq_data_sums.h).
 */
#ifndef CUDA_GQ_SUM_FILL_H
#define CUDA_GQ_SUM_FILL_H

#include <sys/cdefs.h>

#include "cuda/queue/gq_sum_table.h"

__BEGIN_DECLS

void gq_sum_fill(struct gq_sum_table *t);

__END_DECLS

#endif
