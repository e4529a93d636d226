/* SPDX-License-Identifier: BSD-2-Clause */
/* Measures the best number of queues of large transfers. */
#include "cuda/engine/gq_tuner.h"

#include <limits.h>
#include <string.h>

#include "support/clock.h"
#include "support/minmax.h"

#define START   6u /* queues: between the best numbers for one to eight processors */
#define REACH   2u /* levels on each side of the choice */
#define SAMPLES 2u /* per level; the best one counts, because disturbances only slow down */
/*
 * A level below this percentage of the best one after its first sample gets no
 * other sample.
 */
#define HOPELESS_PERCENT 75u
/*
 * Fewer queues are chosen if they reach this percentage of the best rate, which
 * leaves more to other transfers.
 */
#define EQUAL_PERCENT 98u
/*
 * Transfers between two searches. A search takes about ten transfers: at first
 * a twelfth of all, later a hundredth.
 */
#define PAUSE_FIRST 128u
#define PAUSE_MOST  1024u

/* Returns the next larger number of the form 2^n or 3 * 2^n. */
static unsigned next_level(unsigned queues)
{
    unsigned below = 1;

    while (2 * below <= queues)
        below *= 2;
    return 3 * below / 2 > queues ? 3 * below / 2 : 2 * below;
}

static void begin_search(struct gq_tuner *t)
{
    memset(t->rates, 0, sizeof(t->rates));
    memset(t->samples, 0, sizeof(t->samples));
    t->searches = true;
}

void gq_tuner_init(struct gq_tuner *t, unsigned most)
{
    *t = (struct gq_tuner){.period = PAUSE_FIRST};
    for (unsigned queues = 1; queues < most && t->n_levels < GQ_TUNER_LEVELS - 1;
         queues = next_level(queues))
        t->queues[t->n_levels++] = queues;
    if (most)
        t->queues[t->n_levels++] = most;
    while (t->choice + 1 < t->n_levels && t->queues[t->choice + 1] <= START)
        t->choice++;
    begin_search(t);
}

unsigned gq_tuner_choice(const struct gq_tuner *t)
{
    return t->n_levels ? t->queues[t->choice] : UINT_MAX;
}

static unsigned first_of_reach(const struct gq_tuner *t)
{
    return t->choice < REACH ? 0 : t->choice - REACH;
}

static unsigned end_of_reach(const struct gq_tuner *t)
{
    return (unsigned)min_u64(t->choice + REACH + 1, t->n_levels);
}

static uint64_t best_rate(const struct gq_tuner *t)
{
    uint64_t best = 0;

    for (unsigned i = 0; i < t->n_levels; i++)
        best = t->rates[i] > best ? t->rates[i] : best;
    return best;
}

static bool wants_sample(const struct gq_tuner *t, unsigned level)
{
    return t->samples[level] < SAMPLES &&
           (!t->samples[level] || t->rates[level] >= best_rate(t) * HOPELESS_PERCENT / 100);
}

/*
 * Returns the level to sample next: the choice, then the level with the fewest
 * samples. If no sample is missing, returns the choice.
 */
static unsigned next_sample(const struct gq_tuner *t)
{
    unsigned next = t->choice;
    bool found = wants_sample(t, next);

    for (unsigned i = first_of_reach(t); i < end_of_reach(t); i++) {
        if (wants_sample(t, i) && (!found || t->samples[i] < t->samples[next])) {
            next = i;
            found = true;
        }
    }
    return next;
}

unsigned gq_tuner_next(const struct gq_tuner *t)
{
    return t->searches && t->n_levels ? t->queues[next_sample(t)] : gq_tuner_choice(t);
}

/* Returns the best level, or the choice if no sample has a rate. */
static unsigned best_level(const struct gq_tuner *t)
{
    uint64_t best = best_rate(t);
    unsigned level = 0;

    if (!best)
        return t->choice;
    while (t->rates[level] < best * EQUAL_PERCENT / 100)
        level++;
    return level;
}

static void end_search(struct gq_tuner *t)
{
    t->searches = false;
    t->has_chosen = true;
    t->pause = t->period;
    t->period = (unsigned)min_u64(2 * t->period, PAUSE_MOST);
}

/* All neighbouring levels have been sampled: move to the best one, or stop. */
static void tuner_settle(struct gq_tuner *t)
{
    t->choice = best_level(t);
    if (!wants_sample(t, next_sample(t)))
        end_search(t);
}

void gq_tuner_add(struct gq_tuner *t, unsigned queues, uint64_t bytes, uint64_t ns)
{
    unsigned level = next_sample(t);
    uint64_t rate;

    if (!t->n_levels)
        return;
    if (!t->searches) {
        if (--t->pause == 0)
            begin_search(t);
        return;
    }
    rate = ns && queues == t->queues[level] ? bytes * NS_PER_MS / ns : 0;
    t->samples[level]++;
    t->rates[level] = rate > t->rates[level] ? rate : t->rates[level];
    if (!wants_sample(t, next_sample(t)))
        tuner_settle(t);
}
