/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks I/O commands and moves data between media and memory. NVM command set
 * 3.2.
 */
#include <assert.h>
#include <nvme/types.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>

#include "sim/sim_internal.h"

/* Supported bits of CDW12, without protection and directives. */
#define RW_CDW12_VALID (0xffffu | NVME_RW_FUA | 1u << 31)
#define WZ_CDW12_VALID (RW_CDW12_VALID | NVME_WZ_DEAC)

static SIM_RARE uint16_t io_flagged(struct sim_thread *th, enum sim_event e,
                                    const struct sim_cmd *cmd, uint16_t status)
{
    const struct nvme_sqe *q = &cmd->sqe;

    sim_flag(th->s, e, "SQ %u CID %u opcode %#x NSID %u LBA %llu+%u", cmd->sq->id, q->cid,
             q->opcode, q->nsid, (unsigned long long)sim_slba(q), sim_nlb(q));
    return status;
}

/*
 * Returns the OR of the reserved fields that all commands have, which is 0 if
 * they are clear. Flags and opcodes reserve further ones.
 */
static inline uint64_t reserved_of_all(const struct nvme_sqe *q)
{
    return q->cdw2 | q->cdw3 | q->cdw14 | q->cdw15 | q->mptr;
}

static inline uint32_t reserved_of_rw(const struct nvme_sqe *q)
{
    return (q->cdw12 & ~RW_CDW12_VALID) | (q->cdw13 & ~0xffu);
}

static bool reserved_clear(const struct nvme_sqe *q)
{
    uint32_t wrong = (reserved_of_all(q) != 0) | (q->flags & 0x3fu);

    switch (q->opcode) {
    case NVME_IO_READ:
    case NVME_IO_WRITE:
        return !(wrong | reserved_of_rw(q));
    case NVME_IO_WRITE_ZEROES:
        return !(wrong | (q->cdw12 & ~WZ_CDW12_VALID) | q->cdw13 | (q->flags & 0xc0u) |
                 (q->prp1 != 0) | (q->prp2 != 0));
    case NVME_IO_DSM:
        return !(wrong | (q->cdw10 & ~0xffu) | (q->cdw11 & ~7u) | q->cdw12 | q->cdw13);
    case NVME_IO_RESV_REGISTER:
    case NVME_IO_RESV_REPORT:
    case NVME_IO_RESV_ACQUIRE:
    case NVME_IO_RESV_RELEASE:
        return !(wrong | q->cdw12 | q->cdw13);
    default:
        return !(wrong | q->cdw10 | q->cdw11 | q->cdw12 | q->cdw13 | (q->flags & 0xc0u) |
                 (q->prp1 != 0) | (q->prp2 != 0));
    }
}

static bool in_range(const struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    return lba <= ns->lbas && lbas <= ns->lbas - lba;
}

/* Makes the checks common to READ, WRITE and WRITE ZEROES. */
static inline uint16_t io_check_range(struct sim_thread *th, const struct sim_cmd *cmd,
                                      const struct sim_ns *ns)
{
    if (!in_range(ns, sim_slba(&cmd->sqe), sim_nlb(&cmd->sqe)))
        return io_flagged(th, SIM_EV_LBA_RANGE, cmd, NVME_ERR_LBA_RANGE);
    if (ns->read_only && cmd->sqe.opcode != NVME_IO_READ)
        return SIM_ERR_WRITE_PROTECTED;
    return NVME_OK;
}

static uint16_t io_host_copy(struct sim_thread *th, const struct sim_ns *ns,
                             const struct nvme_sqe *q)
{
    unsigned char *media = ns->base + (sim_slba(q) << ns->lba_shift);
    uint16_t st = NVME_OK;

    for (unsigned i = 0; i < th->n_spans && st == NVME_OK; media += th->spans[i++].len) {
        const struct sim_span *p = &th->spans[i];
        st = q->opcode == NVME_IO_READ ? sim_media_read(ns, media, p->host, p->len)
                                       : sim_media_write(ns, media, p->host, p->len);
    }
    return st;
}

