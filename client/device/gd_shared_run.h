/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the engine of the shared queues (gd_shared.h). The engine runs the reads of a group
 * from the first command to the end of the last command.
 *
 *   gd_submit    claims CIDs for lanes without one, prepares their commands, and publishes or
 *                posts them
 *   gd_wait      runs a round of the leader, or polls the states of commands and the lock
 *   gd_collect   copies data out of staging, releases CIDs, and reports errors
 *   gd_watch     checks deadlines, leases and queues without a leader every GD_TURNS turns
 *
 * No wake-up is lost. A waiting group polls the lock at each turn, and leads when the lock is free.
 *
 * Every function is called by all lanes of the group together unless noted otherwise.
 */
#ifndef CLIENT_DEVICE_GD_SHARED_RUN_H
#define CLIENT_DEVICE_GD_SHARED_RUN_H

#include "client/device/gd_copy.h"
#include "client/device/gd_shared.h"

/* --- The lead, and CIDs ----------------------------------------------------------------------- */

/*
 * Number of failed claims of a group, about 2 ms, after which it accepts less
 * than half of the CIDs that it wants.
 */
#define GD_PATIENCE 256u

/*
 * A group that waits loads the lock once in this many tries, about every 0.1
 * ms.
 */
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
            GQ_AT(word) = gd_try_lock(s->lock, GD_LED);
    }
    found = GQ_FROM32(word, 0);
    s->leads = GD_LEADS(found);
    if (s->leads)
        w->lead = gd_lead_of(found);
    return found;
}

/*
 * Returns true if a claim of `cids` CIDs for n reads is kept. At least half of the reads, or of the
 * CIDs of the queue, are needed; after GD_PATIENCE claims one CID suffices. Otherwise, with more
 * reads than CIDs, each group would get a few at a time, and execute all its code for each few.
 */
GQ_FN bool gd_suffices(const struct gd_share *s, uint32_t cids, uint32_t n)
{
    uint32_t most = n < s->q.n_cids ? n : s->q.n_cids;

    return s->tries >= GD_PATIENCE ? cids != 0 : 2 * cids >= most;
}

/* Returns the word of CIDs for the next claim for n lanes. */
GQ_FN uint32_t gd_claim_word(const struct gd_share *s, uint32_t n)
{
    return s->low ? 0 : (s->seed * n / 32u + s->tries) % gq_cid_words(&s->q);
}

/*
 * Called by one lane before a repeated claim. Returns GD_LOST if the lock was loaded and has it.
 * Only the lock shows a queue that was lost to a reader that had it for itself: no CID is lost
 * then, and tickets may keep all CIDs. A GPU serves one load of a word after another, so only one
 * try in GD_LOCK_TRIES loads the lock. Each try after a queue that was found lost loads it, too,
 * because gd_try_elsewhere() needs the number of lost queues in succession.
 */
GQ_FN uint32_t gd_peek_lost(const struct gd_share *s)
{
    return s->lost || s->tries % GD_LOCK_TRIES == 0 ? gd_load32(s->lock) & GD_LOST : 0;
}

/*
 * Returns true if a repeated claim may succeed, or may find that the queue or the file's queues are
 * lost. Loads delay claims of other groups less than atomic operations do. Only one word of the
 * file is loaded, because all groups that wait load the same one, and a GPU serves one load of a
 * word after another. The lock is loaded first, because the compiler waits for a conditional load,
 * and for those before it, where the lanes converge.
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

/* --- Errors and waiting for CIDs -------------------------------------------------------------- */

/* Ends the reads of the lanes in `of` with an error, unless their command has ended meanwhile. */
GQ_FN void gd_fail(struct gd_share *s, uint32_t of, int err)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (of >> lane & 1u &&
            (m->stage == GQ_STAGE_NONE || (m->stage != GQ_STAGE_ENDED && gq_give_up(w, m)))) {
            m->cid = GQ_NO_CID;
            GQ_AT(s->part).err = err;
            GQ_AT(s->part).left = 0;
        }
    }
    if (s->leads)
        w->lead.lost = GQ_SAME32(gq_atomic_load(&w->cids->lost));
}

