/* SPDX-License-Identifier: BSD-2-Clause */
/* Selects commands for faults by rules and seed. */
#include <errno.h>

#include "sim/sim_internal.h"

static bool fault_covers(const struct sim_fault *f, const struct sim_sq *sq,
                         const struct nvme_sqe *sqe)
{
    if (f->admin != (sq->id == 0))
        return false;
    if (f->match_opcode && f->opcode != sqe->opcode)
        return false;
    if (f->qid && f->qid != sq->id)
        return false;
    if (!f->lbas || f->admin)
        return true;
    if (sqe->opcode != NVME_IO_READ && sqe->opcode != NVME_IO_WRITE &&
        sqe->opcode != NVME_IO_WRITE_ZEROES)
        return false;
    uint64_t slba = sim_slba(sqe);
    return slba < f->first_lba + f->lbas && f->first_lba < slba + sim_nlb(sqe);
}

/* The draw depends only on n, so it is independent of threads' timing. */
static bool fires(struct sim *s, struct sim_fault_state *state, unsigned rule)
{
    const struct sim_fault *f = &state->f;
    uint64_t n = atomic_fetch_add_explicit(&state->matches, 1, memory_order_relaxed);

    if (n < f->skip)
        return false;
    if (f->one_in > 1) {
        uint64_t draw = s->cfg.seed ^ ((uint64_t)rule << 56) ^ n;
        if (sim_random(&draw) % f->one_in != 0)
            return false;
    }
    uint64_t fired = atomic_fetch_add_explicit(&state->fired, 1, memory_order_relaxed);
    return !f->times || fired < f->times;
}

const struct sim_fault *sim_fault_match(struct sim *s, const struct sim_sq *sq,
                                        const struct nvme_sqe *sqe)
{
    for (unsigned i = 0; i < s->n_faults; i++) {
        struct sim_fault_state *state = &s->faults[i];

        if (fault_covers(&state->f, sq, sqe) && fires(s, state, i))
            return &state->f;
    }
    return NULL;
}

void sim_hang(struct sim *s, uint64_t ns)
{
    uint64_t until = ns ? now_ns() + ns : UINT64_MAX, was = atomic_load(&s->hung_until);

    while (was < until && !atomic_compare_exchange_weak(&s->hung_until, &was, until))
        ; /* the latest end counts */
}

bool sim_still_hung(struct sim *s)
{
    uint64_t until = atomic_load_explicit(&s->hung_until, memory_order_relaxed);

    if (!until || until == UINT64_MAX || now_ns() < until)
        return until != 0;
    atomic_compare_exchange_strong(&s->hung_until, &until, 0);
    return false;
}

int sim_add_fault(struct sim *s, const struct sim_fault *f)
{
    int rc = -ENOSPC;

    sim_pause(s);
    if (s->n_faults < SIM_MAX_FAULTS) {
        struct sim_fault_state *state = &s->faults[s->n_faults++];
        state->f = *f;
        atomic_init(&state->matches, 0);
        atomic_init(&state->fired, 0);
        rc = 0;
    }
    sim_resume(s);
    return rc;
}

void sim_clear_faults(struct sim *s)
{
    sim_pause(s);
    s->n_faults = 0;
    sim_resume(s);
}
