/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The copies of small reads (client/lib/copy_service.h) without a GPU: the driver's functions are
 * fakes, and each warp of the block is a thread that serves as the block does.
 */
#ifndef TESTS_CLIENT_LIB_COPY_SERVICE_RIG_H
#define TESTS_CLIENT_LIB_COPY_SERVICE_RIG_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "client/lib/copy_service.h"

/* One at a time. */
int copy_service_rig_open(uint64_t slow_ns, uint64_t patience_ns, struct copy_service **out);
void copy_service_rig_close(struct copy_service *s);

/* Blocks launched; copies that the engine made instead of a block. */
unsigned copy_service_rig_launches(void);
unsigned copy_service_rig_engine(void);
/* Driver objects that are held. */
int copy_service_rig_held(void);

/* The next blocks begin when told so. */
void copy_service_rig_hold(bool hold);
/* The block that is there leaves at once, and the next ones before their first copy. */
void copy_service_rig_hurry(bool hurry);
/*
 * Pauses the warps in front of their next words, as if the GPU worked for another process; returns
 * when all of them are. False: there was no block.
 */
bool copy_service_rig_pause(void);
void copy_service_rig_resume(void);
/* Pauses every warp that begins a copy, with its words in hand. */
void copy_service_rig_pause_copies(bool pause);
/* The next question to the driver about the stream resumes the warps. */
void copy_service_rig_resume_at_check(void);
void copy_service_rig_fail_launches(int err);
void copy_service_rig_fail_stream(void);

#ifdef __cplusplus
}
#endif

#endif
