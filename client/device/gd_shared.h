/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Prepares reads through leased queues that many groups share. A group has commands in one queue at
 * a time (cuda/queue/gq_shared.h). A group is a warp, or the converged threads of a warp. Each lane
 * has its own read (struct gd_part), or its own part of one read.
 *
 * Reads that need a queue for themselves use the same lock (gd_queue.h). A group that owns the lock
 * here leads the queue, and unlocks it when the group's own commands have ended. The word of the
 * lock then contains the number of other groups' commands in flight, and only a leader may take the
 * lock. For a read that needs a queue for itself, a queue is free when no command is in flight.
 *
 * The last quarter of a lease of four queues or more is not shared, so that reads that need a queue
 * for themselves do not starve. A queue that has lost a command takes no new commands. The queue is
 * GD_LOST when all commands in flight are lost.
 *
 * Every function is called by all lanes of the group together unless noted otherwise.
 */
#ifndef CLIENT_DEVICE_GD_SHARED_H
#define CLIENT_DEVICE_GD_SHARED_H

#include "client/device/gd_lease.h"
#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_data_sums.h"
#include "cuda/queue/gq_lead.h"
#include "cuda/queue/gq_prp.h"

/*
 * Number of turns between two checks of deadlines and leases: some 50 us with
 * commands in flight, 0.4 ms while all lanes wait for CIDs.
 */
#define GD_TURNS 64u

/* Limits the pauses between two claims. */
#define GD_PAUSES 16u

/* Describes the part of a lane's read that is not read yet. */
struct gd_part {
    uint64_t dst, offset, left; /* of its next byte; bytes not yet in a command */
    uint64_t staged;  /* address at which the command's bytes arrive, to be copied; 0: dst */
    uint32_t bytes;   /* of the command in flight; they precede `offset` */
    uint32_t sent_us; /* since when the lane waits for a CID, or for its command */
    int32_t err;      /* -errno: left is 0 */
    uint32_t again;   /* the command is sent again: its data did not match once */
};

/* Staging of CIDs (gd_set). */
struct gd_staging {
    uint64_t base, iova;
    uint32_t bytes, cids;
};

/* Describes a group and its reads. */
struct gd_share {
    struct gq_sharer q;
    const struct gpunvme_device_file *file;
    uint32_t *lock; /* of the queue */
    uint32_t queue;
    uint32_t n_shared; /* queues that are shared: the first ones */
    uint32_t seed;     /* start of the search for a CID */
    uint32_t tries;    /* failed claims since the last CID */
    uint32_t lost;     /* of them, the last ones that met lost queues */
    uint32_t turns;    /* of waiting */
    bool has_queue;    /* `queue` is loaded */
    bool leads;
    bool low;                  /* a lane needs a CID with staging */
    bool leaves;               /* between begin and end of a ticket: claims no reserved CID */
    struct gd_staging staging; /* while commands are prepared */
    struct gq_file_sums sums;  /* of the file, when commands were last prepared */
    GQ_LANE_MEMBER(struct gd_part, part);
};

/*
 * Contains the words of the file for a submission. They are loaded in one trip, because a file can
 * be refreshed while kernels run.
 */
struct gd_known {
    const struct gd_queue *queues;
    struct gq_cids *cids;
    uint32_t *locks;
    const uint64_t *checked_ns;
    const struct gq_file_extent *extents;
    const struct gd_buffer *buffers;
    const uint32_t *n_buffers;
    struct gq_file_sums sums;
    struct gd_staging staging;
    uint64_t end;
    uint32_t n_queues, nsid, n_extents, lba_size, max_command;
    uint32_t grain;   /* commands are multiples of it: an LBA, or a block with a checksum */
    uint32_t inverse; /* of the number of shared queues */
    uint32_t most;    /* bytes of most commands: max_command, or the staging of a CID */
    bool stages_all;  /* CIDs have staging for whole reads: most commands go there */
};

