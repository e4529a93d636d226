/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Converts the data pointers of a command (PRPs or SGL) to spans of memory,
 * with adjacent ones merged (BASE 4.1). A mistake of the driver is recorded as
 * an event and fails with the status that the specification requires.
 */
#include <nvme/types.h>
#include <string.h>

#include "sim/sim_admin.h"

size_t sim_data_bytes(struct sim *s, const struct nvme_sqe *sqe)
{
    const struct sim_ns *ns = sim_ns_get(s, sqe->nsid);

    if (!ns)
        return 0;
    if (sqe->opcode == NVME_IO_READ || sqe->opcode == NVME_IO_WRITE)
        return (size_t)sim_nlb(sqe) << ns->lba_shift;
    if (sqe->opcode == NVME_IO_DSM)
        return ((sqe->cdw10 & 0xff) + 1) * sizeof(struct nvme_dsm_range);
    return sim_reserve_bytes(sqe);
}

#define SGL_TYPE(d)      ((d)->type & 0xf0)
#define SGL_MAX_SEGMENTS 256u

/*
 * Holds the state of a walk of a data pointer. A walk either adds spans to the
 * list of the thread or compares them with a mapping.
 */
struct walk {
    struct sim_thread *th;
    const struct nvme_sqe *sqe;
    const struct sim_mapping *probe; /* searched for, without events */
    bool reached;
};

static SIM_RARE uint16_t dptr_wrong(struct walk *w, enum sim_event e, uint64_t addr,
                                    uint16_t status)
{
    if (!w->probe)
        sim_flag(w->th->s, e, "address %#llx, opcode %#x, CID %u", (unsigned long long)addr,
                 w->sqe->opcode, w->sqe->cid);
    return status;
}

static void dptr_probe(struct walk *w, uint64_t addr, size_t len)
{
    w->reached |= addr < w->probe->iova + w->probe->len && w->probe->iova < addr + len;
}

static inline bool merged(struct sim_thread *th, const struct sim_mapping *m, uint64_t offset,
                          size_t len)
{
    if (!th->n_spans)
        return false;
    struct sim_span *last = &th->spans[th->n_spans - 1];
    if (last->mapping != m->iova)
        return false;
    if (m->host ? last->host != NULL && last->host + last->len == m->host + offset
                : !last->host && last->device + last->len == m->device + offset) {
        last->len += len;
        return true;
    }
    return false;
}

static SIM_HOT uint16_t add_span(struct walk *w, uint64_t addr, size_t len)
{
    struct sim_thread *th = w->th;

    if (w->probe) {
        dptr_probe(w, addr, len);
        return NVME_OK;
    }
    const struct sim_mapping *m = sim_lookup(th->s, &th->last_mapping, addr, len);
    if (!m)
        return dptr_wrong(w, SIM_EV_PRP_UNMAPPED, addr, NVME_ERR_DATA_TRANSFER);
    uint64_t offset = addr - m->iova;
    if (merged(th, m, offset, len))
        return NVME_OK;
    if (th->n_spans == SIM_MAX_SPANS)
        return NVME_ERR_INVALID_SGL_COUNT;
    th->host_spans += m->host != NULL;
    th->spans[th->n_spans++] = (struct sim_span){.host = m->host ? m->host + offset : NULL,
                                                 .device = m->device + offset,
                                                 .len = len,
                                                 .mapping = m->iova,
                                                 .dma = m->dma};
    return NVME_OK;
}

/*
 * Returns the address of a list entry or segment in host memory, or NULL. Lists
 * in device memory are not supported.
 */
static const void *list_at(struct walk *w, uint64_t addr, size_t len)
{
    if (w->probe)
        dptr_probe(w, addr, len);
    return sim_host_at(w->th, addr, len);
}

static bool page_aligned(uint64_t addr)
{
    return !(addr & (NVME_PAGE_SIZE - 1));
}

