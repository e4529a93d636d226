/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the poster and the keeper of copy slots. */
#include "sim/gpu/sim_copy_slots.h"

#include <errno.h>
#include <string.h>

/* The load acquires, so data stored before the count is visible. */
static uint32_t copy_slots_count(const struct sim_copy_kernel_counts *c, unsigned block)
{
    return __atomic_load_n(&c->of[block], __ATOMIC_ACQUIRE);
}

/* Numbers wrap around; distances are compared. */
static bool has_reached(uint32_t count, uint32_t number)
{
    return (int32_t)(count - number) >= 0;
}

static unsigned under_way(const struct sim_poster *p, unsigned block)
{
    return p->posted[block] - copy_slots_count(&p->m->done, block);
}

/*
 * If there is little work, few blocks copy, and the kernels of the remaining
 * blocks end.
 */
static unsigned least_busy(const struct sim_poster *p)
{
    unsigned best = 0, least = under_way(p, 0);

    for (unsigned b = 1; b < p->blocks && least; b++) {
        unsigned n = under_way(p, b);

        if (n < least) {
            best = b;
            least = n;
        }
    }
    return best;
}

/*
 * Returns the number of leading copies that have the length of the first one
 * and fit into one slot.
 */
static unsigned batch_len(const struct sim_gather *copies, unsigned n)
{
    unsigned i = 1;

    n = n < SIM_COPY_KERNEL_BATCH ? n : SIM_COPY_KERNEL_BATCH;
    while (i < n && copies[i].len == copies[0].len)
        i++;
    return i;
}

int sim_poster_room(const struct sim_poster *p, const struct sim_gather *copies, unsigned n)
{
    unsigned slots = p->blocks * SIM_COPY_KERNEL_SLOTS, full = 0, batches = 0;

    for (unsigned b = 0; b < p->blocks; b++)
        full += under_way(p, b);
    if (n <= slots - full)
        return 0;
    for (unsigned i = 0; i < n; batches++)
        i += batch_len(copies + i, n - i);
    if (batches > slots)
        return -ENOSPC;
    return batches > slots - full ? -EAGAIN : 0;
}

/*
 * Returns the minimum number of words that a filling writes: those of the first
 * line, whose head describes the rest.
 */
static unsigned words_written(uint32_t fill)
{
    return fill % SIM_COPY_KERNEL_RENEWAL ? SIM_COPY_KERNEL_LINE : SIM_COPY_KERNEL_WORDS;
}

/*
 * Posts the first copies, as many as have one length and fit into a slot.
 * Returns their number.
 *
 * The head is stored last. A reader that sees it sees all earlier stores,
 * except in words that it loaded together with the head; it recognises old ones
 * by their tags. A word left by the 128th filling before would have a valid
 * tag, so every 64th filling writes all words.
 */
static unsigned sim_copy_post(struct sim_poster *p, unsigned block, const struct sim_gather *copies,
                              unsigned n)
{
    uint32_t batch = p->posted[block]++, fill = batch / SIM_COPY_KERNEL_SLOTS + 1;
    uint64_t tag = SIM_COPY_KERNEL_TAG(fill), len = copies[0].len;
    uint64_t shift = (uint64_t)__builtin_ctzll(len);
    uint64_t *words =
        p->m->slots[block * SIM_COPY_KERNEL_SLOTS + batch % SIM_COPY_KERNEL_SLOTS].words;
    unsigned most = n < SIM_COPY_KERNEL_BATCH ? n : SIM_COPY_KERNEL_BATCH, in_slot = 0;

    words[1] = tag;
    for (; in_slot < most && copies[in_slot].len == len; in_slot++) {
        words[2 + 2 * in_slot] = copies[in_slot].dst | tag;
        words[3 + 2 * in_slot] = copies[in_slot].src | tag;
    }
    for (unsigned i = 2 + 2 * in_slot; i < words_written(fill); i++)
        words[i] = tag;
    __atomic_store_n(&words[0], in_slot | shift << 8 | tag, __ATOMIC_RELEASE);
    return in_slot;
}

