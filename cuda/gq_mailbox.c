#include "cuda/gq_mailbox.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Acquire: what was written before the count is there. */
static uint32_t count(const struct gq_copy_kernel_counts *c, unsigned block)
{
    return __atomic_load_n(&c->of[block], __ATOMIC_ACQUIRE);
}

/* Numbers wrap around: their distance does not. */
static bool has_reached(uint32_t count, uint32_t number)
{
    return (int32_t)(count - number) >= 0;
}

/* At most the slots there are, whatever a kernel of another process claims to have done. */
static unsigned under_way(const struct gq_poster *p, unsigned block)
{
    uint32_t n = p->posted[block] - count(&p->m->done, block);

    return n < GQ_COPY_KERNEL_BOXES ? n : GQ_COPY_KERNEL_BOXES;
}

/* Little work stays on few blocks, and the others end. */
static unsigned least_busy(const struct gq_poster *p)
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

/* How many copies from the first one have its length, and fit into a slot. */
static unsigned batch_len(const struct gq_gather *copies, unsigned n)
{
    unsigned i = 1;

    n = n < GQ_COPY_KERNEL_BATCH ? n : GQ_COPY_KERNEL_BATCH;
    while (i < n && copies[i].len == copies[0].len)
        i++;
    return i;
}

int gq_poster_room(const struct gq_poster *p, const struct gq_gather *copies, unsigned n)
{
    unsigned slots = p->blocks * GQ_COPY_KERNEL_BOXES, full = 0, batches = 0;

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

/* How many words a filling writes at least: the first line, which says of itself all that it has.
 */
static unsigned words_written(uint32_t fill)
{
    return fill % GQ_COPY_KERNEL_RENEWAL ? GQ_COPY_KERNEL_LINE : GQ_COPY_KERNEL_WORDS;
}

/*
 * The first copies, as far as they have one length and fit into a slot: how many.
 *
 * The head goes last: who sees it sees all that was stored before, but for words that he loaded
 * together with it. A word of 128 fillings ago would pass for a new one: all get the tag of every
 * 64th filling, used or not, so that none is as old as that. The count is for the keeper, who must
 * see the slot as well.
 */
static unsigned post(struct gq_poster *p, unsigned block, const struct gq_gather *copies,
                     unsigned n)
{
    uint32_t batch = p->posted[block]++, fill = batch / GQ_COPY_KERNEL_BOXES + 1;
    uint64_t tag = GQ_COPY_KERNEL_TAG(fill), len = copies[0].len;
    uint64_t shift = (uint64_t)__builtin_ctzll(len);
    uint64_t *words =
        p->m->slots[block * GQ_COPY_KERNEL_BOXES + batch % GQ_COPY_KERNEL_BOXES].words;
    unsigned most = n < GQ_COPY_KERNEL_BATCH ? n : GQ_COPY_KERNEL_BATCH, in_slot = 0;

    words[1] = tag;
    for (; in_slot < most && copies[in_slot].len == len; in_slot++) {
        words[2 + 2 * in_slot] = copies[in_slot].dst | tag;
        words[3 + 2 * in_slot] = copies[in_slot].src | tag;
    }
    for (unsigned i = 2 + 2 * in_slot; i < words_written(fill); i++)
        words[i] = tag;
    __atomic_store_n(&words[0], in_slot | shift << 8 | tag, __ATOMIC_RELEASE);
    __atomic_store_n(&p->m->posted.of[block], p->posted[block], __ATOMIC_RELEASE);
    return in_slot;
}

void gq_poster_post(struct gq_poster *p, const struct gq_gather *copies, unsigned n,
                    struct gq_copy_kernel_ticket *ticket)
{
    for (unsigned done = 0; done < n;)
        done += post(p, least_busy(p), copies + done, n - done);
    memcpy(ticket->need, p->posted, sizeof(ticket->need));
}

bool gq_poster_done(const struct gq_poster *p, const struct gq_copy_kernel_ticket *ticket)
{
    for (unsigned b = 0; b < p->blocks; b++) {
        if (!has_reached(count(&p->m->done, b), ticket->need[b]))
            return false;
    }
    return true;
}

bool gq_poster_is_stuck(const struct gq_poster *p)
{
    for (unsigned b = 0; b < p->blocks; b++) {
        if (under_way(p, b) && has_reached(count(&p->m->ended, b), count(&p->m->launched, b)))
            return true;
    }
    return false;
}

bool gq_poster_is_lost(const struct gq_poster *p, const struct gq_copy_kernel_ticket *ticket)
{
    bool missing = false;

    for (unsigned b = 0; b < p->blocks; b++) {
        /* In this order: what a kernel had counted when it ended is seen. */
        bool gone = has_reached(count(&p->m->ended, b), count(&p->m->launched, b));
        bool done = has_reached(count(&p->m->done, b), ticket->need[b]);

        if (!done && !gone)
            return false;
        missing |= !done;
    }
    return missing;
}

void gq_poster_take_back(struct gq_poster *p)
{
    for (unsigned b = 0; b < p->blocks; b++) {
        /* Of a filling that is neither the last nor the next one of any slot. */
        uint64_t none =
            GQ_COPY_KERNEL_TAG(p->posted[b] / GQ_COPY_KERNEL_BOXES + GQ_COPY_KERNEL_RENEWAL);

        for (unsigned i = 0; i < GQ_COPY_KERNEL_BOXES; i++)
            __atomic_store_n(&p->m->slots[b * GQ_COPY_KERNEL_BOXES + i].words[0], none,
                             __ATOMIC_RELEASE);
        __atomic_store_n(&p->m->posted.of[b], count(&p->m->done, b), __ATOMIC_RELEASE);
    }
}

/*
 * Both sides exchange asleep: whoever comes second sees what the other stored before, the keeper
 * the work, or the poster that he has to be woken. He may be awake and about to launch; then
 * nothing is done.
 */
void gq_mailbox_ring(struct gq_mailbox_head *head, const struct gq_poster *p)
{
    if (gq_poster_is_stuck(p) && __atomic_exchange_n(&head->asleep, 0, __ATOMIC_ACQ_REL))
        syscall(SYS_futex, &head->asleep, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void gq_keeper_init(struct gq_keeper *k, struct gq_mailboxes *m, uint64_t device, unsigned blocks,
                    uint64_t idle_ns)
{
    const struct gq_mailboxes *there = (const struct gq_mailboxes *)(uintptr_t)device;

    *k = (struct gq_keeper){.m = m, .blocks = blocks};
    k->launch.idle_ns = idle_ns;
    k->launch.slots = there->slots;
    k->launch.done = (uint32_t *)(uintptr_t)there->done.of;
    k->launch.ended = (uint32_t *)(uintptr_t)there->ended.of;
}

static bool has_ended(const struct gq_keeper *k, unsigned block, uint32_t launch)
{
    return has_reached(count(&k->m->ended, block), launch);
}

static bool is_behind(const struct gq_keeper *k, unsigned block)
{
    /* By distance: a kernel counts, too, what it had before the poster took the rest back. */
    return !has_reached(count(&k->m->done, block), count(&k->m->posted, block));
}

/* A stream in which nothing runs, or GQ_KEEPER_STREAMS. */
static unsigned free_stream(const struct gq_keeper *k)
{
    for (unsigned i = 0; i < GQ_KEEPER_STREAMS; i++) {
        bool ended = true;

        for (unsigned b = 0; b < k->blocks; b++)
            ended = ended && (!k->in_stream[i][b] || has_ended(k, b, k->in_stream[i][b]));
        if (ended)
            return i;
    }
    return GQ_KEEPER_STREAMS;
}

bool gq_keeper_is_needed(const struct gq_keeper *k)
{
    for (unsigned b = 0; b < k->blocks; b++) {
        if (is_behind(k, b) && has_ended(k, b, k->launched[b]))
            return true;
    }
    return false;
}

static void set_launched(struct gq_keeper *k, unsigned block, uint32_t launch)
{
    k->launched[block] = launch;
    __atomic_store_n(&k->m->launched.of[block], launch, __ATOMIC_RELEASE);
}

/* What was to be launched in the stream was not, and will not end. */
static void take_back(struct gq_keeper *k, unsigned stream)
{
    for (unsigned b = 0; b < k->blocks; b++) {
        if (!k->launch.launch[b])
            continue;
        k->in_stream[stream][b] = 0;
        set_launched(k, b, count(&k->m->ended, b)); /* of the last that there was */
    }
}

int gq_keeper_peek(struct gq_keeper *k)
{
    unsigned stream = gq_keeper_is_needed(k) ? free_stream(k) : GQ_KEEPER_STREAMS;
    int err;

    if (stream == GQ_KEEPER_STREAMS)
        return 0; /* the keeper looks again */
    for (unsigned b = 0; b < k->blocks; b++) {
        uint32_t next = k->launched[b] + 1 ? k->launched[b] + 1 : 1; /* 0: it does not start */

        k->launch.launch[b] = has_ended(k, b, k->launched[b]) ? next : 0;
        if (!k->launch.launch[b])
            continue;
        k->launch.first[b] = count(&k->m->done, b); /* what it was at the end, or it copies again */
        k->in_stream[stream][b] = next;
        set_launched(k, b, next);
    }
    err = k->run(k->ctx, &k->launch, k->blocks, stream);
    if (err)
        take_back(k, stream);
    return err;
}
