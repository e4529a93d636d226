/* SPDX-License-Identifier: BSD-2-Clause */
/* Executes the passes of a gather (client/device/gd_table.h) by a host thread. */
#ifndef TESTS_CLIENT_LIB_TABLE_RIG_H
#define TESTS_CLIENT_LIB_TABLE_RIG_H

#include <sys/cdefs.h>

#include "client/device/gd_table_launch.h"

__BEGIN_DECLS

/* Executes the share of group `rank` of `groups` groups in a pass. */
void table_rig_pass(const struct gd_table_launch *l, uint32_t rank, uint32_t groups);
/* Executes group `rank` of `groups` groups of a gather of few rows. */
void table_rig_few(const struct gd_table_launch *l, uint32_t rank, uint32_t groups);

__END_DECLS

#endif