void sim_poster_post(struct sim_poster *p, const struct sim_gather *copies, unsigned n,
                     struct sim_copy_kernel_ticket *ticket)
{
    for (unsigned done = 0; done < n;)
        done += sim_copy_post(p, least_busy(p), copies + done, n - done);
    memcpy(ticket->need, p->posted, sizeof(ticket->need));
}

bool sim_poster_done(const struct sim_poster *p, const struct sim_copy_kernel_ticket *ticket)
{
    for (unsigned b = 0; b < p->blocks; b++) {
        if (!has_reached(copy_slots_count(&p->m->done, b), ticket->need[b]))
            return false;
    }
    return true;
}

void sim_keeper_init(struct sim_keeper *k, const struct sim_poster *p, uint64_t idle_ns)
{
    *k = (struct sim_keeper){.poster = p};
    k->launch.idle_ns = idle_ns;
    k->launch.slots = p->m->slots;
    k->launch.done = p->m->done.of;
    k->launch.ended = p->m->ended.of;
}

static bool copy_slots_has_ended(const struct sim_keeper *k, unsigned block, uint32_t launch)
{
    return has_reached(copy_slots_count(&k->poster->m->ended, block), launch);
}

/*
 * Returns a stream without a running launch, or SIM_KEEPER_STREAMS if there is
 * none.
 */
static unsigned copy_slots_free_stream(const struct sim_keeper *k)
{
    for (unsigned i = 0; i < SIM_KEEPER_STREAMS; i++) {
        bool ended = true;

        for (unsigned b = 0; b < k->poster->blocks; b++)
            ended =
                ended && (!k->in_stream[i][b] || copy_slots_has_ended(k, b, k->in_stream[i][b]));
        if (ended)
            return i;
    }
    return SIM_KEEPER_STREAMS;
}

bool sim_keeper_is_needed(const struct sim_keeper *k)
{
    for (unsigned b = 0; b < k->poster->blocks; b++) {
        if (under_way(k->poster, b) && copy_slots_has_ended(k, b, k->launched[b]))
            return true;
    }
    return false;
}

bool sim_keeper_has_lost(const struct sim_keeper *k, const struct sim_copy_kernel_ticket *ticket)
{
    bool missing = false;

    for (unsigned b = 0; b < k->poster->blocks; b++) {
        /*
         * `ended` is loaded first, so that the last count of an ended kernel is
         * seen.
         */
        bool gone = copy_slots_has_ended(k, b, k->launched[b]);
        bool done = has_reached(copy_slots_count(&k->poster->m->done, b), ticket->need[b]);

        if (!done && !gone)
            return false;
        missing |= !done;
    }
    return missing;
}

/*
 * Marks the blocks of this stream as having no kernel. Its launch has failed, so
 * no kernel will store the end.
 */
static void take_back(struct sim_keeper *k, unsigned stream)
{
    for (unsigned b = 0; b < k->poster->blocks; b++) {
        if (!k->launch.launch[b])
            continue;
        k->in_stream[stream][b] = 0;
        k->launched[b] = copy_slots_count(&k->poster->m->ended, b); /* the last launch that ran */
    }
}

int sim_keeper_peek(struct sim_keeper *k)
{
    unsigned stream = sim_keeper_is_needed(k) ? copy_slots_free_stream(k) : SIM_KEEPER_STREAMS;
    int err;

    if (stream == SIM_KEEPER_STREAMS)
        return 0; /* the keeper checks again */
    for (unsigned b = 0; b < k->poster->blocks; b++) {
        uint32_t next = k->launched[b] + 1 ? k->launched[b] + 1 : 1; /* 0 means none */

        k->launch.launch[b] = copy_slots_has_ended(k, b, k->launched[b]) ? next : 0;
        if (!k->launch.launch[b])
            continue;
        k->launch.first[b] = copy_slots_count(
            &k->poster->m->done, b); /* count after the end; an older one would repeat copies */
        k->in_stream[stream][b] = next;
        k->launched[b] = next;
    }
    err = k->run(k->ctx, &k->launch, k->poster->blocks, stream);
    if (err)
        take_back(k, stream);
    return err;
}
