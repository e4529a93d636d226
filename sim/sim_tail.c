/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The tail of an image file is the start of its last whole page. A truncation
 * zeroes it, even one that was followed by an extension of the file. A drive
 * whose tail has become zeros without a write of the driver has lost data. A
 * file whose tail consists of zeros is not watched. In an image that mkfs has
 * formatted completely, the last block is a superblock copy.
 */
#include "sim/sim_tail.h"

#include <string.h>

#include "sim/sim_internal.h"

#define TAIL_BYTES 512u

static uint64_t tail_at(const struct sim_ns *ns)
{
    uint64_t pages = (ns->lbas << ns->lba_shift) / NVME_PAGE_SIZE;

    return pages ? (pages - 1) * NVME_PAGE_SIZE : 0;
}

/*
 * Called with the lock held. A tail that cannot be read is ignored here: the
 * file is shorter, or its disk fails.
 */
static void check_tail(struct sim_ns *ns)
{
    static const unsigned char zeros[TAIL_BYTES];
    unsigned char bytes[TAIL_BYTES];
    struct sim_tail *t = &ns->tail;

    if (!t->watched || sim_media_read(ns, tail_at(ns), bytes, sizeof(bytes)) != NVME_OK)
        return;
    bool filled = memcmp(bytes, zeros, sizeof(bytes)) != 0;
    t->lost |= t->filled && !filled;
    t->filled = filled;
}

void sim_tail_open(struct sim_ns *ns)
{
    pthread_mutex_lock(&ns->tail.lock);
    ns->tail.watched = ns->is_file && !ns->read_only;
    check_tail(ns);
    pthread_mutex_unlock(&ns->tail.lock);
}

bool sim_tail_begin(struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    if ((lba + lbas) << ns->lba_shift <= tail_at(ns))
        return false;
    pthread_mutex_lock(&ns->tail.lock);
    check_tail(ns);
    return true;
}

void sim_tail_end(struct sim_ns *ns)
{
    ns->tail.filled = false; /* the driver may have written zeros */
    check_tail(ns);
    pthread_mutex_unlock(&ns->tail.lock);
}

void sim_tail_leave(struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    if (!sim_tail_begin(ns, lba, lbas))
        return;
    ns->tail.watched = false;
    sim_tail_end(ns);
}

bool sim_tail_is_lost(struct sim_ns *ns)
{
    pthread_mutex_lock(&ns->tail.lock);
    check_tail(ns);
    bool lost = ns->tail.lost;
    pthread_mutex_unlock(&ns->tail.lock);
    return lost;
}