/* Contains the first entries of the tables of buffers and extents, one for each lane. */
struct gd_tables {
    uint32_t n_buffers;
    GQ_LANE_MEMBER(uint64_t, addr);
    GQ_LANE_MEMBER(uint64_t, len);
    GQ_LANE_MEMBER(uint64_t, iova);
    GQ_LANE_MEMBER(uint64_t, prps);
    GQ_LANE_MEMBER(uint64_t, head);
    GQ_LANE_MEMBER(uint64_t, offset);
    GQ_LANE_MEMBER(uint64_t, lba);
};

/* Describes the destination of a lane's next byte in the buffer that contains the byte. */
struct gd_destination {
    uint64_t at;         /* counted from the buffer's first page */
    uint64_t iova, prps; /* of that page, and of the table of PRPs */
    bool found;
};

GQ_FN struct gq_lead gd_lead_of(uint32_t word)
{
    return (struct gq_lead){.head = word >> GD_ENTRY_SHIFT,
                            .phase = (word & GD_ODD_PASS) == 0,
                            .cq_db_pending = (word & GD_CQ_DB_PENDING) != 0,
                            .in_flight = (word & GD_IN_FLIGHT) >> GD_FLIGHT_SHIFT,
                            .lost = 0,
                            .broken = 0,
                            .rang = 0,
                            .full = 0};
}

GQ_FN uint32_t gd_word_of(const struct gq_lead *l)
{
    if (l->broken || (l->in_flight && l->in_flight == l->lost))
        return GD_LOST;
    return l->head << GD_ENTRY_SHIFT | l->in_flight << GD_FLIGHT_SHIFT |
           (l->phase ? 0 : GD_ODD_PASS) | (l->cq_db_pending ? GD_CQ_DB_PENDING : 0);
}

/* Called by one lane. Returns a clock for deadlines, in units of 1,024 ns. */
GQ_FN uint32_t gd_clock_us(void)
{
    return (uint32_t)(gq_clock_ns() >> 10);
}

/* Returns the lanes that have a CID, as bits. */
GQ_FN uint32_t gd_active(struct gd_share *s)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, active);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(active) = GQ_AT(w->mine).stage != GQ_STAGE_NONE;
    }
    return GQ_BALLOT(active);
}

/* Returns the lanes that have bytes left and no CID, as bits. */
GQ_FN uint32_t gd_wanting(struct gd_share *s)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, wants);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(wants) = GQ_AT(w->mine).stage == GQ_STAGE_NONE && GQ_AT(s->part).left != 0;
    }
    return GQ_BALLOT(wants);
}

/* Loads a pointer that the host may change. */
#define GD_LOAD_POINTER(at) ((void *)(uintptr_t)gd_load64((const uint64_t *)(const void *)(at)))

GQ_FN struct gd_known gd_load_known(const struct gpunvme_device_file *f)
{
    struct gd_known k;

    k.queues = (const struct gd_queue *)GD_LOAD_POINTER(&f->set.queues);
    k.cids = (struct gq_cids *)GD_LOAD_POINTER(&f->set.cids);
    k.locks = (uint32_t *)GD_LOAD_POINTER(&f->set.locks);
    k.checked_ns = (const uint64_t *)GD_LOAD_POINTER(&f->checked_ns);
    k.extents = (const struct gq_file_extent *)GD_LOAD_POINTER(&f->map.extents);
    k.buffers = (const struct gd_buffer *)GD_LOAD_POINTER(&f->set.buffers);
    k.n_buffers = (const uint32_t *)GD_LOAD_POINTER(&f->set.n_buffers);
    k.sums.words = (const uint32_t *)GD_LOAD_POINTER(&f->sums.words);
    k.sums.table = (const struct gq_sum_table *)GD_LOAD_POINTER(&f->sums.table);
    k.end = gd_load64(&f->map.end);
    k.n_queues = gd_load32(&f->set.n_queues);
    k.nsid = gd_load32(&f->set.nsid);
    k.n_extents = gd_load32(&f->map.count);
    k.lba_size = gd_load32(&f->map.lba_size);
    k.max_command = gd_load32(&f->set.max_command);
    k.inverse = gd_load32(&f->set.shared_inverse);
    k.grain = k.sums.words && k.lba_size < GQ_SUM_BLOCK ? GQ_SUM_BLOCK : k.lba_size;
    k.staging = (struct gd_staging){
        gd_load64(&f->set.shared_staging.base), gd_load64(&f->set.shared_staging.iova),
        gd_load32(&f->set.shared_bytes), gd_load32(&f->set.staged_cids)};
    k.stages_all = k.staging.bytes == GD_STAGED_ALL;
    k.most = k.stages_all ? GD_STAGED_ALL : k.max_command;
    return k;
}