/*
 * Called after a claim that failed, or that was not made. A leader without commands of its own runs
 * one round for those of other groups, whose CIDs become free, and releases the queue. The pauses
 * of a group that only waits grow to some 3 us: its polls delay groups that read.
 */
GQ_STEP void gd_try_elsewhere(struct gd_share *s, uint32_t wanting)
{
    struct gq_sharer *w = &s->q;
    bool idle = gd_active(s) == 0;

    if (idle && s->leads) {
        (void)gq_lead_run(w);
        gd_stop_leading(s);
    }
    if (s->lost > s->n_shared) {
        gd_fail(s, wanting, gd_error_or_stale(w->group, s->file, -ETIMEDOUT));
        return;
    }
    if (idle && (s->lost || s->low || s->tries % gq_cid_words(w) == 0))
        gd_next_queue(s);
    for (uint32_t i = 0; idle && i < s->tries && i < GD_PAUSES; i++)
        gd_pause();
}

/* Stores the times at which a read began and its leases were last checked. */
struct gd_times {
    GQ_LANE_MEMBER(uint64_t, now);
    GQ_LANE_MEMBER(uint64_t, checked); /* lane 0's */
};

/* Sets the time at which the reads begin. Nothing waits for the words yet. */
GQ_FN void gd_load_times(struct gd_share *s, const struct gd_known *k, struct gd_times *t)
{
    const struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(t->checked) = lane == 0 ? gd_load64(k->checked_ns) : 0;
        GQ_AT(t->now) = gq_clock_ns();
        GQ_AT(s->part).sent_us = (uint32_t)(GQ_AT(t->now) >> 10);
    }
}

/*
 * Called before the first command of the reads, whose CIDs are `got` of a word. Returns false if
 * the leases have ended; the reads have failed then.
 */
GQ_FN bool gd_may_begin(struct gd_share *s, const struct gd_times *t, uint32_t wanting,
                        uint32_t word, uint32_t got)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, stale);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(stale) = gd_shared_lease_ended(s->file, GQ_AT(t->now), GQ_AT(t->checked));
            if (GQ_AT(stale))
                gq_atomic_clear(&w->cids->taken[word], got);
        }
    }
    if (!GQ_FROM32(stale, 0))
        return true;
    gd_fail(s, wanting, -ESTALE);
    return false;
}

/*
 * Restarts the time limits of commands that are about to be sent. Otherwise a command whose group
 * has waited long for a CID would time out early, and its queue would be lost.
 */
GQ_FN void gd_restart_times(struct gd_share *s)
{
    const struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(w->mine).stage == GQ_STAGE_READY)
            GQ_AT(s->part).sent_us = gd_clock_us();
    }
}

/*
 * Claims CIDs for the lanes with bytes left and no CID, as far as there are some, and submits their
 * commands. At first the tables are loaded in one trip with the claim, as are the words of the
 * leases when the reads begin.
 */
GQ_STEP void gd_submit(struct gd_share *s, const struct gd_known *k, uint32_t wanting, bool begins)
{
    struct gq_sharer *w = &s->q;
    bool early = s->tries == 0;
    struct gd_tables tables = {0};
    struct gd_times times = {0};
    uint32_t got, word;

    if (begins)
        gd_load_times(s, k, &times);
    if (!s->has_queue)
        gd_use_queue(s, k);
    s->sums = k->sums;
    s->staging = k->staging;
    if (early)
        gd_load_tables(s, k, &tables);
    s->low = s->low || k->stages_all;
    got = gd_claim(s, wanting, &word);
    if (begins && !gd_may_begin(s, &times, wanting, word, got))
        return;
    if (got == 0) {
        s->tries++;
        return;
    }
    if (!early)
        gd_load_tables(s, k, &tables);
    s->tries = 0;
    gq_deal_cids(w, word, got, wanting);
    gd_prepare(s, k, &tables);
    if (!early)
        gd_restart_times(s);
    if (!s->leads)
        gq_publish_cmds(w);
    else if (w->lead.in_flight == 0 && gd_active(s))
        gq_lead_start(w);
}

/*
 * Copies the bytes that came into the staging of CIDs, for the lanes in `of`.
 */
