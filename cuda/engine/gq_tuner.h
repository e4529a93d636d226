/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Number of queues of large transfers, chosen by measurement: a software
 * controller serves few queues faster than many, one or the same number for
 * each of its processors, and does not tell how many it has. Consecutive large
 * transfers take different numbers of queues, until each number has been
 * measured a few times. Not locked.
 */
#ifndef CUDA_ENGINE_GQ_TUNER_H
#define CUDA_ENGINE_GQ_TUNER_H

#include <stdbool.h>
#include <stdint.h>

#define GQ_TUNER_LEVELS 8u
/* A shorter transfer is no sample: its start and end take a part of its time. */
#define GQ_TUNER_BYTES ((uint64_t)32 << 20)

struct gq_tuner {
    unsigned queues[GQ_TUNER_LEVELS]; /* descending */
    uint64_t rates[GQ_TUNER_LEVELS];  /* best of the samples, bytes in a millisecond */
    unsigned n_levels;                /* 0: nothing is measured */
    unsigned level;                   /* of the next transfer */
    unsigned log2_each;               /* of the bytes of a read in all samples */
    unsigned rounds;                  /* that remain; 0: the level is the choice */
};

/* Numbers of queues from `most` down are measured. */
void gq_tuner_init(struct gq_tuner *t, unsigned most);
/* For the next transfer, UINT_MAX without levels. */
unsigned gq_tuner_queues(const struct gq_tuner *t);
/*
 * A transfer with that number of queues, beside no other transfer, of reads or
 * writes of `each` bytes. Is a sample if it is long enough, and if `each` is
 * similar to that of the first sample.
 */
void gq_tuner_add(struct gq_tuner *t, unsigned queues, uint64_t each, uint64_t bytes, uint64_t ns);
static inline bool gq_tuner_has_chosen(const struct gq_tuner *t)
{
    return t->n_levels && !t->rounds;
}

#endif
