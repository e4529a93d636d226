/* SPDX-License-Identifier: BSD-2-Clause */
/* Polls at a word, on a clock that stands between them. */
#ifndef TESTS_CLIENT_LIB_SERVICE_TIMING_RIG_H
#define TESTS_CLIENT_LIB_SERVICE_TIMING_RIG_H

#include <stdbool.h>
#include <stdint.h>

#define TIMING_RIG_POLL 1200u /* ticks; a poll has the word if it came in its first half */

struct timing_rig;

struct timing_rig *timing_rig_new(void);
void timing_rig_free(struct timing_rig *r);
/* Ticks that a word, which comes so many after the event, waits for the poll that has it. */
uint64_t timing_rig_await(struct timing_rig *r, uint64_t late);
/* Ticks from the event to the first poll, at most. */
uint64_t timing_rig_delay(const struct timing_rig *r);
/* A poll that took so many ticks. */
void timing_rig_hold_up(struct timing_rig *r, uint64_t ticks);
/* A word that another load than a poll has returned. */
void timing_rig_find_otherwise(struct timing_rig *r);
/* The next reader of a queue loads the delay from the queue's word. */
void timing_rig_hand_on(struct timing_rig *r);

#endif
