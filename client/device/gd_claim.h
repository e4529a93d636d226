/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A group of a shared queue (gd_shared.h) takes the lead, releases it, and claims CIDs.
 *
 * Every function is called by all lanes of the group together unless noted otherwise.
 */
#ifndef CLIENT_DEVICE_GD_CLAIM_H
#define CLIENT_DEVICE_GD_CLAIM_H

#include "client/device/gd_shared.h"

/* Failed claims of a group until it accepts less than half of the CIDs that it wants: 2 ms. */
#define GD_PATIENCE 256u

/* Tries of a group that waits, of which one loads the lock: some 0.1 ms. */
#define GD_LOCK_TRIES 32u

/*
 * Unlocks the queue. The store waits for stores of this leader that stores of the next one must not
 * overtake: states of CIDs, doorbells. None are in flight when the last command has ended.
 */
GQ_FN void gd_stop_leading(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    bool waits = gq_reveal_cmds(w) || w->lead.in_flight || w->lead.rang || w->lead.broken;
    uint32_t word = gd_word_of(&w->lead);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0 && waits)
            gd_unlock(s->lock, word);
        else if (lane == 0)
            gd_unlock_fenced(s->lock, word);
    }
    s->leads = false;
}

/* Becomes the leader if no group is. Returns the previous word of the lock. */
GQ_FN uint32_t gd_lead_if_free(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, word);
    uint32_t found;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(word) = gd_try_lead(s->lock);
    }
    found = GQ_FROM32(word, 0);
    s->leads = GD_LEADS(found);
    if (s->leads)
        w->lead = gd_lead_of(found);
    return found;
}

/*
 * Is a claim of `cids` CIDs for n reads kept? At least half of the reads, or of the CIDs of the
 * queue, are needed; after GD_PATIENCE claims one CID suffices. Otherwise, with more reads than
 * CIDs, each group would get a few at a time, and execute all its code for each few.
 */
GQ_FN bool gd_suffices(const struct gd_share *s, uint32_t cids, uint32_t n)
{
    uint32_t most = n < s->q.n_cids ? n : s->q.n_cids;

    return s->tries >= GD_PATIENCE ? cids != 0 : 2 * cids >= most;
}

/* The word of CIDs for the next claim for n lanes. */
GQ_FN uint32_t gd_claim_word(const struct gd_share *s, uint32_t n)
{
    return s->low ? 0 : (s->seed * n / 32u + s->tries) % gq_cid_words(&s->q);
}

/*
 * By one lane, before a repeated claim: GD_LOST if the lock was loaded and has it. Only the lock
 * tells of a queue that was lost to a reader that had it alone: no CID is lost then, and tickets
 * may keep all CIDs. A GPU serves one load of a word after another, so of all tries of groups that
 * wait one in GD_LOCK_TRIES loads it. So does each try after a queue that was found lost, because
 * gd_try_elsewhere() needs the number of lost queues in succession.
 */
GQ_FN uint32_t gd_peek_lost(const struct gd_share *s)
{
    return s->lost || s->tries % GD_LOCK_TRIES == 0 ? gd_load32(s->lock) & GD_LOST : 0;
}

/*
 * Before a repeated claim: may it succeed, or find that the queue or the file's queues are lost?
 * Loads delay claims of other groups less than atomic operations do. Of the file, whose words are
 * the same for all groups that wait, one is loaded: a GPU serves one load of a word after another.
 * The lock is loaded first, because the compiler waits for a conditional load, and for those before
 * it, where the lanes converge.
 */
GQ_STEP bool gd_may_claim(struct gd_share *s, uint32_t wanting)
{
    const struct gq_sharer *w = &s->q;
    uint32_t n = gq_count_ones(wanting), word = gd_claim_word(s, n);
    GQ_LANE_VAR(uint32_t, lost);
    GQ_LANE_VAR(uint32_t, taken);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(lost) = gd_peek_lost(s);
            GQ_AT(taken) = gq_atomic_load(&w->cids->taken[word]);
            GQ_AT(lost) |= gd_load32(&s->file->set.n_queues) == 0;
            GQ_AT(lost) |= gq_atomic_load(&w->cids->lost);
        }
    }
    if (GQ_FROM32(lost, 0))
        return true;
    s->lost = 0;
    return gd_suffices(s, 32u - gq_count_ones(GQ_FROM32(taken, 0)), n);
}

/* Returns the word of the lock. A group with commands, or with its first claim, tries to lead. */
GQ_FN uint32_t gd_check_lock(struct gd_share *s)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, word);

    if (s->tries == 0 || gd_active(s))
        return gd_lead_if_free(s);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(word) = gd_load32(s->lock);
    }
    return GQ_FROM32(word, 0);
}

/*
 * The first CID of a queue is not claimed when a ticket begins, only when one is ended: such a
 * group keeps it only until its command has completed. So a group gets a CID although tickets, also
 * its own, hold all other CIDs of the queue.
 */
GQ_FN uint32_t gd_reserved_bits(const struct gd_share *s, uint32_t word)
{
    return s->leaves && word == 0 ? 1u : 0;
}

/*
 * Claims CIDs for the lanes in `wanting`, and tries to lead at the same time. Returns the claimed
 * CIDs of word *at of w->cids. A group with commands stays at their queue, and does not count how
 * often it finds that one lost.
 */
GQ_STEP uint32_t gd_claim(struct gd_share *s, uint32_t wanting, uint32_t *at)
{
    struct gq_sharer *w = &s->q;
    uint32_t n = gq_count_ones(wanting), first = s->seed * n;
    uint32_t word = gd_claim_word(s, n), found = 0;
    uint32_t reserved = gd_reserved_bits(s, word), bits = gq_some_bits(n, first) & ~reserved;
    GQ_LANE_VAR(uint32_t, got);
    GQ_LANE_VAR(uint32_t, lost);
    uint32_t *taken = &w->cids->taken[word];

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(lost) = gq_atomic_load(&w->cids->lost);
            GQ_AT(got) = gq_atomic_or(taken, bits);
        }
    }
    if (!s->leads)
        found = gd_check_lock(s) & GD_LOST;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(lost) |= found;
            GQ_AT(got) = gq_claim_more(taken, bits, GQ_AT(got) | reserved, n);
            if (GQ_AT(got) & reserved) {
                gq_atomic_clear(taken, reserved);
                GQ_AT(got) &= ~reserved;
            }
            if (GQ_AT(lost) || !gd_suffices(s, gq_count_ones(GQ_AT(got)), n)) {
                gq_atomic_clear(taken, GQ_AT(got));
                GQ_AT(got) = 0;
            }
        }
    }
    s->lost = GQ_FROM32(lost, 0) && !gd_active(s) ? s->lost + 1 : 0;
    *at = word;
    return GQ_FROM32(got, 0);
}

#endif