/*
 * Sets the place to one of the first n queues by the seed, and the seed to the
 * quotient. A division would take as long as a load. The quotient by the
 * inverse is the right one or one less. With the inverse of another number,
 * which a renewal of the leases may show for a moment, the queue is any of the
 * n.
 */
GQ_FN void gd_share_place(struct gd_share *s, uint32_t n, uint32_t inverse)
{
    uint32_t quotient = (uint32_t)((uint64_t)s->seed * inverse >> 32);
    uint32_t rest = s->seed - quotient * n;
    bool more = rest >= n;

    quotient += more;
    rest -= more ? n : 0;
    s->queue = rest < n ? rest : 0;
    s->seed = quotient;
}

/*
 * Begins reads of about len bytes each. The caller sets the parts afterwards.
 * Long reads use fewer queues, because leaders poll over the link that carries
 * the data.
 */
GQ_FN void gd_share_open(struct gd_share *s, struct gq_group group,
                         const struct gpunvme_device_file *file, const struct gd_known *k,
                         uint64_t len)
{
    struct gq_sharer *w = &s->q;
    uint32_t n = gd_shared_queues(k->n_queues);

    w->group = group;
    w->nsid = k->nsid;
    w->lead = (struct gq_lead){0};
    w->scan = 0;
    s->n_shared = n;
    s->file = file;
    s->seed = GQ_SAME32(gd_seed());
    if (len > GQ_LONG_READ && n > GQ_QUEUES_OF_LONG)
        gd_share_place(s, GQ_QUEUES_OF_LONG, gd_inverse(GQ_QUEUES_OF_LONG));
    else
        gd_share_place(s, n, k->inverse);
    s->tries = 0;
    s->lost = 0;
    s->turns = 0;
    s->has_queue = false;
    s->leads = false;
    s->low = false;
    s->leaves = false;
    s->sums = k->sums;
    GQ_FOR_LANES(lane)
    {
        GQ_AT(w->mine).cid = GQ_NO_CID;
        GQ_AT(w->mine).stage = GQ_STAGE_NONE;
        GQ_AT(w->mine).status = 0;
        GQ_AT(s->part).left = 0;
        GQ_AT(s->part).err = 0;
        GQ_AT(s->part).again = 0;
    }
}

/* Loads the constants of the queue's rings, without waiting for the loads. */
GQ_FN void gd_use_rings(struct gd_share *s, const struct gd_known *k)
{
    struct gq_sharer *w = &s->q;
    const struct gq_port *p = &k->queues[s->queue].port;

    w->cids = k->cids + s->queue;
    s->lock = k->locks + s->queue;
    w->n_cids = gd_load32(&w->cids->n_cids);
    w->port.sq = (struct nvme_sqe *)GD_LOAD_POINTER(&p->sq);
    w->port.cq = (struct nvme_cqe *)GD_LOAD_POINTER(&p->cq);
    w->port.sq_doorbell = (volatile uint32_t *)GD_LOAD_POINTER(&p->sq_doorbell);
    w->port.cq_doorbell = (volatile uint32_t *)GD_LOAD_POINTER(&p->cq_doorbell);
    w->port.depth = gd_load32(&p->depth);
    w->scan = 0;
    s->has_queue = true;
}

/* Loads the constants of its CIDs. Called after gd_use_rings(). */
GQ_FN void gd_use_cids(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;

    w->cmds = (struct gq_cmd *)GD_LOAD_POINTER(&w->cids->cmds);
    w->states = (uint32_t *)GD_LOAD_POINTER(&w->cids->states);
}

