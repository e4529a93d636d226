/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * MSI-X vectors as eventfds of another process. A thread of their own writes
 * them, since a write to an eventfd waits if the other process has filled it.
 */
#ifndef SIM_SIM_INTERRUPT_H
#define SIM_SIM_INTERRUPT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct sim_interrupts {
    unsigned n; /* number of vectors */
    /* By vector, -1 without one. They change while the thread is stopped. */
    int *events;
    _Atomic uint64_t *pending; /* bitmap of vectors to signal */
    int bell;                  /* an eventfd that the thread waits for */
    uint64_t rung;             /* value that the thread has read from it */
    int current;               /* the vector that the thread signals, or -1 */
    pthread_t thread;
    bool started;
};

/* Returns 0 or -errno. Without vectors (n == 0) no other call is allowed. */
int sim_interrupts_init(struct sim_interrupts *is, unsigned n);
/* Stops the thread and closes all eventfds. */
void sim_interrupts_free(struct sim_interrupts *is);
/* Makes the thread signal a vector. May be called by any thread; never waits. */
void sim_interrupt_raise(struct sim_interrupts *is, unsigned vector);

#endif