GQ_STEP void gd_copy_staged(struct gd_share *s, uint32_t of)
{
    const struct gq_sharer *w = &s->q;
    struct gd_copies c = {.group = w->group};

    GQ_FOR_LANES(lane)
    {
        const struct gd_part *p = &GQ_AT(s->part);

        if (of >> lane & 1u) {
            GQ_AT(c.src) = p->staged;
            GQ_AT(c.dst) = p->dst - p->bytes;
            GQ_AT(c.n) = p->bytes;
        }
    }
    gd_copy_each(&c, gd_copy_together(&c, of));
}

/*
 * Ends reads that the drive has refused with -EIO, or with -ESTALE if the leases have ended,
 * because queues are deleted while reads are under way.
 */
GQ_STEP void gd_fail_refused(struct gd_share *s, uint32_t of)
{
    const struct gq_sharer *w = &s->q;
    int err = gd_error_or_stale(w->group, s->file, -EIO);

    GQ_FOR_LANES(lane)
    {
        if (of >> lane & 1u) {
            GQ_AT(s->part).err = err;
            GQ_AT(s->part).left = 0;
        }
    }
}

/*
 * Handles blocks of lane i's command that do not match. They are read again once, and then the read
 * fails.
 */
GQ_STEP void gd_reject(struct gd_share *s, uint32_t i, uint64_t bad_block)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, again);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(again) = GQ_AT(s->part).again;
    }
    if (GQ_FROM32(again, i)) {
        gd_fail_refused(s, 1u << i);
        GQ_FOR_LANES(lane)
        {
            if (lane == i && GQ_AT(s->part).err == -EIO)
                gd_store64(s->file->bad_block, bad_block + 1);
        }
        return;
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == i) {
            GQ_AT(s->part).again = 1;
            gd_uncut(&GQ_AT(s->part));
        }
    }
}

/* Returns true if n bytes of lane i's command, at offset of the file, match. */
GQ_STEP bool gd_compare_one(struct gd_share *s, uint32_t i, uint64_t offset, uint32_t n,
                            uint64_t at)
{
    const struct gq_summer summer = {.group = s->q.group, .sums = s->sums};
    uint64_t bad = gq_find_bad_around(summer, offset, n, at);

    if (bad != GQ_NO_BAD_BLOCK)
        gd_reject(s, i, bad);
    return bad == GQ_NO_BAD_BLOCK;
}

/*
 * Compares the bytes of the commands of the lanes in `of`, before staged ones are copied. Returns
 * the lanes whose bytes match.
 */
GQ_STEP uint32_t gd_compare_cmds(struct gd_share *s, uint32_t of)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint64_t, offset);
    GQ_LANE_VAR(uint64_t, at);
    GQ_LANE_VAR(uint32_t, n);
    uint32_t good = 0;

    GQ_FOR_LANES(lane)
    {
        const struct gd_part *p = &GQ_AT(s->part);

        GQ_AT(offset) = p->offset - p->bytes;
        GQ_AT(at) = (p->staged ? p->staged : p->dst - p->bytes) - GQ_AT(offset) % GQ_SUM_BLOCK;
        GQ_AT(n) = p->bytes;
    }
    while (of) {
        uint32_t i = gq_take_one(&of);

        if (gd_compare_one(s, i, GQ_FROM64(offset, i), GQ_FROM32(n, i), GQ_FROM64(at, i)))
            good |= 1u << i;
    }
    GQ_FOR_LANES(lane)
    {
        if (good >> lane & 1u)
            GQ_AT(s->part).again = 0;
    }
    return good;
}

/*
 * Called after commands have ended: compares their bytes, copies those that came into staging, and
 * releases the CIDs. The fence orders the loads of staging before the release.
 */
