/* SPDX-License-Identifier: BSD-2-Clause */
/* The table by which groups of lanes compute CRC-32C (cuda/queue/gq_data_sums.h). */
#ifndef CLIENT_LIB_SUM_TABLE_H
#define CLIENT_LIB_SUM_TABLE_H

#include "cuda/queue/gq_sum_table.h"

void sum_table_fill(struct gq_sum_table *t);

#endif
