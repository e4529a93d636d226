/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reader-writer lock. Runs hold it shared; CUDA calls that may synchronize the
 * device (gq_exec_ops.quiesce) hold it exclusively and are preferred, to avoid
 * starvation.
 */
#ifndef CUDA_EXEC_CUDA_GQ_GATE_H
#define CUDA_EXEC_CUDA_GQ_GATE_H

#include <pthread.h>

#include "cuda/gq_exec.h"

struct gq_gate {
    /*
     * Held by the thread that holds the lock exclusively or waits for it. The
     * rwlock passes from writer to writer while several wait, so that runs
     * would starve: one writer at a time waits for it.
     */
    pthread_mutex_t alone;
    pthread_rwlock_t lock;
};

/* 0 or -errno. */
int gq_gate_init(struct gq_gate *g);
void gq_gate_destroy(struct gq_gate *g);

/*
 * Shared, for a run. Waits behind writers until the run is cancelled,
 * -ECANCELED, or its budget is spent, -ETIMEDOUT (the time of the wait is
 * subtracted from it), or all runs are asked to leave, -ERESTART: flags are the
 * executor's, GQ_FLAG_LEAVE. A caller that holds the gate for another run must
 * not wait behind a writer: -EAGAIN.
 */
int gq_gate_enter(struct gq_gate *g, struct gq_launch *l, const uint32_t *flags);
void gq_gate_leave(struct gq_gate *g);

/* Exclusive. Waiting runs get the gate before the next writer. Released by the same thread. */
void gq_gate_take(struct gq_gate *g);
void gq_gate_give(struct gq_gate *g);

#endif