/* A list that exceeds its page appears as a chain to unmapped memory. */
static uint16_t check_chain(struct walk *w, uint64_t list)
{
    const uint64_t *e = page_aligned(list) ? list_at(w, list, NVME_PAGE_SIZE) : NULL;
    size_t hint = 0;

    if (!e || !page_aligned(e[0]) || !sim_lookup(w->th->s, &hint, e[0], 1))
        return dptr_wrong(w, SIM_EV_PRP_LIST_OVERFLOW, list, NVME_ERR_INVALID_PRP_OFFSET);
    return NVME_OK;
}

/*
 * Returns the number of entries in the page of a list that starts at this
 * address. Without chains the list continues after the page.
 */
static size_t list_room(struct walk *w, uint64_t list, size_t pages)
{
    size_t room = (NVME_PAGE_SIZE - (list & (NVME_PAGE_SIZE - 1))) / sizeof(uint64_t);

    if (pages <= room || !w->th->s->cfg.no_prp_chains)
        return room;
    dptr_wrong(w, SIM_EV_PRP_CHAINED, list, NVME_OK);
    return pages;
}

/* Returns the index of the entry used for page i of `pages` in a list page. */
static size_t swapped(const struct walk *w, size_t i, size_t pages)
{
    const struct sim_config *cfg = &w->th->s->cfg;
    size_t first = cfg->swaps_prp - 1;

    if (!cfg->swaps_prp || first + 1 >= pages ||
        (cfg->swaps_opcode && cfg->swaps_opcode != w->sqe->opcode))
        return i;
    return i == first ? first + 1 : i == first + 1 ? first : i;
}

static uint16_t walk_prp_list(struct walk *w, uint64_t list, size_t len)
{
    if (list & 7)
        return dptr_wrong(w, SIM_EV_PRP_LIST_MISALIGNED, list, NVME_ERR_INVALID_PRP_OFFSET);
    while (len > 0) {
        size_t pages = (len + NVME_PAGE_SIZE - 1) / NVME_PAGE_SIZE;
        size_t room = list_room(w, list, pages);
        size_t entries = pages <= room ? pages : room;
        size_t data = pages <= room ? pages : room - 1;
        const uint64_t *e = list_at(w, list, entries * 8);
        uint16_t st = NVME_OK;

        if (!e)
            return dptr_wrong(w, SIM_EV_PRP_UNMAPPED, list, NVME_ERR_DATA_TRANSFER);
        for (size_t i = 0; i < data && st == NVME_OK; i++) {
            size_t n = len < NVME_PAGE_SIZE ? len : NVME_PAGE_SIZE;
            uint64_t page = __atomic_load_n(&e[swapped(w, i, data)], __ATOMIC_RELAXED);
            st = page_aligned(page)
                     ? add_span(w, page, n)
                     : dptr_wrong(w, SIM_EV_PRP_MISALIGNED, page, NVME_ERR_INVALID_PRP_OFFSET);
            len -= n;
        }
        if (st == NVME_OK && len > 0) {
            list = e[room - 1];
            st = check_chain(w, list);
        }
        if (st != NVME_OK)
            return st;
    }
    return NVME_OK;
}

/* Returns true if short data that crosses a page wraps around (wraps_short). */
static bool wraps(const struct walk *w, size_t len)
{
    size_t first = NVME_PAGE_SIZE - (w->sqe->prp1 & (NVME_PAGE_SIZE - 1));

    return w->th->s->cfg.wraps_short && first + len < NVME_PAGE_SIZE;
}

/* Walks the data after the first page. */
static SIM_APART uint16_t walk_prp2(struct walk *w, size_t len)
{
    uint64_t prp2 = w->sqe->prp2;

    if (wraps(w, len))
        prp2 = w->sqe->prp1 & ~(uint64_t)(NVME_PAGE_SIZE - 1);
    if (len > NVME_PAGE_SIZE)
        return walk_prp_list(w, prp2, len);
    if (!page_aligned(prp2))
        return dptr_wrong(w, SIM_EV_PRP_MISALIGNED, prp2, NVME_ERR_INVALID_PRP_OFFSET);
    return add_span(w, prp2, len);
}

