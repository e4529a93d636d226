/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Detects that an image file was truncated and extended again, by its last bytes (the tail), which
 * are zeros then. Private to the simulator.
 */
#ifndef SIM_SIM_TAIL_H
#define SIM_SIM_TAIL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct sim_ns;

struct sim_tail {
    pthread_mutex_t lock; /* protects the other fields, and the tail between begin and end */
    bool watched;
    bool filled; /* the tail was not all zeros at the last check */
    bool lost;   /* and was at a later check, without a write in between */
};

/* The media has been opened. */
void sim_tail_open(struct sim_ns *ns);
/*
 * Before LBAs of the namespace are written. True: the write ends within the tail or
 * behind it; checks wait until the same thread calls sim_tail_end().
 */
bool sim_tail_begin(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
void sim_tail_end(struct sim_ns *ns);
/* The same before a DMA engine writes, whose end is not known: the tail is not checked any more. */
void sim_tail_leave(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
/* The image was truncated and extended again since the tail was last written. */
bool sim_tail_is_lost(struct sim_ns *ns);

#endif
