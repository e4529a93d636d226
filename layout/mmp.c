/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements multi-mount protection by rule R3 of FORMAT.md. */
#include "layout/mmp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MMP_NS_PER_MS 1000000ull
/* A holder may write for MMP_RIGHT intervals. Other programs wait for MMP_WAIT intervals. */
#define MMP_RIGHT 2u
#define MMP_WAIT  3u
/* A waiting program reads the block this many times per interval. */
#define MMP_LOOKS 4u
/* Attempts to renew the block in time while it is taken. */
#define MMP_TRIES 4u

static uint64_t mmp_ns(uint64_t ms)
{
    return ms * MMP_NS_PER_MS;
}

static void mmp_compose(const struct lay_mmp_hold *h, struct lay_mmp *b)
{
    memset(b, 0, sizeof(*b));
    lay_head_init(&b->head, LAY_MAGIC_MMP, h->geo.uuid, LAY_ADDR_MMP, 0);
    b->sequence = lay_put64(h->sequence);
    b->interval = lay_put32(h->interval);
    b->state = lay_put32(h->state);
    b->time = h->io.date(h->io.arg);
    memcpy(b->boot_id, h->boot_id, sizeof(b->boot_id));
    memcpy(b->holder, h->holder, sizeof(b->holder));
    memcpy(b->host, h->host, sizeof(b->host));
    b->lock = lay_put64(h->lock);
}

static uint64_t mmp_now(const struct lay_mmp_hold *h)
{
    return h->io.now(h->io.arg);
}

/*
 * Reads the block. A block that is damaged, or that the device cannot read,
 * becomes all zeros: it is in use by an unknown holder.
 */
static int mmp_read(const struct lay_mmp_hold *h, struct lay_mmp *b)
{
    int err = h->io.read(h->io.arg, b);

    if (err && err != -EIO)
        return err;
    if (err || lay_check_mmp(&h->geo, b, NULL) != 0)
        memset(b, 0, sizeof(*b));
    return 0;
}

static bool mmp_damaged(const struct lay_mmp *b)
{
    return lay_get32(b->interval) == 0;
}

static bool mmp_is_free(const struct lay_mmp *b)
{
    return !mmp_damaged(b) && lay_get32(b->state) == LAY_MMP_FREE;
}

static bool mmp_is_own(const struct lay_mmp_hold *h, const struct lay_mmp *b)
{
    return !mmp_is_free(b) && memcmp(b->holder, h->holder, sizeof(h->holder)) == 0;
}

/*
 * Returns true if the holder has ended. Such a holder ran under this kernel and
 * held the lock that this program holds now. A holder that uses another
 * controller of the same namespace has another lock and may be alive.
 */
static bool mmp_is_dead(const struct lay_mmp_hold *h, const struct lay_mmp *b)
{
    return h->lock != 0 && lay_get64(b->lock) == h->lock &&
           !lay_is_zero(h->boot_id, sizeof(h->boot_id)) &&
           memcmp(b->boot_id, h->boot_id, sizeof(h->boot_id)) == 0;
}

/* Writes the block. Extends the right to write only on success. */
static int mmp_write(struct lay_mmp_hold *h, bool durable)
{
    struct lay_mmp b;
    uint64_t begin = mmp_now(h);

    h->sequence++;
    mmp_compose(h, &b);
    lay_seal(&b, 0);
    int err = h->io.write(h->io.arg, &b, durable);
    if (!err)
        h->until = begin + MMP_RIGHT * mmp_ns(h->interval);
    return err;
}

/* Returns 0 if the block is this holder's. Otherwise sets h->other and returns -EBUSY. */
static int mmp_verify(struct lay_mmp_hold *h)
{
    struct lay_mmp b;
    int err = mmp_read(h, &b);

    if (err || mmp_is_own(h, &b))
        return err;
    h->other = b;
    return -EBUSY;
}

/*
 * Called after a late write of the block. The write may have replaced the block
 * of a holder that had already read its own block back. Before its right ends,
 * that holder finds this program's block and stops, or replaces the block.
 */
static int mmp_outlast(struct lay_mmp_hold *h)
{
    uint64_t end = mmp_now(h) + MMP_WAIT * mmp_ns(h->interval);
    unsigned tries = 0;

    while (mmp_now(h) < end) {
        int err = h->io.wait(h->io.arg, mmp_ns(h->interval) / MMP_LOOKS);

        if (!err)
            err = mmp_verify(h);
        uint64_t until = h->until;
        if (!err)
            err = mmp_write(h, false);
        if (err)
            return err;
        if (mmp_now(h) <= until)
            continue;
        /* The block did not change for so long that it could be taken. */
        if (++tries == MMP_TRIES)
            return -ETIMEDOUT;
        end = mmp_now(h) + MMP_WAIT * mmp_ns(h->interval);
    }
    return mmp_verify(h);
}

