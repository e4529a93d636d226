/* SPDX-License-Identifier: BSD-2-Clause */
/* The path of transfers, chosen by measurement. */
#include "client/lib/path_choice.h"

#include "support/clock.h"
#include "support/minmax.h"

/* Bits of a phase; the rest is its number. */
#define BOUNCES     1u /* the choice, not a trial's path */
#define IS_TRIAL    2u
#define IS_MEASURED 4u
#define NUMBER      8u

#define MOST_FAILED 5u /* trials without a result, each of which doubles the next allowance */

#define SHARE 50u /* trials lose one part of the time in so many */
/* A transfer counts as at most this: a process may be stopped in the middle of one. */
#define MOST_NS ((uint64_t)100 * NS_PER_MS)
/* The other path becomes the choice when it takes less than the choice by one part in so many. */
#define MARGIN 32u
/* Transfers of a phase: as many as PHASE_BYTES, most of which the kernel has read ahead. */
#define PHASE_BYTES ((uint64_t)1 << 20)
#define PHASE_LEAST 8u
#define PHASE_MOST  64u
#define SHORTEST    12u /* 2^12: the smallest length that is not below */
/*
 * Where the two paths of a read met, with one thread (bench/RESULTS.md): the choice
 * until both are measured. The kernel reads ahead for small reads, but not with O_DIRECT.
 */
#define CROSSOVER        ((uint64_t)128 << 10)
#define CROSSOVER_DIRECT ((uint64_t)16 << 10)
/*
 * Writes through the page cache from here on are the GPU path's: the pages that bounced ones leave
 * slow down those by the GPU to the same place, so that the pipeline would stay the choice.
 */
#define CACHED_WRITES ((uint64_t)128 << 10)

/* --- Classes --------------------------------------------------------------------------------- */

static unsigned log2_of(uint64_t n)
{
    return n ? 63u - (unsigned)__builtin_clzll(n) : 0;
}

static unsigned path_choice_level_of(uint64_t len)
{
    return len < (uint64_t)1 << SHORTEST ? 0 : log2_of(len) - SHORTEST + 1;
}

/* The shortest length of a level. */
static uint64_t length_of(unsigned level)
{
    return level ? (uint64_t)1 << (level + SHORTEST - 1) : 0;
}

static uint32_t phase_length(uint64_t bytes)
{
    return (uint32_t)max_u64(PHASE_LEAST, min_u64(PHASE_MOST, PHASE_BYTES / (bytes | 1)));
}

static void init_level(struct path_choices *all, unsigned level)
{
    uint64_t len = length_of(level);
    uint32_t phase = phase_length(len);

    path_choice_init(&all->single[0][0][level], len < CROSSOVER, phase);
    path_choice_init(&all->single[0][1][level], len < CROSSOVER_DIRECT, phase);
    for (unsigned direct = 0; direct < 2; direct++) {
        path_choice_init(&all->single[1][direct][level], false, phase);
        for (unsigned count = 0; count < PATH_CHOICE_COUNTS; count++)
            path_choice_init(&all->lists[direct][count][level], false, phase);
    }
}

void path_choices_init(struct path_choices *all)
{
    for (unsigned level = 0; level < PATH_CHOICE_LENGTHS; level++)
        init_level(all, level);
}

struct path_choice *path_choice_of(struct path_choices *all, bool write, bool direct, uint64_t len)
{
    unsigned level = path_choice_level_of(len);

    if (level >= PATH_CHOICE_LENGTHS || (write && !direct && len >= CACHED_WRITES))
        return NULL;
    return &all->single[write][direct][level];
}

struct path_choice *path_choice_of_list(struct path_choices *all, bool direct, size_t pieces,
                                        uint64_t bytes)
{
    unsigned count = log2_of(pieces), level = path_choice_level_of(bytes);

    return count < PATH_CHOICE_COUNTS && level < PATH_CHOICE_LENGTHS
               ? &all->lists[direct][count][level]
               : NULL;
}

/* --- Phases ---------------------------------------------------------------------------------- */

void path_choice_init(struct path_choice *c, bool bounces, uint32_t length)
{
    *c = (struct path_choice){.phase = bounces ? BOUNCES : 0, .length = length};
}

/* Relaxed: a phase orders no other memory. */
uint32_t path_choice_ask(const struct path_choice *c)
{
    return atomic_load_explicit(&c->phase, memory_order_relaxed);
}

bool path_choice_is_trial(uint32_t phase)
{
    return phase & IS_TRIAL;
}

