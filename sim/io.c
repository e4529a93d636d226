/* I/O commands: checking, and moving data between media and memory. NVM command set 3.2. */
#include <assert.h>
#include <string.h>

#include "sim/internal.h"

/* Bits of CDW12 that mean something here; protection information and directives are not offered. */
#define RW_CDW12_VALID (0xffffu | NVME_RW_FUA | 1u << 31)
#define WZ_CDW12_VALID (RW_CDW12_VALID | NVME_WZ_DEAC)

struct sim_ns *sim_ns_get(struct sim *s, uint32_t nsid)
{
    return nsid >= 1 && nsid <= s->cfg.namespaces ? &s->ns[nsid - 1] : NULL;
}

size_t sim_data_bytes(struct sim *s, const struct nvme_sqe *sqe)
{
    const struct sim_ns *ns = sim_ns_get(s, sqe->nsid);

    if (!ns)
        return 0;
    if (sqe->opcode == NVME_IO_READ || sqe->opcode == NVME_IO_WRITE)
        return (size_t)sim_nlb(sqe) << ns->lba_shift;
    if (sqe->opcode == NVME_IO_DSM)
        return ((sqe->cdw10 & 0xff) + 1) * sizeof(struct nvme_dsm_range);
    return 0;
}

static uint16_t flagged(struct sim_thread *th, enum sim_event e, const struct sim_sq *sq,
                        const struct nvme_sqe *q, uint16_t status)
{
    sim_flag(th->s, e, "SQ %u CID %u opcode %#x NSID %u LBA %llu+%u", sq->id, q->cid, q->opcode,
             q->nsid, (unsigned long long)sim_slba(q), sim_nlb(q));
    return status;
}

static bool reserved_clear(const struct nvme_sqe *q)
{
    uint32_t wrong = q->cdw2 | q->cdw3 | (q->flags & 0x3fu) | q->cdw14 | q->cdw15;

    wrong |= (q->mptr != 0);
    switch (q->opcode) {
    case NVME_IO_READ:
    case NVME_IO_WRITE:
        return !(wrong | (q->cdw12 & ~RW_CDW12_VALID) | (q->cdw13 & ~0xffu));
    case NVME_IO_WRITE_ZEROES:
        return !(wrong | (q->cdw12 & ~WZ_CDW12_VALID) | q->cdw13 | (q->flags & 0xc0u) |
                 (q->prp1 != 0) | (q->prp2 != 0));
    case NVME_IO_DSM:
        return !(wrong | (q->cdw10 & ~0xffu) | (q->cdw11 & ~7u) | q->cdw12 | q->cdw13);
    default:
        return !(wrong | q->cdw10 | q->cdw11 | q->cdw12 | q->cdw13 | (q->flags & 0xc0u) |
                 (q->prp1 != 0) | (q->prp2 != 0));
    }
}

static bool in_range(const struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    return lba <= ns->lbas && lbas <= ns->lbas - lba;
}

/* Read, write, write zeroes: what they have in common. */
static uint16_t check_range(struct sim_thread *th, const struct sim_sq *sq,
                            const struct nvme_sqe *q, const struct sim_ns *ns)
{
    size_t bytes = sim_data_bytes(th->s, q);

    if (bytes > th->s->cfg.mdts)
        return flagged(th, SIM_EV_TRANSFER_TOO_LARGE, sq, q, NVME_ERR_INVALID_FIELD);
    if (!in_range(ns, sim_slba(q), sim_nlb(q)))
        return flagged(th, SIM_EV_LBA_RANGE, sq, q, NVME_ERR_LBA_RANGE);
    if (ns->read_only && q->opcode != NVME_IO_READ)
        return SIM_ERR_WRITE_PROTECTED;
    return NVME_OK;
}

static bool cached(const struct sim_thread *th, const struct sim_ns *ns)
{
    return ns->track && th->s->wce;
}

static void host_copy(struct sim_thread *th, struct sim_ns *ns, const struct nvme_sqe *q)
{
    unsigned char *media = ns->base + (sim_slba(q) << ns->lba_shift);

    for (unsigned i = 0; i < th->n_pieces; i++) {
        const struct sim_piece *p = &th->pieces[i];
        if (q->opcode == NVME_IO_READ)
            sim_copy_to_target(p->host, media, p->len);
        else
            sim_copy_from_target(media, p->host, p->len);
        media += p->len;
    }
}

