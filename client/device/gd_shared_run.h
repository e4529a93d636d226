/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The reads of a group through a shared queue (gd_shared.h), from their first command to the last
 * one's end:
 *
 *   gd_enter     lanes without a slot claim one, prepare their command, and publish or post it
 *   gd_stay      rounds of the leader, or looks at the slots and at the lock, until a command has
 *                ended after which something else is to do; looks at deadlines and leases
 *   gd_collect   copies out of staging, slots given back, errors
 *
 * Between the steps a group does not lead, and has only its parts and slots: few registers.
 *
 * No wake-up is lost: a group that waits looks at the lock at each turn, and leads when it is free.
 *
 * Every function is called by all lanes of the group together unless noted otherwise.
 */
#ifndef CLIENT_DEVICE_GD_SHARED_RUN_H
#define CLIENT_DEVICE_GD_SHARED_RUN_H

#include "client/device/gd_shared.h"

/* By one lane of the leader: is all that is in flight lost? */
GQ_FN bool gd_is_lost(const struct gd_share *s)
{
    const struct gq_lead *l = &s->q.lead;

    if (l->flags & GQ_LEAD_BROKEN)
        return true;
    return l->flags & GQ_LEAD_LOST && l->in_flight &&
           l->in_flight == gq_atomic_load(&s->q.slots->lost);
}

/*
 * Releases the queue. The store has to wait for stores of this leader that another one's must not
 * overtake: states of slots, doorbells. None are on their way when the last command has ended.
 */
GQ_FN void gd_stop_leading(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    struct gq_lead *l = &w->lead;
    bool waits = gq_reveal_slots(w) || l->in_flight || l->flags & (GQ_LEAD_RANG | GQ_LEAD_BROKEN);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            if (waits)
                gd_unlock(s->lock, gd_is_lost(s) ? GD_LOST : gd_word_of(l));
            else
                gd_unlock_fenced(s->lock, gd_word_of(l));
        }
    }
    s->leads = false;
}

/* Leads if no group does. Returns the word of the lock as it was. */
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
    w->lead = gd_lead_of(found);
    return found;
}

/*
 * Claims slots for the lanes in `wanting`, and tries to lead at the same time. Returns the claimed
 * slots of word *at.
 */
GQ_FN uint32_t gd_claim(struct gd_share *s, uint32_t wanting, uint32_t *at)
{
    struct gq_sharer *w = &s->q;
    const uint32_t golden_ratio = 0x9e3779b9u; /* its fraction, times 2^32 */
    uint32_t n = gq_count_ones(wanting), seed = GQ_SAME32(gd_seed()) * golden_ratio;
    uint32_t bits = gq_some_bits(n, seed >> 20), found;
    uint32_t word = s->low ? 0 : ((seed >> 25) + s->tries) % gq_slot_words(w);
    uint32_t *taken = &w->slots->taken[word];
    GQ_LANE_VAR(uint32_t, got);
    GQ_LANE_VAR(uint32_t, lost);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(lost) = gq_atomic_load(&w->slots->lost);
            GQ_AT(got) = gq_atomic_or(taken, bits);
        }
    }
    found = gd_lead_if_free(s);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(lost) |= found & GD_LOST;
            GQ_AT(got) = gq_claim_more(taken, bits, GQ_AT(got), n);
            if (GQ_AT(lost) && GQ_AT(got))
                gq_atomic_clear(taken, GQ_AT(got));
        }
    }
    s->lost = GQ_FROM32(lost, 0) ? s->lost + 1 : 0;
    *at = word;
    return s->lost ? 0 : GQ_FROM32(got, 0);
}

/* After gd_claim(): have the leases ended? Then the slots are given back. */
GQ_FN bool gd_is_stale(struct gd_share *s, uint64_t checked, uint32_t word, uint32_t got)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, stale);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(stale) = gd_look(s->file, gq_clock_ns(), checked);
            if (GQ_AT(stale))
                gq_atomic_clear(&w->slots->taken[word], got);
        }
    }
    return GQ_FROM32(stale, 0) != 0;
}

