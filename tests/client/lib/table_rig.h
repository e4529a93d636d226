/* SPDX-License-Identifier: BSD-2-Clause */
/* The passes of a gather as warps execute them, by host threads that play the lanes. */
#ifndef TESTS_CLIENT_LIB_TABLE_RIG_H
#define TESTS_CLIENT_LIB_TABLE_RIG_H

#include "client/device/gd_table_launch.h"

/* The rank-th of `groups` parts of a pass. */
void table_rig_pass(const struct gd_table_launch *l, uint32_t rank, uint32_t groups);

#endif