/* One bit of the data, drawn from the seed: in memory for a read, on the media for a write. */
static void flip_bit(struct sim_thread *th, struct sim_ns *ns, const struct nvme_sqe *q)
{
    size_t bytes = sim_data_bytes(th->s, q);
    assert(bytes > 0); /* a read or a write, whose namespace was found */
    uint64_t at = sim_random(&th->rng) % bytes;
    unsigned char bit = (unsigned char)(1u << (sim_random(&th->rng) % 8));

    if (q->opcode == NVME_IO_WRITE) {
        ns->base[(sim_slba(q) << ns->lba_shift) + at] ^= bit;
        return;
    }
    for (unsigned i = 0; i < th->n_pieces; at -= th->pieces[i++].len) {
        if (at < th->pieces[i].len) {
            th->pieces[i].host[at] ^= bit;
            return;
        }
    }
}

static bool all_host(const struct sim_thread *th)
{
    for (unsigned i = 0; i < th->n_pieces; i++)
        if (!th->pieces[i].host)
            return false;
    return true;
}

static void count_transfer(struct sim_thread *th, const struct nvme_sqe *q, size_t bytes)
{
    bool read = q->opcode == NVME_IO_READ;

    sim_count(read ? &th->count.reads : &th->count.writes, 1);
    sim_count(read ? &th->count.read_bytes : &th->count.written_bytes, bytes);
}

static uint16_t transfer(struct sim_thread *th, struct sim_sq *sq, const struct nvme_sqe *q,
                         struct sim_ns *ns, struct sim_cmd *cmd)
{
    size_t bytes = sim_data_bytes(th->s, q);
    bool write = q->opcode == NVME_IO_WRITE, fua = q->cdw12 & NVME_RW_FUA;
    uint16_t st = check_range(th, sq, q, ns);

    if (st == NVME_OK)
        st = sim_pieces(th, q, bytes);
    if (st != NVME_OK)
        return st;
    count_transfer(th, q, bytes);
    if (ns->null_media)
        return NVME_OK;
    if (write && cached(th, ns) && sim_cache_before_write(ns, sim_slba(q), sim_nlb(q)) != 0)
        return NVME_ERR_INTERNAL;
    if (!all_host(th)) {
        if (!cmd)
            cmd = sim_slot_take(th, sq, q);
        struct sim_transfer x = {
            .ns = ns, .lba = sim_slba(q), .lbas = sim_nlb(q), .write = write, .fua = fua};
        sim_move_start(th, cmd, &x);
        return SIM_MOVING;
    }
    host_copy(th, ns, q);
    if (cmd && cmd->corrupt)
        flip_bit(th, ns, q);
    if (write && fua && cached(th, ns))
        sim_cache_durable(ns, sim_slba(q), sim_nlb(q));
    return NVME_OK;
}

static uint16_t zero_range(struct sim_thread *th, struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    if (cached(th, ns) && sim_cache_before_write(ns, lba, lbas) != 0)
        return NVME_ERR_INTERNAL;
    sim_media_zero(ns, lba, lbas);
    return NVME_OK;
}

static uint16_t write_zeroes(struct sim_thread *th, struct sim_sq *sq, const struct nvme_sqe *q,
                             struct sim_ns *ns)
{
    uint16_t st = check_range(th, sq, q, ns);

    if (st == NVME_OK)
        st = zero_range(th, ns, sim_slba(q), sim_nlb(q));
    if (st == NVME_OK && (q->cdw12 & NVME_RW_FUA) && cached(th, ns))
        sim_cache_durable(ns, sim_slba(q), sim_nlb(q));
    return st;
}

/* Copies the range list out first: it must not change between the check and the work. */
static uint16_t fetch_ranges(struct sim_thread *th, const struct nvme_sqe *q,
                             struct nvme_dsm_range *ranges)
{
    uint16_t st = sim_pieces(th, q, sim_data_bytes(th->s, q));
    unsigned char *to = (unsigned char *)ranges;

    if (st == NVME_OK && !all_host(th))
        return NVME_ERR_DATA_TRANSFER;
    for (unsigned i = 0; st == NVME_OK && i < th->n_pieces; i++) {
        memcpy(to, th->pieces[i].host, th->pieces[i].len);
        to += th->pieces[i].len;
    }
    return st;
}