/* The reads of the lanes in `of` end with an error, unless their command has ended meanwhile. */
GQ_FN void gd_fail(struct gd_share *s, uint32_t of, int err)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (of >> lane & 1u && !(m->stage & GQ_ENDED) &&
            (m->stage == GQ_STAGE_NONE || gq_give_up(w, m)))
            GQ_AT(s->part).left = err;
    }
    w->lead.flags |= GQ_LEAD_LOST;
}

/* After a claim in vain. */
GQ_FN void gd_try_elsewhere(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;

    s->tries++;
    if (s->lost > gd_shared_queues(gd_load32(&s->file->set.n_queues)))
        gd_fail(s, gd_wanting(s), -ETIMEDOUT);
    else if (gd_active(s) == 0 && (s->lost || s->low || s->tries % gq_slot_words(w) == 0))
        s->moves = true;
    if (s->tries > gq_slot_words(w))
        gd_pause();
}

/* Claimed: the lanes' commands are made and submitted. */
GQ_FN void gd_submit(struct gd_share *s, const struct gd_known *k, struct gd_tables *t)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(struct gq_cmd, cmd);

    s->tries = 0;
    gd_prepare(s, k, t, cmd);
    if (s->leads && w->lead.in_flight == 0)
        gq_lead_start(w, cmd);
    else
        gq_publish_slots(w, cmd);
}

/* The file has lost its queues: all reads end, and nothing is touched. */
GQ_FN void gd_end_all(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(w->mine).stage != GQ_STAGE_NONE || GQ_AT(s->part).left > 0)
            GQ_AT(s->part).left = -ESTALE;
        GQ_AT(w->mine).stage = GQ_STAGE_NONE;
    }
    s->leads = false;
}

/*
 * Lanes with bytes left and no slot get one, as far as there are some, and submit a command, unless
 * the leases have ended. At first the tables travel together with the claim.
 */
GQ_FN void gd_enter(struct gd_share *s, const struct gd_known *k)
{
    struct gq_sharer *w = &s->q;
    uint32_t wanting = gd_wanting(s), got, word;
    bool early = s->tries == 0;
    struct gd_tables tables = {0};
    uint64_t checked;

    if (k->n_queues == 0) {
        gd_end_all(s);
        return;
    }
    gd_use_queue(s, k);
    if (wanting == 0)
        return;
    if (early)
        gd_load_tables(s, k, &tables);
    checked = gd_load64(k->checked_ns);
    s->low = s->low || k->stages_all;
    got = gd_claim(s, wanting, &word);
    if (gd_is_stale(s, checked, word, got)) {
        gd_fail(s, wanting, -ESTALE);
    } else if (got) {
        if (!early)
            gd_load_tables(s, k, &tables);
        gq_deal_slots(w, word, got, wanting);
        gd_submit(s, k, &tables);
    }
    if (s->leads && gd_active(s) == 0)
        gd_stop_leading(s);
    if (got == 0)
        gd_try_elsewhere(s);
}

/* Published commands that no leader has taken up: they are to be submitted once more. */
GQ_FN void gd_withdraw(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (m->stage == GQ_STAGE_PUBLIC && gq_withdraw(w, m->slot)) {
            gd_uncut(&GQ_AT(s->part));
            gq_free_slot(w->slots, m->slot);
            m->slot = GQ_NO_SLOT;
            m->stage = GQ_STAGE_NONE;
        }
    }
    s->moves = gd_active(s) == 0;
}

/*
 * Deadlines and leases, and a queue that no leader serves. The words of the leases are in host
 * memory: one group looks for all.
 */
GQ_FN void gd_watch(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    const struct gpunvme_device_file *f = s->file;
    uint32_t limit = (uint32_t)(gd_load64(&f->set.command_ns) >> 10), late;
    GQ_LANE_VAR(uint32_t, stale);
    GQ_LANE_VAR(uint32_t, is_late);

    GQ_FOR_LANES(lane)
    {
        const struct gd_part *p = &GQ_AT(s->part);

        if (lane == 0)
            GQ_AT(stale) = gd_look(f, gq_clock_ns(), gd_load64(f->checked_ns));
        GQ_AT(is_late) = (GQ_AT(w->mine).stage != GQ_STAGE_NONE || p->left > 0) &&
                         gd_clock_us() - p->sent_us > limit;
    }
    late = GQ_BALLOT(is_late);
    if (GQ_FROM32(stale, 0))
        gd_fail(s, gd_active(s) | gd_wanting(s), -ESTALE);
    else if (late)
        gd_fail(s, late, -ETIMEDOUT);
    else if (!s->leads)
        gd_withdraw(s);
}