/* Flips one random bit: in memory for a read, on the media for a write. */
static void io_flip_bit(struct sim_thread *th, struct sim_ns *ns, const struct nvme_sqe *q)
{
    size_t bytes = sim_data_bytes(th->s, q);

    assert(bytes > 0); /* READ or WRITE with a valid namespace */
    uint64_t at = sim_random(&th->rng) % bytes;
    unsigned char bit = (unsigned char)(1u << (sim_random(&th->rng) % 8));

    if (q->opcode == NVME_IO_WRITE) {
        ns->base[(sim_slba(q) << ns->lba_shift) + at] ^= bit;
        return;
    }
    sim_flip(th, at, bit);
}

static bool all_host(const struct sim_thread *th)
{
    return th->host_spans == th->n_spans;
}

static inline void count_transfer(struct sim_thread *th, bool read, size_t bytes)
{
    sim_count(read ? &th->count.reads : &th->count.writes, 1);
    sim_count(read ? &th->count.read_bytes : &th->count.written_bytes, bytes);
}

static uint16_t io_transfer(struct sim_thread *th, struct sim_cmd *cmd, struct sim_ns *ns)
{
    const struct nvme_sqe *q = &cmd->sqe;
    size_t bytes = (size_t)sim_nlb(q) << ns->lba_shift;
    bool write = q->opcode == NVME_IO_WRITE;

    if (bytes > th->s->cfg.mdts)
        return io_flagged(th, SIM_EV_TRANSFER_TOO_LARGE, cmd, NVME_ERR_INVALID_FIELD);
    uint16_t st = io_check_range(th, cmd, ns);
    if (st == NVME_OK)
        st = sim_spans(th, q, bytes);
    if (st != NVME_OK)
        return st;
    count_transfer(th, !write, bytes);
    if (write && sim_is_cached(th, ns) && sim_cache_before_write(ns, sim_slba(q), sim_nlb(q)) != 0)
        return NVME_ERR_INTERNAL;
    if (!all_host(th)) {
        sim_move_start(th, cmd, ns);
        return SIM_MOVING;
    }
    st = io_host_copy(th, ns, q);
    if (st == NVME_OK && cmd->corrupt)
        io_flip_bit(th, ns, q);
    return st == NVME_OK && write ? sim_flush_write(th, cmd, ns) : st;
}

static uint16_t zero_range(struct sim_thread *th, struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    if (sim_is_cached(th, ns) && sim_cache_before_write(ns, lba, lbas) != 0)
        return NVME_ERR_INTERNAL;
    return sim_media_zero(ns, lba, lbas);
}

static uint16_t io_write_zeroes(struct sim_thread *th, struct sim_cmd *cmd, struct sim_ns *ns)
{
    const struct nvme_sqe *q = &cmd->sqe;
    uint16_t st = io_check_range(th, cmd, ns);

    if (st == NVME_OK)
        st = zero_range(th, ns, sim_slba(q), sim_nlb(q));
    return st == NVME_OK ? sim_flush_write(th, cmd, ns) : st;
}

static uint16_t dataset_management(struct sim_thread *th, const struct sim_cmd *cmd,
                                   struct sim_ns *ns)
{
    struct nvme_dsm_range ranges[NVME_DSM_MAX_RANGES] = {0};
    unsigned n = (cmd->sqe.cdw10 & 0xff) + 1;
    /* Copies the list, because it must not change between check and use. */
    uint16_t st = sim_take(th, &cmd->sqe, ranges, sim_data_bytes(th->s, &cmd->sqe));

    for (unsigned i = 0; st == NVME_OK && i < n; i++)
        if (!in_range(ns, ranges[i].slba, ranges[i].nlb))
            st = io_flagged(th, SIM_EV_LBA_RANGE, cmd, NVME_ERR_LBA_RANGE);
    if (st == NVME_OK && ns->read_only)
        st = SIM_ERR_WRITE_PROTECTED;
    if (!(cmd->sqe.cdw11 & NVME_DSM_DEALLOCATE))
        return st; /* other attributes are only hints */
    for (unsigned i = 0; st == NVME_OK && i < n; i++)
        st = zero_range(th, ns, ranges[i].slba, ranges[i].nlb);
    return st;
}

