/* SPDX-License-Identifier: BSD-2-Clause */
/* Number of queues of large transfers. */
#include "cuda/engine/gq_tuner.h"

#include <limits.h>
#include <string.h>

#include "support/clock.h"
#include "support/minmax.h"

#define START   6u /* queues: between the best numbers of one to eight processors */
#define REACH   2u /* levels to each side of the choice */
#define SAMPLES 2u /* of each level; the best counts, because disturbances only slow down */
/* A level below this part of the best one after its first sample has no other. */
#define HOPELESS_PERCENT 75u
/* Fewer queues are chosen when they reach this part of the best rate: other transfers have more. */
#define EQUAL_PERCENT 98u
/* A search takes some ten transfers: at first a twelfth, later a hundredth, of all. */
#define PAUSE_FIRST 128u
#define PAUSE_MOST  1024u

/* The next larger number of the form 2^n or 3 * 2^n. */
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

/* The choice first, then those with the fewest samples. The choice itself: none is missing. */
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

/* The choice, when no sample has a rate. */
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

/* No level in reach lacks a sample: the search moves on, or ends. */
static void settle(struct gq_tuner *t)
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
        settle(t);
}
