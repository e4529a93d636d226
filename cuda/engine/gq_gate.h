/*
 * Runs share the gate; who may make the device wait for running kernels has it alone
 * (gq_exec_ops.quiesce), and goes before runs that have not begun, or might wait for ever.
 */
#ifndef CUDA_ENGINE_GQ_GATE_H
#define CUDA_ENGINE_GQ_GATE_H

#include <pthread.h>

#include "cuda/gq_exec.h"

struct gq_gate {
    /*
     * Had by who has the lock alone, or waits for that: while there are such, the lock goes from
     * one to the next and to no run. So only one at a time comes to it.
     */
    pthread_mutex_t alone;
    pthread_rwlock_t lock;
};

/* 0 or -errno. */
int gq_gate_init(struct gq_gate *g);
void gq_gate_destroy(struct gq_gate *g);

/*
 * Shared, for a run. Behind others it waits until the run is cancelled, -ECANCELED, or its budget
 * is spent, -ETIMEDOUT, from which the wait is taken, or all runs are asked to leave, -ERESTART:
 * flags are the executor's, GQ_FLAG_LEAVE. Who has the gate for another run must not wait behind
 * somebody who wants it alone: -EAGAIN.
 */
int gq_gate_enter(struct gq_gate *g, struct gq_launch *l, const uint32_t *flags);
void gq_gate_leave(struct gq_gate *g);

/* Alone; runs that wait have it before the next who takes it. By the same thread, as any lock. */
void gq_gate_take(struct gq_gate *g);
void gq_gate_give(struct gq_gate *g);

#endif
