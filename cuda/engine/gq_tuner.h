/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Chooses the number of queues of large transfers by measurement. A software
 * controller serves few queues faster than many, and performs best with one, or
 * the same number, for each of its processors, but does not report how many it
 * has. The rate is not unimodal in the number of queues: with four processors,
 * six queues are slower than four and than eight.
 *
 * A search measures the choice and two levels on each side, each a few times,
 * and moves to the fastest until that is the choice. It starts at a number that
 * most controllers serve well. It is repeated after a number of transfers that
 * doubles, because a disturbed search, or another load on the controller's
 * machine, may have made the choice wrong. The caller locks.
 */
#ifndef CUDA_ENGINE_GQ_TUNER_H
#define CUDA_ENGINE_GQ_TUNER_H

#include <stdbool.h>
#include <stdint.h>

#define GQ_TUNER_LEVELS 12u
/*
 * Minimum size of a sample; the start and end of a shorter transfer would
 * dominate. Transfers of at least GQ_TUNER_SHORT_BYTES have a tuner of their
 * own, because their rates are always lower.
 */
#define GQ_TUNER_BYTES       ((uint64_t)32 << 20)
#define GQ_TUNER_SHORT_BYTES ((uint64_t)16 << 20)

struct gq_tuner {
    unsigned n_levels;                 /* 0: nothing is measured */
    unsigned queues[GQ_TUNER_LEVELS];  /* ascending */
    uint64_t rates[GQ_TUNER_LEVELS];   /* best of the samples, bytes per millisecond */
    unsigned samples[GQ_TUNER_LEVELS]; /* number in this search */
    unsigned choice;                   /* index of a level */
    bool searches;
    bool has_chosen;        /* a search has ended */
    unsigned period, pause; /* transfers between two searches; remaining ones */
};

/* Starts a tuner for up to `most` queues. */
void gq_tuner_init(struct gq_tuner *t, unsigned most);
/*
 * Returns the number of queues for a transfer that is no sample; UINT_MAX
 * without levels.
 */
unsigned gq_tuner_choice(const struct gq_tuner *t);
/*
 * Returns the number for the next transfer that is a sample, if it is
 * undisturbed; UINT_MAX without levels.
 */
unsigned gq_tuner_next(const struct gq_tuner *t);
/*
 * Adds a sample: a sufficiently long transfer that was given gq_tuner_next(),
 * took `queues` queues, and ran alongside no other transfer. With another
 * number of queues, or if it failed (ns is 0), it counts without a rate.
 */
void gq_tuner_add(struct gq_tuner *t, unsigned queues, uint64_t bytes, uint64_t ns);

#endif