/* Takes the block for this holder. The block was found free at time `since` or later. */
static int mmp_settle(struct lay_mmp_hold *h, uint64_t since)
{
    int err = mmp_write(h, true);

    if (err)
        return err;
    if (mmp_now(h) - since > LAY_MMP_PROMPT_NS)
        return mmp_outlast(h);
    err = h->io.wait(h->io.arg, LAY_MMP_SETTLE_NS);
    return err ? err : mmp_verify(h);
}

/*
 * Waits until the block is free or has not changed for MMP_WAIT intervals.
 * Stores in *since a time before the last read. Returns -EBUSY if the block
 * changes.
 */
static int mmp_watch(struct lay_mmp_hold *h, const struct lay_mmp *first, uint64_t *since)
{
    uint64_t interval = mmp_ns(mmp_damaged(first) ? LAY_MMP_INTERVAL_MAX : h->interval);
    uint64_t end = mmp_now(h) + MMP_WAIT * interval;
    struct lay_mmp b;

    for (;;) {
        int err = h->io.wait(h->io.arg, interval / MMP_LOOKS);

        *since = mmp_now(h);
        if (!err)
            err = mmp_read(h, &b);
        if (err || mmp_is_free(&b))
            return err;
        h->other = b;
        if (memcmp(&b, first, sizeof(b)) != 0)
            return -EBUSY;
        if (*since >= end)
            return 0;
    }
}

int lay_mmp_look(struct lay_mmp_hold *h)
{
    int err = mmp_read(h, &h->other);

    if (err)
        return err;
    return mmp_is_free(&h->other) || mmp_is_dead(h, &h->other) ? 0 : 1;
}

int lay_mmp_take(struct lay_mmp_hold *h)
{
    uint64_t since = mmp_now(h);
    int used = lay_mmp_look(h);
    struct lay_mmp first = h->other;

    if (used < 0)
        return used;
    h->interval = mmp_damaged(&first) ? LAY_MMP_INTERVAL : lay_get32(first.interval);
    h->sequence = lay_get64(first.sequence);
    int err = used ? mmp_watch(h, &first, &since) : 0;
    return err ? err : mmp_settle(h, since);
}

int lay_mmp_renew(struct lay_mmp_hold *h)
{
    uint64_t since = mmp_now(h), until = h->until;
    struct lay_mmp b;
    int err = mmp_read(h, &b);

    if (err)
        return err;
    /*
     * A damaged block may be another program's torn write. The block can be
     * replaced, because that program reads its block back before it begins.
     */
    if (!mmp_damaged(&b) && !mmp_is_own(h, &b)) {
        h->other = b;
        return -EBUSY;
    }
    err = mmp_write(h, false);
    if (err || mmp_now(h) <= until)
        return err;
    /* The right had ended at the time of the write, so another program may have the block. */
    err = mmp_settle(h, since);
    if (err)
        h->until = until;
    return err;
}

int lay_mmp_release(struct lay_mmp_hold *h)
{
    struct lay_mmp b;
    int err = mmp_verify(h);

    if (err)
        return err;
    if (mmp_now(h) >= h->until)
        return -ETIMEDOUT;
    h->sequence++;
    mmp_compose(h, &b);
    b.state = lay_put32(LAY_MMP_FREE);
    memset(b.holder, 0, sizeof(b.holder));
    lay_seal(&b, 0);
    return h->io.write(h->io.arg, &b, true);
}

/* Stores the host's name; every byte that is not printable becomes '?'. */
static void mmp_host_text(const struct lay_mmp *b, char host[LAY_MMP_HOST])
{
    size_t i = 0;

    for (; i < LAY_MMP_HOST - 1 && b->host[i]; i++)
        host[i] = b->host[i] > ' ' && b->host[i] < 0x7f ? b->host[i] : '?';
    host[i] = '\0';
}

void lay_mmp_text(const struct lay_mmp *block, char *text, size_t len)
{
    time_t sec = (time_t)lay_time_sec(block->time);
    char host[LAY_MMP_HOST], date[32] = "at an unknown time";
    struct tm tm;

    if (mmp_damaged(block)) {
        snprintf(text, len, "an unknown host, since block 1 is damaged");
        return;
    }
    mmp_host_text(block, host);
    if (gmtime_r(&sec, &tm))
        strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%SZ", &tm);
    snprintf(text, len, "host %s, which %s it and wrote block 1 last at %s",
             host[0] ? host : "(without a name)",
             lay_get32(block->state) == LAY_MMP_MOUNTED ? "mounted" : "checks or changes", date);
}
