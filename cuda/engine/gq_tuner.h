/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Number of queues of large transfers, chosen by measurement: a software
 * controller serves few queues faster than many, one or the same number for
 * each of its processors, and does not tell how many it has. Rates are not
 * unimodal in the number: six queues on four processors are slower than four
 * and than eight.
 *
 * A search measures the choice and two levels to each side, each a few times,
 * and moves to the fastest until that is the choice. It begins at a number that
 * most controllers serve well, and again after a number of transfers that
 * doubles, because a disturbed search, or another load of the controller's
 * machine, may have made the choice wrong. Not locked.
 */
#ifndef CUDA_ENGINE_GQ_TUNER_H
#define CUDA_ENGINE_GQ_TUNER_H

#include <stdbool.h>
#include <stdint.h>

#define GQ_TUNER_LEVELS 12u
/*
 * A shorter transfer is no sample: its start and end take a part of its time. Transfers from
 * GQ_TUNER_SHORT_BYTES on have a tuner of their own, because their rates are lower with any number.
 */
#define GQ_TUNER_BYTES       ((uint64_t)32 << 20)
#define GQ_TUNER_SHORT_BYTES ((uint64_t)16 << 20)

struct gq_tuner {
    unsigned n_levels;                 /* 0: nothing is measured */
    unsigned queues[GQ_TUNER_LEVELS];  /* ascending */
    uint64_t rates[GQ_TUNER_LEVELS];   /* best of the samples, bytes in a millisecond */
    unsigned samples[GQ_TUNER_LEVELS]; /* of this search */
    unsigned choice;                   /* a level */
    bool searches;
    bool has_chosen;        /* a search has ended */
    unsigned period, pause; /* transfers between two searches; those that remain */
};

/* Numbers of queues up to `most` are measured. */
void gq_tuner_init(struct gq_tuner *t, unsigned most);
/* For a transfer that is no sample; UINT_MAX without levels. */
unsigned gq_tuner_choice(const struct gq_tuner *t);
/* For the next transfer that is one, if it is not disturbed; UINT_MAX without levels. */
unsigned gq_tuner_next(const struct gq_tuner *t);
/*
 * A transfer, long enough, that was given gq_tuner_next() and took
 * so many queues, beside no other transfer. With other queues, or if it failed
 * (ns of 0), it counts without a rate.
 */
void gq_tuner_add(struct gq_tuner *t, unsigned queues, uint64_t bytes, uint64_t ns);

#endif