GQ_FN void gd_use_queue(struct gd_share *s, const struct gd_known *k)
{
    gd_use_rings(s, k);
    gd_use_cids(s);
}

/*
 * Moves from one queue to the next one. w->cids and the lock are right
 * afterwards, and n_cids, because all queues of a lease have as many. The rings
 * are those of the former queue until gd_use_rings().
 */
GQ_FN void gd_next_queue(struct gd_share *s)
{
    bool last = s->queue + 1 >= s->n_shared;

    s->q.cids = last ? s->q.cids - s->queue : s->q.cids + 1;
    s->lock = last ? s->lock - s->queue : s->lock + 1;
    s->queue = last ? 0 : s->queue + 1;
    s->has_queue = false;
}

/*
 * Called inside a region. Loads an entry of the table for the lane. The length is loaded first,
 * because the host stores the length of a new entry last.
 */
GQ_FN void gd_load_entry(const struct gq_sharer *w, const struct gd_buffer *b, uint32_t lane,
                         struct gd_tables *t)
{
    (void)w;
    GQ_AT(t->len) = gd_load64(&b->len);
    GQ_AT(t->addr) = gd_load64(&b->addr);
    GQ_AT(t->iova) = gd_load64(&b->target.iova);
    GQ_AT(t->prps) = gd_load64(&b->target.prps_iova);
    GQ_AT(t->head) = gd_load64(&b->target.head);
}

/*
 * Loads the tables, without waiting for the loads. They have no condition,
 * because the compiler waits for conditional loads where the lanes converge.
 * Lanes beyond the last extent load the first one, which exists.
 */
GQ_FN void gd_load_tables(const struct gd_share *s, const struct gd_known *k, struct gd_tables *t)
{
    const struct gq_sharer *w = &s->q;

    t->n_buffers = gd_load32(k->n_buffers);
    GQ_FOR_LANES(lane)
    {
        const struct gq_file_extent *e = &k->extents[lane < k->n_extents ? lane : 0];

        gd_load_entry(w, &k->buffers[lane], lane, t);
        GQ_AT(t->offset) = gd_load64(&e->offset);
        GQ_AT(t->lba) = gd_load64(&e->lba);
    }
}

/*
 * Called inside a region. Takes entry i, which lane k has loaded, as the lane's
 * destination if the lane's read is inside it.
 */
GQ_FN void gd_match_entry(const struct gq_sharer *w, const struct gd_tables *t, uint32_t k,
                          const struct gd_part *p, struct gd_destination *out)
{
    uint64_t addr = GQ_FROM64(t->addr, k), len = GQ_FROM64(t->len, k);
    uint64_t iova = GQ_FROM64(t->iova, k), prps = GQ_FROM64(t->prps, k);
    uint64_t head = GQ_FROM64(t->head, k), at = p->dst - addr;

    (void)w;
    if (len && p->dst >= addr && at <= len && p->left <= len - at)
        *out = (struct gd_destination){.at = at + head, .iova = iova, .prps = prps, .found = true};
}

/* Finds the destination of each lane. */
GQ_FN void gd_find_destinations(struct gd_share *s, const struct gd_known *known,
                                struct gd_tables *t, GQ_LANE_OUT(struct gd_destination, dest))
{
    const struct gq_sharer *w = &s->q;
    uint32_t n = GQ_SAME32(t->n_buffers);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(dest).found = false;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = i % w->group.lanes;

        if (i != 0 && k == 0) {
            GQ_FOR_LANES(lane)
            {
                gd_load_entry(w, &known->buffers[i + lane], lane, t);
            }
        }
        GQ_FOR_LANES(lane)
        {
            gd_match_entry(w, t, k, &GQ_AT(s->part), &GQ_AT(dest));
        }
    }
}