GQ_STEP void gd_collect(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, failed);
    GQ_LANE_VAR(uint32_t, staged);
    GQ_LANE_VAR(uint32_t, read);
    uint32_t failures, copies, compares;

    GQ_FOR_LANES(lane)
    {
        const struct gq_mine *m = &GQ_AT(w->mine);
        bool ended = m->stage == GQ_STAGE_ENDED;

        GQ_AT(failed) = ended && m->status;
        GQ_AT(staged) = ended && !m->status && GQ_AT(s->part).staged != 0;
        GQ_AT(read) = ended && !m->status && s->sums.words;
    }
    failures = GQ_BALLOT(failed);
    copies = GQ_BALLOT(staged);
    compares = GQ_BALLOT(read);
    if (failures)
        gd_fail_refused(s, failures);
    if ((copies | compares) && s->leads)
        gd_stop_leading(s);
    if (compares)
        copies &= gd_compare_cmds(s, compares);
    if (copies) {
        gd_copy_staged(s, copies);
        gq_fence_device();
    }
    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (m->stage == GQ_STAGE_ENDED) {
            gq_release_cid(w->cids, m->cid);
            m->cid = GQ_NO_CID;
            m->stage = GQ_STAGE_NONE;
            if (GQ_AT(s->part).left)
                GQ_AT(s->part).sent_us = gd_clock_us();
        }
    }
}

/* Withdraws published commands that no leader has taken, so that they are submitted once more. */
GQ_STEP void gd_withdraw(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (m->stage == GQ_STAGE_PUBLIC && gq_withdraw(w, m->cid)) {
            gd_uncut(&GQ_AT(s->part));
            gq_release_cid(w->cids, m->cid);
            m->cid = GQ_NO_CID;
            m->stage = GQ_STAGE_NONE;
        }
    }
    if (gd_active(s) == 0)
        gd_next_queue(s);
}

/* Abandons a lost queue, in which commands in flight no longer complete. */
GQ_FN void gd_abandon(struct gd_share *s)
{
    gd_withdraw(s);
    gd_fail(s, gd_active(s), -EIO);
}

/* Executes a turn of waiting. */
GQ_STEP void gd_wait(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, word);
    uint32_t found;

    if (s->leads) {
        if (!gq_lead_run(w))
            gd_idle();
        (void)gq_poll_cmds(w);
        return;
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(word) = gd_load32(s->lock);
    }
    if (gq_poll_cmds(w))
        return;
    found = GQ_FROM32(word, 0);
    if (GD_LEADS(found))
        found = gd_lead_if_free(s);
    if ((found & GD_LOST) != 0)
        gd_abandon(s);
    else if (!s->leads)
        gd_rest();
}

/*
 * Called by a group that does not lead and has abandoned commands. If no other commands are in
 * flight, the lock becomes GD_LOST. Only a leader stores the lock, and it may have counted the lost
 * commands before, so the group waits until it leaves, at most for the time of a command.
 */
GQ_STEP void gd_mark_lost(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    uint64_t start = GQ_SAME64(gq_clock_ns()),
             limit = GQ_SAME64(gd_load64(&s->file->set.command_ns));
    uint32_t found;

    if (GQ_SAME32(gq_atomic_load(&w->cids->lost)) == 0)
        return;
    for (;;) {
        found = gd_lead_if_free(s);
        if (s->leads || (found & GD_LOST) || GQ_SAME64(gq_clock_ns()) - start > limit)
            break;
        gd_pause();
    }
    if (!s->leads)
        return;
    w->lead.lost = GQ_SAME32(gq_atomic_load(&w->cids->lost));
    gd_stop_leading(s);
}

/*
 * Checks deadlines, and leases, whose words are in host memory: one group checks them for all. A
 * file without queues has lost its lease, although the check may still be good.
 */
GQ_STEP void gd_watch(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    const struct gpunvme_device_file *f = s->file;
    uint32_t limit = (uint32_t)(gd_load64(&f->set.command_ns) >> 10), late, active = gd_active(s);
    bool is_stale;
    GQ_LANE_VAR(uint32_t, stale);
    GQ_LANE_VAR(uint32_t, is_late);

    GQ_FOR_LANES(lane)
    {
        const struct gd_part *p = &GQ_AT(s->part);
        uint32_t stage = GQ_AT(w->mine).stage;

        if (lane == 0) {
            uint64_t checked = gd_load64(f->checked_ns);

            GQ_AT(stale) = gd_load32(&f->set.n_queues) == 0 ||
                           gd_shared_lease_ended(f, gq_clock_ns(), checked);
        }
        GQ_AT(is_late) = stage != GQ_STAGE_ENDED && (stage != GQ_STAGE_NONE || p->left) &&
                         gd_clock_us() - p->sent_us > limit;
    }
    late = GQ_BALLOT(is_late);
    is_stale = GQ_FROM32(stale, 0) != 0;
    if (is_stale)
        gd_fail(s, active | gd_wanting(s), -ESTALE);
    else if (late)
        gd_fail(s, late, -ETIMEDOUT);
    else if (!s->leads)
        gd_withdraw(s);
    if ((is_stale || late) && active && !s->leads)
        gd_mark_lost(s);
}