static SIM_HOT uint16_t walk_prp(struct walk *w, size_t len)
{
    uint64_t prp1 = w->sqe->prp1, prp2 = w->sqe->prp2;
    size_t first = NVME_PAGE_SIZE - (prp1 & (NVME_PAGE_SIZE - 1));

    if (prp1 & 3)
        return dptr_wrong(w, SIM_EV_PRP_MISALIGNED, prp1, NVME_ERR_INVALID_PRP_OFFSET);
    uint16_t st = add_span(w, prp1, first < len ? first : len);
    if (st != NVME_OK)
        return st;
    if (first < len)
        return walk_prp2(w, len - first);
    return prp2 ? dptr_wrong(w, SIM_EV_RESERVED_FIELD, prp2, NVME_ERR_INVALID_FIELD) : NVME_OK;
}

static uint16_t check_descriptor(struct walk *w, const struct nvme_sgl_desc *d)
{
    bool segment = SGL_TYPE(d) == NVME_SGL_SEGMENT || SGL_TYPE(d) == NVME_SGL_LAST_SEGMENT;

    if ((d->type & 0xf) || (!segment && SGL_TYPE(d) != NVME_SGL_DATA_BLOCK))
        return dptr_wrong(w, SIM_EV_SGL_INVALID, d->type, NVME_ERR_INVALID_SGL_TYPE);
    if (d->reserved[0] | d->reserved[1] | d->reserved[2])
        return dptr_wrong(w, SIM_EV_RESERVED_FIELD, d->addr, NVME_ERR_INVALID_FIELD);
    if (segment && (!d->length || d->length % sizeof(*d) || (d->addr & 7)))
        return dptr_wrong(w, SIM_EV_SGL_INVALID, d->addr, NVME_ERR_INVALID_SGL_SEGMENT);
    return NVME_OK;
}

static uint16_t add_data_block(struct walk *w, const struct nvme_sgl_desc *d, size_t *left)
{
    if (d->length > *left)
        return dptr_wrong(w, SIM_EV_SGL_INVALID, d->addr, NVME_ERR_INVALID_SGL_LENGTH);
    *left -= d->length;
    return d->length ? add_span(w, d->addr, d->length) : NVME_OK;
}

/*
 * Walks the data blocks of one segment. Sets *link to its last descriptor if
 * that refers to a segment, and otherwise to type 0.
 */
static uint16_t walk_segment(struct walk *w, struct nvme_sgl_desc *link, size_t *left)
{
    const struct nvme_sgl_desc *d = list_at(w, link->addr, link->length);
    size_t n = link->length / sizeof(*d);
    bool last = SGL_TYPE(link) == NVME_SGL_LAST_SEGMENT;

    if (!d)
        return dptr_wrong(w, SIM_EV_PRP_UNMAPPED, link->addr, NVME_ERR_DATA_TRANSFER);
    link->type = NVME_SGL_DATA_BLOCK;
    for (size_t i = 0; i < n; i++) {
        struct nvme_sgl_desc copy = d[i];
        uint16_t st = check_descriptor(w, &copy);

        if (st != NVME_OK)
            return st;
        if (SGL_TYPE(&copy) != NVME_SGL_DATA_BLOCK) {
            if (last || i + 1 != n)
                return dptr_wrong(w, SIM_EV_SGL_INVALID, link->addr, NVME_ERR_INVALID_SGL_SEGMENT);
            *link = copy;
        } else if ((st = add_data_block(w, &copy, left)) != NVME_OK) {
            return st;
        }
    }
    return last || link->type != NVME_SGL_DATA_BLOCK
               ? NVME_OK
               : dptr_wrong(w, SIM_EV_SGL_INVALID, link->addr, NVME_ERR_INVALID_SGL_SEGMENT);
}

