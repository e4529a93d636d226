/* SPDX-License-Identifier: BSD-2-Clause */
/* Executes the passes of a gather like warps: host threads act as the lanes. */
#ifndef TESTS_CLIENT_LIB_TABLE_RIG_H
#define TESTS_CLIENT_LIB_TABLE_RIG_H

#include "client/device/gd_table_launch.h"

/* Executes the share of group `rank` of `groups` groups in a pass. */
void table_rig_pass(const struct gd_table_launch *l, uint32_t rank, uint32_t groups);

#endif