/* Called by one lane if a file has more extents than the group has lanes. */
GQ_FN void gd_search_extent(const struct gd_known *k, struct gq_cursor *cur)
{
    const struct gq_file_extent *e = k->extents;
    uint32_t low = 0, n = k->n_extents;

    while (n > 1) {
        uint32_t half = n / 2;

        if (gd_load64(&e[low + half].offset) <= cur->offset)
            low += half;
        n -= half;
    }
    cur->from = gd_load64(&e[low].offset);
    cur->lba = gd_load64(&e[low].lba);
    cur->to = low + 1 < k->n_extents ? gd_load64(&e[low + 1].offset) : k->end;
}

/*
 * Called inside a region by all lanes. Stores the extent that has the cursor's
 * place, by the entries that the lanes have.
 */
GQ_FN void gd_choose_extent(const struct gq_sharer *w, const struct gd_known *k,
                            const struct gd_tables *t, struct gq_cursor *cur)
{
    uint32_t low = 0, next;

    (void)w;
    for (uint32_t n = k->n_extents; n > 1; n -= n / 2) {
        uint64_t middle = GQ_FROM64(t->offset, low + n / 2);

        low += middle <= cur->offset ? n / 2 : 0;
    }
    next = low + 1 < k->n_extents ? low + 1 : low;
    cur->from = GQ_FROM64(t->offset, low);
    cur->lba = GQ_FROM64(t->lba, low);
    cur->to = GQ_FROM64(t->offset, next);
    cur->to = next == low ? k->end : cur->to;
}

/* Finds, for each lane, the extent of its next byte, which is before the file's end. */
GQ_FN void gd_find_extents(struct gd_share *s, const struct gd_known *k, const struct gd_tables *t,
                           GQ_LANE_OUT(struct gq_cursor, cur))
{
    const struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(cur).offset = GQ_AT(s->part).offset;
        if (k->n_extents <= w->group.lanes)
            gd_choose_extent(w, k, t, &GQ_AT(cur));
        else if (GQ_AT(s->part).left)
            gd_search_extent(k, &GQ_AT(cur));
    }
}

/*
 * Called by one lane. Assigns the next n bytes of its read to a command.
 * `staged` is as in the part.
 */
GQ_FN void gd_cut(struct gd_part *p, uint64_t n, uint64_t staged)
{
    p->dst += n;
    p->offset += n;
    p->left -= n;
    p->bytes = (uint32_t)n;
    p->staged = staged;
}

/*
 * Called by one lane. Returns the bytes of the command to the part, to be read
 * again.
 */
GQ_FN void gd_uncut(struct gd_part *p)
{
    p->dst -= p->bytes;
    p->offset -= p->bytes;
    p->left += p->bytes;
}

/*
 * Called by one lane. Makes a command for whole grains of one extent, into
 * dest. n is the number of bytes up to the end of the extent or of the read, at
 * least a grain.
 */
GQ_FN void gd_make_direct(const struct gd_known *k, struct gd_part *p, struct gq_cmd *cmd,
                          const struct gd_destination *dest, uint64_t n)
{
    n = n < k->max_command ? n : k->max_command;
    n = gq_prp_clip(dest->at, n & ~(uint64_t)(k->grain - 1), k->grain);
    cmd->prp1 = dest->iova + dest->at;
    cmd->prp2 = gq_prp2(dest->iova, dest->prps, dest->at, n);
    cmd->nlb = ((uint32_t)n >> gq_prefix_ones(k->lba_size - 1)) - 1;
    gd_cut(p, n, 0);
}

/*
 * Called by one lane. Makes a command for the grains around the next n bytes,
 * into the staging of its CID.
 */
GQ_FN void gd_make_staged(const struct gd_share *s, const struct gd_known *k, struct gd_part *p,
                          struct gq_cmd *cmd, uint32_t cid, uint64_t n)
{
    const struct gd_staging *st = &s->staging;
    uint32_t lead = (uint32_t)p->offset & (k->grain - 1), room = st->bytes - lead;
    uint32_t bytes = n < room ? (uint32_t)n : room;
    uint32_t cover = (lead + bytes + k->grain - 1) & ~(k->grain - 1);
    uint64_t at = ((uint64_t)s->queue * st->cids + cid) * st->bytes;