/* The queue is lost: commands in flight have no completions any more. */
GQ_FN void gd_abandon(struct gd_share *s)
{
    gd_withdraw(s);
    gd_fail(s, gd_active(s), -EIO);
}

/* A turn of waiting. */
GQ_FN void gd_wait(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, word);
    uint32_t found;

    if (s->leads) {
        if (!gq_lead_run(w))
            gd_idle();
        (void)gq_poll_slots(w);
        if (w->lead.flags & GQ_LEAD_BROKEN)
            gd_fail(s, gd_active(s), -EIO);
        return;
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(word) = gd_load32(s->lock);
    }
    if (gq_poll_slots(w))
        return;
    found = GQ_FROM32(word, 0);
    if (GD_LEADS(found))
        found = gd_lead_if_free(s);
    if ((found & GD_LOST) != 0)
        gd_abandon(s);
    else if (!s->leads)
        gd_rest();
}

/* Is there more to do than to wait? wanting: lanes without a slot could use a free one. */
GQ_FN bool gd_is_due(struct gd_share *s, bool wanting)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, waits);
    GQ_LANE_VAR(uint32_t, due);

    GQ_FOR_LANES(lane)
    {
        uint32_t stage = GQ_AT(w->mine).stage;
        bool more = GQ_AT(s->part).left > 0 || GQ_AT(s->part).bytes & GD_STAGED || wanting;

        GQ_AT(waits) = stage == GQ_STAGE_HIDDEN || stage == GQ_STAGE_PUBLIC;
        GQ_AT(due) = stage & GQ_ENDED && more;
    }
    return GQ_BALLOT(waits) == 0 || GQ_BALLOT(due) != 0;
}

/* Waits for commands. Afterwards the group does not lead. */
GQ_FN void gd_stay(struct gd_share *s)
{
    uint32_t turns = 0;
    bool wanting = gd_wanting(s) != 0;

    while (!gd_is_due(s, wanting)) {
        gd_wait(s);
        if (++turns % GD_TURNS == 0)
            gd_watch(s);
    }
    if (s->leads)
        gd_stop_leading(s);
}

/* Copies the bytes that came into the staging of slots; `of`: the lanes. */
GQ_FN void gd_copy_staged(struct gd_share *s, uint32_t of)
{
    const struct gpunvme_device_file *f = s->file;
    const struct gq_sharer *w = &s->q;
    uint64_t base = gd_load64(&f->set.slot_staging.base);
    uint32_t lba_size = gd_load32(&f->map.lba_size);
    GQ_LANE_VAR(uint64_t, src);
    GQ_LANE_VAR(uint64_t, dst);
    GQ_LANE_VAR(uint32_t, n);

    GQ_FOR_LANES(lane)
    {
        const struct gd_part *p = &GQ_AT(s->part);

        if (of >> lane & 1u) {
            GQ_AT(n) = p->bytes & ~GD_STAGED;
            GQ_AT(src) = base + gd_staging_at(s, GQ_AT(w->mine).slot) +
                         ((p->offset - GQ_AT(n)) & (lba_size - 1));
            GQ_AT(dst) = p->dst - GQ_AT(n);
        }
    }
    while (of) {
        uint32_t i = gq_take_one(&of);

        GQ_FOR_LANES(lane)
        {
            gq_copy_bytes(GQ_FROM64(dst, i), GQ_FROM64(src, i), GQ_FROM32(n, i), lane,
                          w->group.lanes);
        }
    }
}

/* -EIO, or -ESTALE if the leases have ended: queues are deleted while reads are under way. */
GQ_FN void gd_tell_refused(struct gd_share *s, uint32_t of)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, stale);
    int err;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(stale) = gd_look(s->file, gq_clock_ns(), 0);
    }
    err = GQ_FROM32(stale, 0) ? -ESTALE : -EIO;
    GQ_FOR_LANES(lane)
    {
        if (of >> lane & 1u)
            GQ_AT(s->part).left = err;
    }
}

