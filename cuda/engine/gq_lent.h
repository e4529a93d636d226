/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The queue of an engine whose gq_options have a lender: taken before each run
 * and given back when it has ended. The functions do nothing without a lender.
 */
#ifndef CUDA_ENGINE_GQ_LENT_H
#define CUDA_ENGINE_GQ_LENT_H

#include "blockdev/bd_lend.h"
#include "cuda/engine/gq_internal.h"

/*
 * Waits for the queue, which the caller has reserved, until a reset stops the
 * engine or the job is late or cancelled: -ERESTART. Returns 0 or an error of
 * bd_lend_take().
 */
int gq_lent_take(struct gq_engine *e, uint64_t deadline_ns, const volatile uint32_t *cancel);
/* Gives the queue back with the state of its run. Commands in flight are ended if possible. */
void gq_lent_give(struct gq_engine *e);
/* Returns the queue to service by a reset. Returns 0, or -EIO if the controller has failed. */
int gq_lent_recover(struct gq_engine *e);

#endif