bool path_choice_is_measured(uint32_t phase)
{
    return phase & IS_MEASURED;
}

static bool path_choice_choice_of(uint32_t phase)
{
    return phase & BOUNCES;
}

bool path_choice_bounces(uint32_t phase)
{
    return path_choice_choice_of(phase) != path_choice_is_trial(phase);
}

/* ns of a transfer; 0: unknown. */
static uint64_t estimate(const struct path_choice *c, bool bounces)
{
    const uint64_t *means = c->means[bounces];

    return means[0] && means[1] ? min_u64(means[0], means[1]) : means[0] | means[1];
}

static uint32_t settling(const struct path_choice *c)
{
    return c->length / 8;
}

static void record(struct path_choice *c, bool bounces)
{
    c->means[bounces][1] = c->means[bounces][0];
    c->means[bounces][0] = c->ns / c->counted | 1; /* 0 would be none */
}

static void count_anew(struct path_choice *c)
{
    c->ns = 0;
    c->counted = 0;
}

static void begin_phase(struct path_choice *c, uint32_t bits)
{
    uint32_t number = path_choice_ask(c) & ~(NUMBER - 1);

    count_anew(c);
    c->ended = 0;
    atomic_store_explicit(&c->phase, (number + NUMBER) | bits, memory_order_relaxed);
}

/*
 * A path that was never measured may take twice as long. The upper bound lets a path that was slow
 * once be tried again; the lower one keeps paths that are alike from changing all the time.
 */
static uint64_t likely_loss(const struct path_choice *c, bool choice)
{
    uint64_t ns = estimate(c, choice), other = estimate(c, !choice);
    uint64_t more = other > ns ? other - ns : 0;

    return c->length * (other ? max_u64(ns / 4, min_u64(more, 4 * ns)) : ns) << c->failed;
}

static void end_regular(struct path_choice *c, uint32_t phase)
{
    bool choice = path_choice_choice_of(phase);

    record(c, choice);
    count_anew(c);
    if (c->allowance > 0 && (uint64_t)c->allowance >= likely_loss(c, choice))
        begin_phase(c, (phase & (BOUNCES | IS_MEASURED)) | IS_TRIAL);
}

static bool is_better(const struct path_choice *c, bool bounces)
{
    uint64_t ns = estimate(c, !bounces);

    return estimate(c, bounces) < ns - ns / MARGIN;
}

static void end_trial(struct path_choice *c, uint32_t phase)
{
    bool choice = path_choice_choice_of(phase);
    uint32_t bits = phase & (BOUNCES | IS_MEASURED);

    if (c->counted == c->length) {
        record(c, !choice);
        if (is_better(c, !choice))
            bits ^= BOUNCES;
        bits |= IS_MEASURED;
        c->failed = 0;
    } else if (c->failed < MOST_FAILED) {
        c->failed++;
    }
    if (c->allowance > 0)
        c->allowance = 0;
    begin_phase(c, bits);
}

/* What a transfer takes more than one of the choice, or less. */
static void path_choice_charge(struct path_choice *c, bool choice, uint64_t ns)
{
    uint64_t usual = estimate(c, choice);

    if (usual)
        c->allowance -= (int64_t)(ns - usual);
}

static void add_to_phase(struct path_choice *c, uint32_t phase, uint64_t ns)
{
    bool is_trial = path_choice_is_trial(phase), settles = c->ended < settling(c);

    c->ended++;
    if (is_trial || settles)
        path_choice_charge(c, path_choice_choice_of(phase), ns);
    if (!is_trial)
        c->allowance += (int64_t)(ns / SHARE);
    if (!settles) {
        c->ns += ns;
        c->counted++;
    }
    if (is_trial && (c->counted == c->length || c->allowance < 0))
        end_trial(c, phase);
    else if (!is_trial && c->counted == c->length)
        end_regular(c, phase);
}

void path_choice_add(struct path_choice *c, uint32_t phase, uint64_t ns)
{
    /* Acquire: what the thread stored that added before. */
    if (atomic_exchange_explicit(&c->adding, true, memory_order_acquire))
        return;
    uint32_t now = path_choice_ask(c);
    ns = min_u64(ns, MOST_NS);
    if (phase == now)
        add_to_phase(c, phase, ns);
    else if (path_choice_bounces(phase) != path_choice_choice_of(now))
        path_choice_charge(c, path_choice_choice_of(now), ns); /* begun in a trial */
    /* Release: for the thread that adds next. */
    atomic_store_explicit(&c->adding, false, memory_order_release);
}