/*
 * After commands have ended: their bytes are copied, if they came into staging, and their slots
 * given back. The fence orders the loads of staging before that.
 */
GQ_FN void gd_collect(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, failed);
    GQ_LANE_VAR(uint32_t, staged);
    uint32_t failures, copies;

    GQ_FOR_LANES(lane)
    {
        uint32_t stage = GQ_AT(w->mine).stage;

        GQ_AT(failed) = stage & GQ_ENDED && stage != GQ_ENDED;
        GQ_AT(staged) = stage == GQ_ENDED && GQ_AT(s->part).bytes & GD_STAGED;
    }
    failures = GQ_BALLOT(failed);
    copies = GQ_BALLOT(staged);
    if (failures)
        gd_tell_refused(s, failures);
    if (copies) {
        gd_copy_staged(s, copies);
        gq_fence_device();
    }
    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (m->stage & GQ_ENDED) {
            gq_free_slot(w->slots, m->slot);
            m->slot = GQ_NO_SLOT;
            m->stage = GQ_STAGE_NONE;
            if (GQ_AT(s->part).left > 0)
                GQ_AT(s->part).sent_us = gd_clock_us();
        }
    }
}

/*
 * The reads begin now: of a file as loaded, with some len bytes each. Submits what can be.
 */
GQ_FN void gd_share_begin(struct gd_share *s, const struct gd_known *k, uint64_t len)
{
    const struct gq_sharer *w = &s->q;

    s->queue = GQ_SAME32(gd_first_queue(k, len));
    GQ_FOR_LANES(lane)
    {
        GQ_AT(s->part).sent_us = gd_clock_us();
    }
    gd_enter(s, k);
}

/* After gd_share_begin(), or gd_enter(): until all reads have ended. */
GQ_FN void gd_share_end(struct gd_share *s)
{
    for (;;) {
        gd_stay(s);
        gd_collect(s);
        if (!gd_active(s) && !gd_wanting(s))
            return;
        if (s->tries % GD_TURNS == GD_TURNS - 1)
            gd_watch(s);
        if (s->moves)
            gd_next_queue(s);
        {
            const struct gd_known k = gd_load_known(s->file);

            gd_enter(s, &k);
        }
    }
}

/*
 * After gd_share_begin(), for a group that does something else meanwhile: leaves the queue. Its
 * published commands are posted, by another leader or by itself.
 */
GQ_FN void gd_share_leave(struct gd_share *s)
{
    if (!gd_active(s))
        return;
    if (!s->leads)
        (void)gd_lead_if_free(s);
    if (!s->leads)
        return;
    (void)gq_lead_run(&s->q);
    gd_stop_leading(s);
}

/* The first error of the lanes, or 0. */
GQ_FN int gd_first_error(struct gd_share *s)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, failed);
    GQ_LANE_VAR(uint32_t, err);
    uint32_t mask;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(failed) = GQ_AT(s->part).left < 0;
        GQ_AT(err) = (uint32_t)GQ_AT(s->part).left;
    }
    mask = GQ_BALLOT(failed);
    return mask ? (int)GQ_FROM32(err, gq_prefix_ones(~mask)) : 0;
}

/*
 * Deals one read, len bytes that end before the file does, to the lanes: a read that may be one
 * command to the first, of longer ones neighbouring commands to one lane.
 */
GQ_FN void gd_deal(struct gd_share *s, uint32_t max_command, uint64_t dst, uint64_t len,
                   uint64_t offset)
{
    const struct gq_sharer *w = &s->q;
    uint64_t first = 0, each = len;

    if (len > max_command) {
        uint32_t unit = gd_unit(max_command), shift = gq_prefix_ones(unit - 1);

        first = offset & (unit - 1);
        each = (first + len + unit - 1) >> shift;
        each = (each + w->group.lanes - 1) / w->group.lanes << shift;
    }
    GQ_FOR_LANES(lane)
    {
        uint64_t from = lane * each > first ? lane * each - first : 0;
        uint64_t to = (lane + 1) * each - first;

        to = to < len ? to : len;
        if (from < to) {
            GQ_AT(s->part).dst = dst + from;
            GQ_AT(s->part).offset = offset + from;
            GQ_AT(s->part).left = (int64_t)(to - from);
        }
    }
}

#endif