/*
 * Called by a leader that found a completion of no command: the state of all commands in flight is
 * unknown.
 */
GQ_STEP void gd_break(struct gd_share *s)
{
    gd_fail(s, gd_active(s), -EIO);
    gd_stop_leading(s);
}

/*
 * Executes a step. Returns false if all reads of the group have ended and the group leads no queue.
 */
GQ_FN bool gd_step(struct gd_share *s)
{
    if (gd_active(s))
        gd_wait(s);
    if (s->leads && s->q.lead.broken)
        gd_break(s);
    gd_collect(s);
    if (++s->turns % GD_TURNS == 0)
        gd_watch(s);
    if (gd_active(s) || gd_wanting(s))
        return true;
    if (s->leads)
        gd_stop_leading(s);
    return false;
}

/* Begins the reads of a file as loaded: submits commands, unless the leases have ended. */
GQ_STEP void gd_share_begin(struct gd_share *s, const struct gd_known *k)
{
    uint32_t wanting = gd_wanting(s);

    if (s->n_shared == 0)
        gd_fail(s, wanting, -ESTALE);
    else if (wanting)
        gd_submit(s, k, wanting, true);
}

/*
 * Submits commands of lanes that wait for CIDs. If the file has lost its queues
 * (leased_file_disable()), locks and CIDs still exist, because the host frees them after this
 * kernel. The group then leaves locks and CIDs as after the end of a lease.
 */
GQ_STEP void gd_share_more(struct gd_share *s)
{
    uint32_t wanting = gd_wanting(s);

    if (wanting == 0)
        return;
    if (s->tries == 0 || gd_may_claim(s, wanting)) {
        const struct gd_known k = gd_load_known(s->file);

        if (k.n_queues == 0) {
            s->turns = GD_TURNS - 1; /* the next step watches */
            return;
        }
        gd_submit(s, &k, wanting, false);
    } else {
        s->tries++;
    }
    if (s->tries)
        gd_try_elsewhere(s, wanting);
}

/* Runs the reads that gd_share_begin() has begun until all these reads have ended. */
GQ_STEP void gd_share_end(struct gd_share *s)
{
    s->leaves = false;
    while (gd_step(s))
        gd_share_more(s);
}

/*
 * Leaves the queue between gd_share_begin() and gd_share_end(), for a group that does something
 * else meanwhile. Its published commands are posted by another leader or by itself.
 */
GQ_STEP void gd_share_leave(struct gd_share *s)
{
    if (!s->leads && gd_active(s))
        (void)gd_lead_if_free(s);
    if (!s->leads)
        return;
    (void)gq_lead_run(&s->q);
    gd_stop_leading(s);
}

/* Returns the first error of the lanes, or 0. */
GQ_FN int gd_first_error(struct gd_share *s)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, err);
    uint32_t mask;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(err) = (uint32_t)GQ_AT(s->part).err;
    }
    mask = GQ_BALLOT(err);
    return mask ? (int)GQ_FROM32(err, gq_prefix_ones(~mask)) : 0;
}

/* Division of a read into parts of whole units of the file, except at the ends. */
struct gd_dealt {
    uint64_t first, each; /* bytes in front of the read in its first unit; bytes of a part */
};

/*
 * Divides a read into parts of neighbouring units. If one command of `most` bytes suffices, the
 * first part is the whole read.
 */
GQ_FN struct gd_dealt gd_deal_out(uint32_t most, uint64_t len, uint64_t offset, uint32_t parts)
{
    uint32_t shift = gq_prefix_ones(gd_unit(most) - 1);
    uint64_t unit = (uint64_t)1 << shift, first = offset & (unit - 1);

    if (len <= most)
        return (struct gd_dealt){0, len};
    return (struct gd_dealt){first, ((((first + len + unit - 1) >> shift) + parts - 1) / parts)
                                        << shift};
}

