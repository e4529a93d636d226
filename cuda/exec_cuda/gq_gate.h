/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares a reader-writer lock. Runs hold the lock shared. CUDA calls that may
 * synchronise the device (gq_exec_ops.quiesce) hold the lock exclusively and
 * have priority, so that such calls do not starve.
 */
#ifndef CUDA_EXEC_CUDA_GQ_GATE_H
#define CUDA_EXEC_CUDA_GQ_GATE_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda/gq_exec.h"

struct gq_gate {
    /*
     * Held by the thread that holds the lock exclusively or waits for it. While
     * several writers wait, the rwlock passes from writer to writer, and runs would
     * starve; so only one writer at a time waits for it.
     */
    pthread_mutex_t alone;
    pthread_rwlock_t lock;
    /*
     * Atomic. True if a kernel on the device did not end in time and may run
     * forever. Memory that it reaches is not freed any more, and no call is made
     * that may wait for the device, by any executor.
     */
    bool stuck;
};

/* Initialises the gate. Returns 0 or -errno. */
int gq_gate_init(struct gq_gate *g);
void gq_gate_destroy(struct gq_gate *g);
/*
 * Stores the gate of a CUDA device, which all executors on the device share and
 * which is never destroyed. Returns -ENODEV if the ordinal is too large.
 */
int gq_gate_of_device(int device, struct gq_gate **out);

/*
 * Enters the gate shared, for a run. Waits behind writers until it gets in,
 * until the run is cancelled (-ECANCELED), its budget is spent (-ETIMEDOUT; the
 * waiting time is subtracted from it), or all runs are asked to leave
 * (-ERESTART). flags are the executor's; see GQ_FLAG_LEAVE. The caller does not
 * hold the gate for another run, for which a writer might wait.
 */
int gq_gate_enter(struct gq_gate *g, struct gq_launch *l, const uint32_t *flags);
void gq_gate_leave(struct gq_gate *g);

/*
 * Enters the gate exclusively. Waiting runs get the gate before the next
 * writer. The same thread releases it.
 */
void gq_gate_take(struct gq_gate *g);
void gq_gate_give(struct gq_gate *g);

#endif
