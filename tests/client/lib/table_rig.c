/* SPDX-License-Identifier: BSD-2-Clause */
/* Executes the passes of a gather on a host thread, like a warp. */
#define GQ_LANES 32u
#include "client/device/gd_table_few.h"

#include "tests/client/lib/table_rig.h"

void table_rig_pass(const struct gd_table_launch *l, uint32_t rank, uint32_t groups)
{
    const struct gd_table_worker worker = {
        .group = gq_whole_group(), .l = l, .rank = rank, .groups = groups};

    gd_table_run(&worker);
}

void table_rig_few(const struct gd_table_launch *l, uint32_t rank, uint32_t groups)
{
    const struct gd_table_worker worker = {
        .group = gq_whole_group(), .l = l, .rank = rank, .groups = groups};

    gd_table_few(&worker);
}
