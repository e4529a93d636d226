/* SPDX-License-Identifier: BSD-2-Clause */
/* A truncation of an image file that an extension hides. Private to the simulator. */
#ifndef SIM_SIM_TAIL_H
#define SIM_SIM_TAIL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct sim_ns;

struct sim_tail {
    pthread_mutex_t lock; /* protects the other fields, and the tail between begin and end */
    bool watched;
    bool filled; /* the tail was not all zeros after the last look */
    bool lost;   /* and was at a later one, without a write in between */
};

/* The media has been opened. */
void sim_tail_open(struct sim_ns *ns);
/*
 * Before LBAs of the namespace are written. True: the tail is among them, or follows; looks at it
 * wait until sim_tail_end(), by the same thread.
 */
bool sim_tail_begin(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
void sim_tail_end(struct sim_ns *ns);
/* The same before a DMA engine writes: the end is not seen, so the tail is watched no more. */
void sim_tail_leave(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
/* The image was truncated and extended again since the tail was last written. */
bool sim_tail_is_lost(struct sim_ns *ns);

#endif
