/* SPDX-License-Identifier: BSD-2-Clause */
/* client/lib/direct_slots.c for tests, in this process's memory: its headers are C11. */
#ifndef TESTS_CLIENT_LIB_DIRECT_DEALING_RIG_H
#define TESTS_CLIENT_LIB_DIRECT_DEALING_RIG_H

#include "client/device/gd_types.h"

#define DEALING_RIG_SETS 64u

struct dealings_rig;

struct dealings_rig *dealings_rig_open(void); /* NULL: out of memory */
void dealings_rig_close(struct dealings_rig *rig);
struct gd_check *dealings_rig_take(struct dealings_rig *rig);
void dealings_rig_give_back(struct dealings_rig *rig, const struct gd_check *set);

#endif