static uint16_t dataset_management(struct sim_thread *th, struct sim_sq *sq,
                                   const struct nvme_sqe *q, struct sim_ns *ns)
{
    struct nvme_dsm_range ranges[NVME_DSM_MAX_RANGES] = {0};
    unsigned n = (q->cdw10 & 0xff) + 1;
    uint16_t st = fetch_ranges(th, q, ranges);

    for (unsigned i = 0; st == NVME_OK && i < n; i++)
        if (!in_range(ns, ranges[i].slba, ranges[i].lbas))
            st = flagged(th, SIM_EV_LBA_RANGE, sq, q, NVME_ERR_LBA_RANGE);
    if (st == NVME_OK && ns->read_only)
        st = SIM_ERR_WRITE_PROTECTED;
    if (!(q->cdw11 & NVME_DSM_DEALLOCATE))
        return st; /* hints only */
    for (unsigned i = 0; st == NVME_OK && i < n; i++)
        st = zero_range(th, ns, ranges[i].slba, ranges[i].lbas);
    return st;
}

static uint16_t flush(struct sim_thread *th, struct sim_sq *sq, const struct nvme_sqe *q)
{
    struct sim *s = th->s;
    struct sim_ns *ns = sim_ns_get(s, q->nsid);

    if (!ns && q->nsid != SIM_NSID_ALL)
        return flagged(th, SIM_EV_BAD_NSID, sq, q, NVME_ERR_INVALID_NS);
    sim_count(&th->count.flushes, 1);
    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        if (!ns || ns == &s->ns[i])
            sim_media_flush(s, &s->ns[i]);
    return NVME_OK;
}

uint16_t sim_io_run(struct sim_thread *th, struct sim_sq *sq, const struct nvme_sqe *q,
                    struct sim_cmd *cmd)
{
    struct sim_ns *ns = sim_ns_get(th->s, q->nsid);

    switch (q->opcode) {
    case NVME_IO_READ:
    case NVME_IO_WRITE:
    case NVME_IO_WRITE_ZEROES:
    case NVME_IO_DSM:
    case NVME_IO_FLUSH:
        break;
    default:
        return flagged(th, SIM_EV_BAD_OPCODE, sq, q, NVME_ERR_INVALID_OPCODE);
    }
    if (!reserved_clear(q))
        return flagged(th, SIM_EV_RESERVED_FIELD, sq, q, NVME_ERR_INVALID_FIELD);
    if (q->opcode == NVME_IO_FLUSH)
        return flush(th, sq, q);
    if (!ns)
        return flagged(th, SIM_EV_BAD_NSID, sq, q, NVME_ERR_INVALID_NS);
    if (q->opcode == NVME_IO_WRITE_ZEROES)
        return write_zeroes(th, sq, q, ns);
    if (q->opcode == NVME_IO_DSM)
        return dataset_management(th, sq, q, ns);
    return transfer(th, sq, q, ns, cmd);
}

static void arrive_faulty(struct sim_thread *th, struct sim_sq *sq, const struct nvme_sqe *q,
                          const struct sim_fault *f, uint64_t now)
{
    if (f->kind == SIM_FAULT_FATAL || f->kind == SIM_FAULT_REMOVE) {
        atomic_store(f->kind == SIM_FAULT_FATAL ? &th->s->halted : &th->s->gone, true);
        return;
    }
    struct sim_cmd *cmd = sim_slot_take(th, sq, q);
    uint64_t due = sim_due(th, q, now);
    switch (f->kind) {
    case SIM_FAULT_HANG:
        sim_hang(th->s, f->delay_ns);
        break;
    case SIM_FAULT_LOSE:
        cmd->state = SIM_CMD_LOST;
        return;
    case SIM_FAULT_STATUS:
        cmd->decided = true;
        cmd->status = f->status;
        break;
    case SIM_FAULT_LATE:
        due += f->delay_ns;
        break;
    case SIM_FAULT_CORRUPT:
        cmd->corrupt = q->opcode == NVME_IO_READ || q->opcode == NVME_IO_WRITE;
        break;
    case SIM_FAULT_FATAL:
    case SIM_FAULT_REMOVE:
        break;
    }
    sim_hold(th, cmd, due);
}

void sim_io_arrive(struct sim_thread *th, struct sim_sq *sq, const struct nvme_sqe *q, uint64_t now)
{
    struct sim *s = th->s;
    const struct sim_fault *f = s->n_faults ? sim_fault_match(s, sq, q) : NULL;

    if (sim_hung(s)) { /* by a command of the same batch */
        sim_hold(th, sim_slot_take(th, sq, q), now);
        return;
    }
    if (f) {
        arrive_faulty(th, sq, q, f, now);
        return;
    }
    if (s->delays || sim_move_blocked(th)) {
        sim_hold(th, sim_slot_take(th, sq, q), s->delays ? sim_due(th, q, now) : 0);
        return;
    }
    uint16_t status = sim_io_run(th, sq, q, NULL);
    if (status != SIM_MOVING)
        sim_post(th, sq, q->cid, status, 0);
}