/* Returns the bytes of part i, which may be none; *from is their place in the read. */
GQ_FN uint64_t gd_dealt_part(struct gd_dealt d, uint64_t len, uint32_t i, uint64_t *from)
{
    uint64_t to = (i + 1) * d.each - d.first;

    *from = i * d.each > d.first ? i * d.each - d.first : 0;
    to = to < len ? to : len;
    return *from < to ? to - *from : 0;
}

/* Deals one read, len bytes that end before the file does, to the lanes. */
GQ_FN void gd_deal(struct gd_share *s, uint32_t most, uint64_t dst, uint64_t len, uint64_t offset)
{
    const struct gq_sharer *w = &s->q;
    const struct gd_dealt d = gd_deal_out(most, len, offset, w->group.lanes);

    GQ_FOR_LANES(lane)
    {
        uint64_t from, left = gd_dealt_part(d, len, lane, &from);

        if (left) {
            GQ_AT(s->part).dst = dst + from;
            GQ_AT(s->part).offset = offset + from;
            GQ_AT(s->part).left = left;
        }
    }
}

/*
 * Begins a warp's read. Returns its bytes. `leaves` is true if the group leaves
 * the queue then.
 */
GQ_FN uint64_t gd_begin_warp(struct gd_share *s, const struct gpunvme_device_file *file,
                             uint64_t dst, uint64_t n, uint64_t offset, bool leaves)
{
    const struct gd_known k = gd_load_known(file);
    uint64_t len = offset < k.end ? (n < k.end - offset ? n : k.end - offset) : 0;

    gd_share_open(s, gq_whole_group(), file, &k, len);
    s->leaves = leaves;
    if (len) {
        gd_deal(s, k.most, dst, len, offset);
        gd_share_begin(s, &k);
    }
    return len;
}

/* Describes the reads that were begun. Each lane has one read, or the warp has one read. */
struct gpunvme_ticket {
    const struct gpunvme_device_file *file;
    uint32_t queue;
    uint32_t lease;               /* gd_set.number of the lease of the queue */
    GQ_LANE_MEMBER(int64_t, len); /* bytes of the read */
    GQ_LANE_MEMBER(struct gd_part, part);
    GQ_LANE_MEMBER(struct gq_mine, mine);
};

/* Called after gd_share_leave(). The caller sets the lengths. */
GQ_FN void gd_make_ticket(const struct gd_share *s, struct gpunvme_ticket *t)
{
    const struct gq_sharer *w = &s->q;

    t->file = s->file;
    t->queue = s->queue;
    t->lease = gd_load32(&s->file->set.number);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(t->part) = GQ_AT(s->part);
        GQ_AT(t->mine) = GQ_AT(w->mine);
    }
}

/*
 * Called if the file has lost the queues in which the tickets began. Ends their
 * reads, and touches no queue.
 */
GQ_FN void gd_end_all(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(w->mine).stage != GQ_STAGE_NONE || GQ_AT(s->part).left != 0)
            GQ_AT(s->part).err = -ESTALE;
        GQ_AT(w->mine).stage = GQ_STAGE_NONE;
        GQ_AT(s->part).left = 0;
    }
}

/* Continues reads that were begun in one queue. Deadlines count from now. */
GQ_FN void gd_resume(struct gd_share *s, struct gq_group group, const struct gpunvme_ticket *t,
                     uint64_t len)
{
    const struct gd_known k = gd_load_known(t->file);
    struct gq_sharer *w = &s->q;

    gd_share_open(s, group, t->file, &k, len);
    s->queue = t->queue;
    GQ_FOR_LANES(lane)
    {
        GQ_AT(s->part) = GQ_AT(t->part);
        GQ_AT(s->part).sent_us = gd_clock_us();
        GQ_AT(w->mine) = GQ_AT(t->mine);
    }
    if (k.n_queues == 0 || GQ_SAME32(gd_load32(&t->file->set.number)) != t->lease)
        gd_end_all(s);
    else if (gd_active(s))
        gd_use_queue(s, &k);
    gd_share_end(s);
}

#endif
