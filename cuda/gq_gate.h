/*
 * Runs share the gate; who may make the device wait for running kernels has it alone
 * (gq_exec_ops.quiesce), and goes before runs that have not begun, or might wait for ever.
 */
#ifndef CUDA_GQ_GATE_H
#define CUDA_GQ_GATE_H

#include <pthread.h>

#include "cuda/gq_exec.h"

/* 0 or -errno. */
int gq_gate_init(pthread_rwlock_t *gate);
/*
 * Shared, for a run that unlocks it. Behind others it waits until the run is cancelled, -ECANCELED,
 * or its budget is spent, -ETIMEDOUT, from which the wait is taken. Who has the gate for another
 * run must not wait behind somebody who wants it alone: -EAGAIN.
 */
int gq_gate_enter(pthread_rwlock_t *gate, struct gq_launch *l);

#endif
