/* SPDX-License-Identifier: BSD-2-Clause */
/* path_choice.h for tests in C++, which has no _Atomic. */
#ifndef TESTS_CLIENT_LIB_PATH_CHOICE_RIG_H
#define TESTS_CLIENT_LIB_PATH_CHOICE_RIG_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct path_choice_rig;

struct path_choice_rig *path_choice_rig_new(bool bounces, uint32_t length);
void path_choice_rig_free(struct path_choice_rig *r);
uint32_t path_choice_rig_ask(const struct path_choice_rig *r);
bool path_choice_rig_bounces(uint32_t phase);
bool path_choice_rig_is_trial(uint32_t phase);
bool path_choice_rig_is_measured(uint32_t phase);
void path_choice_rig_add(struct path_choice_rig *r, uint32_t phase, uint64_t ns);

#ifdef __cplusplus
}
#endif

#endif