static bool is_shrunk(const struct sim *s, struct sim_ns *ns, unsigned index)
{
    char line[512];

    if (!sim_media_is_shrunk(ns))
        return false;
    if (s->cfg.log && !atomic_exchange(&ns->shrunk_said, true)) {
        snprintf(line, sizeof(line), "%s: the image was truncated while in use, data is lost",
                 s->cfg.ns[index].path);
        s->cfg.log(LOG_CRIT, line);
    }
    return true;
}

static uint16_t io_flush(struct sim_thread *th, struct sim_cmd *cmd)
{
    struct sim *s = th->s;
    struct sim_ns *ns = sim_ns_get(s, cmd->sqe.nsid);
    bool syncs = false;

    if (!ns && cmd->sqe.nsid != SIM_NSID_ALL)
        return io_flagged(th, SIM_EV_BAD_NSID, cmd, NVME_ERR_INVALID_NS);
    sim_count(&th->count.flushes, 1);
    for (unsigned i = 0; i < s->cfg.namespaces; i++) {
        if (ns && ns != &s->ns[i])
            continue;
        if (is_shrunk(s, &s->ns[i], i))
            return NVME_ERR_WRITE_FAULT;
        if (s->ns[i].track)
            sim_cache_flush(&s->ns[i]);
        syncs |= s->ns[i].syncs;
    }
    return syncs ? sim_flush_wait(th, cmd) : NVME_OK;
}

uint16_t sim_io_run(struct sim_thread *th, struct sim_cmd *cmd)
{
    const struct nvme_sqe *q = &cmd->sqe;
    struct sim_ns *ns = sim_ns_get(th->s, q->nsid);

    switch (q->opcode) {
    case NVME_IO_READ:
    case NVME_IO_WRITE:
    case NVME_IO_WRITE_ZEROES:
    case NVME_IO_DSM:
    case NVME_IO_FLUSH:
        break;
    default:
        if (th->s->reservations.shared && sim_reserve_has(q->opcode))
            break;
        return io_flagged(th, SIM_EV_BAD_OPCODE, cmd, NVME_ERR_INVALID_OPCODE);
    }
    if (!reserved_clear(q))
        return io_flagged(th, SIM_EV_RESERVED_FIELD, cmd, NVME_ERR_INVALID_FIELD);
    if (!sim_reserve_permits(th->s, q))
        return NVME_ERR_RESERVATION;
    if (q->opcode == NVME_IO_FLUSH)
        return io_flush(th, cmd);
    if (!ns)
        return io_flagged(th, SIM_EV_BAD_NSID, cmd, NVME_ERR_INVALID_NS);
    if (sim_reserve_has(q->opcode))
        return sim_reserve_run(th, q);
    if (q->opcode == NVME_IO_WRITE_ZEROES)
        return io_write_zeroes(th, cmd, ns);
    if (q->opcode == NVME_IO_DSM)
        return dataset_management(th, cmd, ns);
    return io_transfer(th, cmd, ns);
}

static void repeat_last(struct sim_sq *sq)
{
    if (sq->last && sim_cq_has_room(sq->cq))
        sim_post(sq, sq->last & 0xffffu, NVME_OK, 0);
}

static void arrive_faulty(struct sim_thread *th, struct sim_cmd *cmd, const struct sim_fault *f,
                          uint64_t now)
{
    if (f->kind == SIM_FAULT_FATAL || f->kind == SIM_FAULT_REMOVE) {
        atomic_store(f->kind == SIM_FAULT_FATAL ? &th->s->halted : &th->s->gone, true);
        sim_command_free(th, cmd);
        return;
    }
    uint64_t due = sim_due(th, &cmd->sqe, now);
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
    case SIM_FAULT_REPEAT:
        repeat_last(cmd->sq);
        due += f->delay_ns;
        break;
    case SIM_FAULT_LATE:
        due += f->delay_ns;
        break;
    case SIM_FAULT_CORRUPT:
        cmd->corrupt = cmd->sqe.opcode == NVME_IO_READ || cmd->sqe.opcode == NVME_IO_WRITE;
        break;
    case SIM_FAULT_FATAL:
    case SIM_FAULT_REMOVE:
        break;
    }
    sim_hold(th, cmd, due);
}

