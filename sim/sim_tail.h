/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Detects that an image file was truncated and extended again: its last bytes,
 * the tail, are then zeros. Private to the simulator.
 */
#ifndef SIM_SIM_TAIL_H
#define SIM_SIM_TAIL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct sim_ns;

struct sim_tail {
    /* Protects the other fields, and the tail between begin and end. */
    pthread_mutex_t lock;
    bool watched;
    bool filled; /* the tail was not all zeros at the last check */
    bool lost;   /* the tail was all zeros later, without a write in between */
};

/* Called when the media has been opened. */
void sim_tail_open(struct sim_ns *ns);
/*
 * Called before LBAs of the namespace are written. Returns true if the write
 * ends within the tail or after it; checks then wait until the same thread
 * calls sim_tail_end().
 */
bool sim_tail_begin(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
void sim_tail_end(struct sim_ns *ns);
/*
 * Called before a DMA engine writes. Since the end of that write is unknown,
 * the tail is no longer checked.
 */
void sim_tail_leave(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
/*
 * Returns true if the image was truncated and extended again since the tail was
 * last written.
 */
bool sim_tail_is_lost(struct sim_ns *ns);

#endif