    cmd->prp1 = st->iova + at;
    cmd->prp2 = gq_prp2(st->iova, 0, at, cover);
    cmd->nlb = (cover >> gq_prefix_ones(k->lba_size - 1)) - 1;
    gd_cut(p, bytes, st->base + at + lead);
}

/*
 * Called by one lane with a CID. Makes its next command. Returns the number of
 * bytes that are zeros instead, or 0. A lane that needs staging gets no command
 * if its CID has none.
 */
GQ_FN uint64_t gd_make(const struct gd_share *s, const struct gd_known *k, struct gd_part *p,
                       struct gq_mine *m, struct gq_cmd *cmd, const struct gq_cursor *cur,
                       const struct gd_destination *dest)
{
    uint64_t n = p->left < cur->to - p->offset ? p->left : cur->to - p->offset;
    uint64_t lead = p->offset & (k->grain - 1);

    if (cur->lba == GQ_LBA_ZERO)
        return n;
    cmd->slba = cur->lba + ((p->offset - lead - cur->from) >> gq_prefix_ones(k->lba_size - 1));
    if (lead == 0 && n >= k->grain && p->dst % 4 == 0 && dest->iova != GD_UNREACHABLE)
        gd_make_direct(k, p, cmd, dest, n);
    else if (m->cid < s->staging.cids)
        gd_make_staged(s, k, p, cmd, m->cid, n);
    else
        return 0;
    m->stage = GQ_STAGE_READY;
    return 0;
}

/* Writes the zeros of holes; `of` is the result of gd_make(). */
GQ_FN void gd_write_zeros(struct gd_share *s, GQ_LANE_PARAM(uint64_t, of))
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, has);
    GQ_LANE_VAR(uint64_t, dst);
    uint32_t mask;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(has) = GQ_AT(of) != 0;
        GQ_AT(dst) = GQ_AT(s->part).dst;
    }
    mask = GQ_BALLOT(has);
    while (mask) {
        uint32_t i = gq_take_one(&mask);

        GQ_FOR_LANES(lane)
        {
            gq_zero_bytes(GQ_FROM64(dst, i), GQ_FROM64(of, i), lane, w->group.lanes);
        }
    }
    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(has))
            gd_cut(&GQ_AT(s->part), GQ_AT(of), 0);
    }
}

/*
 * Called inside a region. A lane with a new CID prepares its command, or
 * releases the CID.
 */
GQ_FN uint64_t gd_prepare_lane(struct gd_share *s, const struct gd_known *k, uint32_t lane,
                               const struct gq_cursor *cur, const struct gd_destination *dest)
{
    struct gq_sharer *w = &s->q;
    struct gq_mine *m = &GQ_AT(w->mine);
    struct gd_part *p = &GQ_AT(s->part);
    uint64_t zeros = 0;

    if (dest->found) {
        zeros = gd_make(s, k, p, m, &GQ_AT(w->cmd), cur, dest);
    } else {
        p->err = -EFAULT;
        p->left = 0;
    }
    if (m->stage == GQ_STAGE_NONE) {
        gq_release_cid(w->cids, m->cid);
        m->cid = GQ_NO_CID;
    }
    return zeros;
}

GQ_STEP void gd_prepare(struct gd_share *s, const struct gd_known *k, struct gd_tables *t)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(struct gq_cursor, cur);
    GQ_LANE_VAR(struct gd_destination, dest);
    GQ_LANE_VAR(uint64_t, zeros);
    GQ_LANE_VAR(uint32_t, low);

    gd_find_destinations(s, k, t, dest);
    gd_find_extents(s, k, t, cur);
    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(w->mine).stage == GQ_STAGE_NONE && GQ_AT(w->mine).cid != GQ_NO_CID) {
            GQ_AT(zeros) = gd_prepare_lane(s, k, lane, &GQ_AT(cur), &GQ_AT(dest));
            GQ_AT(low) =
                GQ_AT(w->mine).stage == GQ_STAGE_NONE && !GQ_AT(zeros) && GQ_AT(s->part).left;
        }
    }
    s->low = GQ_BALLOT(low) != 0;
    gd_write_zeros(s, zeros);
}

#endif