static void run_now(struct sim_thread *th, struct sim_cmd *cmd)
{
    if (th->blocked) {
        sim_hold(th, cmd, 0);
        return;
    }
    uint16_t status = sim_io_run(th, cmd);
    if (status != SIM_MOVING)
        sim_complete(th, cmd, status);
}

static void arrive_one(struct sim_thread *th, struct sim_cmd *cmd, uint64_t now)
{
    struct sim *s = th->s;

    if (sim_dead(s)) { /* a command of the same batch has stopped the controller */
        sim_command_free(th, cmd);
        return;
    }
    const struct sim_fault *f = s->n_faults ? sim_fault_match(s, cmd->sq, &cmd->sqe) : NULL;
    if (f) /* a rule that fired affects a hung controller as well */
        arrive_faulty(th, cmd, f, now);
    else if (sim_hung(s)) /* a command of the same batch has hung the controller */
        sim_hold(th, cmd, now);
    else if (s->delays)
        sim_hold(th, cmd, sim_due(th, &cmd->sqe, now));
    else
        run_now(th, cmd);
}

#define MEDIA_BYTES 1024u /* bytes of a command that are prefetched */

/*
 * Prefetches the media that READs of a batch will copy to host memory. It is seldom in a cache, and
 * its pages are seldom in the TLB, so the first lines of all commands come before further ones.
 * With this, eight threads execute 31 M reads of one or two LBAs of 512 bytes per second, and 27 M
 * with a prefetch of 512 bytes two commands ahead.
 */
static void prefetch_media(struct sim_thread *th, struct sim_cmd *const *cmds, unsigned n)
{
    const unsigned char *media[SIM_BATCH];
    size_t bytes[SIM_BATCH];

    for (unsigned i = 0; i < n; i++) {
        const struct nvme_sqe *q = &cmds[i]->sqe;
        const struct sim_ns *ns = q->opcode == NVME_IO_READ ? sim_ns_get(th->s, q->nsid) : NULL;

        bytes[i] = 0;
        if (!ns || !in_range(ns, sim_slba(q), sim_nlb(q)) || !sim_host_at(th, q->prp1, 1))
            continue;
        media[i] = ns->base + (sim_slba(q) << ns->lba_shift);
        bytes[i] = (size_t)sim_nlb(q) << ns->lba_shift;
        __builtin_prefetch(media[i]);
    }
    for (unsigned i = 0; i < n; i++) {
        for (size_t at = SIM_CACHE_LINE; at < bytes[i] && at < MEDIA_BYTES; at += SIM_CACHE_LINE)
            __builtin_prefetch(media[i] + at);
    }
}

void sim_io_arrive(struct sim_thread *th, struct sim_cmd *const *cmds, unsigned n)
{
    if (!th->s->delays && !th->s->n_faults) { /* only a fault ends the controller within a round */
        prefetch_media(th, cmds, n);
        for (unsigned i = 0; i < n; i++)
            run_now(th, cmds[i]);
        return;
    }
    uint64_t now = now_ns();
    for (unsigned i = 0; i < n; i++)
        arrive_one(th, cmds[i], now);
}

bool sim_io_run_held(struct sim_thread *th, uint64_t *next_due)
{
    struct sim_cmd *cmd;
    bool ran = false;

    if (!th->n_heap)
        return false;
    uint64_t now = now_ns();
    while (!th->blocked && (cmd = sim_held_take(th, now)) != NULL) {
        ran = true;
        uint16_t status = cmd->decided ? cmd->status : sim_io_run(th, cmd);
        if (status != SIM_MOVING)
            sim_finish(th, cmd, status);
    }
    if (th->n_heap)
        *next_due = th->commands[th->heap[0]].due;
    return ran;
}