static SIM_APART uint16_t walk_sgl(struct walk *w, size_t len)
{
    struct nvme_sgl_desc d;

    if (w->th->s->cfg.no_sgl)
        return dptr_wrong(w, SIM_EV_SGL_INVALID, w->sqe->prp1, NVME_ERR_INVALID_FIELD);
    memcpy(&d, &w->sqe->prp1, sizeof(d));
    uint16_t st = check_descriptor(w, &d);
    if (st == NVME_OK && SGL_TYPE(&d) == NVME_SGL_DATA_BLOCK) {
        st = add_data_block(w, &d, &len);
    } else {
        for (unsigned i = 0; st == NVME_OK && d.type != NVME_SGL_DATA_BLOCK; i++)
            st = i < SGL_MAX_SEGMENTS ? walk_segment(w, &d, &len) : NVME_ERR_INVALID_SGL_COUNT;
    }
    if (st == NVME_OK && len)
        return dptr_wrong(w, SIM_EV_SGL_INVALID, w->sqe->prp1, NVME_ERR_INVALID_SGL_LENGTH);
    return st;
}

static SIM_HOT uint16_t walk_data(struct walk *w, size_t len)
{
    switch (w->sqe->flags & 0xc0) {
    case NVME_PSDT_PRP:
        return walk_prp(w, len);
    case NVME_PSDT_SGL:
        return walk_sgl(w, len);
    default:
        return dptr_wrong(w, SIM_EV_RESERVED_FIELD, w->sqe->flags, NVME_ERR_INVALID_FIELD);
    }
}

uint16_t sim_spans(struct sim_thread *th, const struct nvme_sqe *sqe, size_t len)
{
    struct walk w = {.th = th, .sqe = sqe};

    th->n_spans = th->host_spans = 0;
    return walk_data(&w, len);
}

uint16_t sim_take(struct sim_thread *th, const struct nvme_sqe *sqe, void *data, size_t bytes)
{
    uint16_t st = sim_spans(th, sqe, bytes);
    unsigned char *to = data;

    for (unsigned i = 0; st == NVME_OK && i < th->n_spans; i++) {
        if (!th->spans[i].host)
            return NVME_ERR_DATA_TRANSFER;
        memcpy(to, th->spans[i].host, th->spans[i].len);
        to += th->spans[i].len;
    }
    return st;
}

uint16_t sim_give(struct sim_thread *th, const struct nvme_sqe *sqe, const void *data, size_t size,
                  uint64_t offset, size_t bytes)
{
    uint16_t st = sim_spans(th, sqe, bytes);

    for (unsigned i = 0; st == NVME_OK && i < th->n_spans; i++) {
        struct sim_span *p = &th->spans[i];
        size_t there = offset < size ? size - offset : 0;
        if (!p->host)
            return NVME_ERR_DATA_TRANSFER;
        there = there < p->len ? there : p->len;
        memcpy(p->host, (const unsigned char *)data + (there ? offset : 0), there);
        memset(p->host + there, 0, p->len - there);
        offset += p->len;
    }
    return st;
}

void sim_flip(struct sim_thread *th, uint64_t at, unsigned char bits)
{
    for (unsigned i = 0; i < th->n_spans; at -= th->spans[i++].len) {
        if (at < th->spans[i].len) {
            th->spans[i].host[at] ^= bits;
            return;
        }
    }
}

static size_t admin_bytes(const struct nvme_sqe *sqe)
{
    if (sqe->opcode == NVME_ADMIN_GET_LOG_PAGE)
        return sim_log_bytes(sqe);
    if (sqe->opcode == NVME_ADMIN_SET_FEATURES || sqe->opcode == NVME_ADMIN_GET_FEATURES)
        return sim_feature_bytes(sqe);
    return sqe->opcode == NVME_ADMIN_IDENTIFY ? NVME_PAGE_SIZE : 0;
}

bool sim_command_reaches(struct sim_thread *th, const struct sim_cmd *cmd,
                         const struct sim_mapping *m)
{
    struct walk w = {.th = th, .sqe = &cmd->sqe, .probe = m};
    size_t len = cmd->sq->id ? sim_data_bytes(th->s, &cmd->sqe) : admin_bytes(&cmd->sqe);

    if (len)
        walk_data(&w, len);
    return w.reached;
}

uint16_t sim_admin_flagged(struct admin *a, enum sim_event e, uint16_t status)
{
    const struct nvme_sqe *q = a->sqe;

    sim_flag(a->s, e, "admin opcode %#x, NSID %u, CDW10 %#x, CDW11 %#x", q->opcode, q->nsid,
             q->cdw10, q->cdw11);
    return status;
}
