/* SPDX-License-Identifier: BSD-2-Clause */
/* Number of queues of large transfers. */
#include "cuda/engine/gq_tuner.h"

#include <limits.h>

#include "support/clock.h"

#define ROUNDS 3u /* samples of each level; the first transfers also warm up caches */
/* After a round levels below this part of the best one are not measured again. */
#define HOPELESS_PERCENT 80u
/* Fewer queues are chosen when they reach this part of the best rate: other transfers have more. */
#define EQUAL_PERCENT 97u

/* The next smaller number of the form 2^n or 3 * 2^n. */
static unsigned next_level(unsigned queues)
{
    unsigned below = 1;

    while (2 * below < queues)
        below *= 2;
    return 3 * below / 2 < queues && below > 1 ? 3 * below / 2 : below;
}

void gq_tuner_init(struct gq_tuner *t, unsigned most)
{
    *t = (struct gq_tuner){.rounds = ROUNDS};
    for (unsigned queues = most;
         queues && t->n_levels<GQ_TUNER_LEVELS; queues = queues> 1 ? next_level(queues) : 0)
        t->queues[t->n_levels++] = queues;
}

unsigned gq_tuner_queues(const struct gq_tuner *t)
{
    return t->n_levels ? t->queues[t->level] : UINT_MAX;
}

static uint64_t best_rate(const struct gq_tuner *t)
{
    uint64_t best = 0;

    for (unsigned i = 0; i < t->n_levels; i++)
        best = t->rates[i] > best ? t->rates[i] : best;
    return best;
}

static void drop_hopeless(struct gq_tuner *t)
{
    uint64_t least = best_rate(t) * HOPELESS_PERCENT / 100;
    unsigned n = 0;

    for (unsigned i = 0; i < t->n_levels; i++) {
        if (t->rates[i] < least)
            continue;
        t->queues[n] = t->queues[i];
        t->rates[n++] = t->rates[i];
    }
    t->n_levels = n;
}

static void choose(struct gq_tuner *t)
{
    uint64_t least = best_rate(t) * EQUAL_PERCENT / 100;

    for (unsigned i = 0; i < t->n_levels; i++) {
        if (t->rates[i] >= least)
            t->level = i;
    }
}

static unsigned log2_of(uint64_t n)
{
    unsigned shift = 0;

    while (shift < 63 && n >> (shift + 1))
        shift++;
    return shift;
}

static bool is_sample(const struct gq_tuner *t, unsigned queues, uint64_t each, uint64_t bytes)
{
    bool is_first = t->rounds == ROUNDS && t->level == 0;

    return t->rounds && queues == gq_tuner_queues(t) && bytes >= GQ_TUNER_BYTES &&
           (is_first || log2_of(each) == t->log2_each);
}

void gq_tuner_add(struct gq_tuner *t, unsigned queues, uint64_t each, uint64_t bytes, uint64_t ns)
{
    uint64_t rate = bytes * NS_PER_MS / (ns + 1);

    if (!is_sample(t, queues, each, bytes))
        return;
    t->log2_each = log2_of(each);
    if (rate > t->rates[t->level])
        t->rates[t->level] = rate;
    if (++t->level < t->n_levels)
        return;
    t->level = 0;
    drop_hopeless(t);
    if (--t->rounds == 0)
        choose(t);
}
