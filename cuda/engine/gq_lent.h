/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Takes the queue of an engine whose gq_options have a lender before each run,
 * and gives it back when the run has ended. The first two functions do nothing
 * without a lender; the third is called only with one.
 */
#ifndef CUDA_ENGINE_GQ_LENT_H
#define CUDA_ENGINE_GQ_LENT_H

#include "blockdev/bd_lend.h"
#include "cuda/engine/gq_internal.h"

/*
 * Waits for the queue, which the caller has reserved. Returns 0, -ERESTART if a
 * reset stops the engine or the job is late or cancelled, or another error of
 * bd_lend_take().
 */
int gq_lent_take(struct gq_engine *e, uint64_t deadline_ns, const volatile uint32_t *cancel);
/*
 * Gives the queue back after a run. The state of the queue says whether commands
 * are in flight; they are ended if possible.
 */
void gq_lent_give(struct gq_engine *e);
/*
 * Resets the controller, which ends the commands of the queue. Returns 0, or
 * -EIO if the controller has failed.
 */
int gq_lent_recover(struct gq_engine *e);

#endif
