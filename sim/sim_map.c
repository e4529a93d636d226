/* SPDX-License-Identifier: BSD-2-Clause */
/* Maps and unmaps memory while commands and copies are in flight. */
#include <errno.h>

#include "sim/sim_internal.h"

/* Maps at *iova, or at a free address, which it stores there. */
static int sim_map_map(struct nvme_transport *tr, const struct nvme_mem *mem, bool at,
                       uint64_t *iova)
{
    struct sim *s = sim_of(tr);
    uint64_t start = mem->addr ? (uint64_t)(uintptr_t)mem->addr : mem->device;

    if (!mem->len || ((start | mem->len) & (NVME_PAGE_SIZE - 1)))
        return -EINVAL;
    if (!mem->addr && s->cfg.no_device_memory)
        return -EFAULT;
    pthread_mutex_lock(&s->map_lock);
    int dma = mem->addr ? 0 : sim_dma_engine_attach(s, mem->device), rc = dma;
    if (dma >= 0) {
        sim_pause(s);
        rc = at ? sim_iova_add_at(&s->iova, mem, *iova) : sim_iova_add(&s->iova, mem, iova);
        if (!rc)
            sim_iova_find(&s->iova, *iova)->dma = (unsigned)dma;
        sim_resume(s);
        if (rc && !mem->addr)
            sim_dma_engine_detach(s);
    }
    pthread_mutex_unlock(&s->map_lock);
    return rc;
}

int sim_map(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t *iova)
{
    return sim_map_map(t, mem, false, iova);
}

int sim_map_at(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t iova)
{
    if (iova % NVME_PAGE_SIZE || iova > SIM_IOVA_END || mem->len > SIM_IOVA_END - iova)
        return -EINVAL;
    return sim_map_map(t, mem, true, &iova);
}

/* Returns true for the command of th->blocked, whose copies are not all queued. */
static bool waits_for_room(const struct sim_cmd *cmd)
{
    return cmd->state == SIM_CMD_MOVING && !cmd->queued;
}

/*
 * Marks commands whose data is not completely copied, so that they fail when
 * they are due. Returns true if there are any.
 */
static bool doom_commands(struct sim_thread *th, const struct sim_mapping *m)
{
    bool any = false;

    for (unsigned i = 0; th->free_commands < SIM_COMMANDS && i < SIM_COMMANDS; i++) {
        struct sim_cmd *cmd = &th->commands[i];

        if (cmd->state == SIM_CMD_FREE || cmd->state == SIM_CMD_DONE || cmd->dead || cmd->decided ||
            !sim_command_reaches(th, cmd, m))
            continue;
        any = true;
        cmd->decided = cmd->state == SIM_CMD_HELD;
        if (waits_for_room(cmd))
            th->n_spans = 0; /* no further copies of this command are queued */
        if (cmd->decided || waits_for_room(cmd))
            cmd->status = NVME_ERR_DATA_TRANSFER;
    }
    return any;
}

/*
 * Returns true if copies in flight reach the mapping. The lists of a command
 * whose queue was deleted may be unmapped, so such a command counts as reaching
 * every mapping.
 */
static bool copies_reach(struct sim_thread *th, const struct sim_mapping *m)
{
    for (unsigned i = 0; th->free_commands < SIM_COMMANDS && i < SIM_COMMANDS; i++) {
        struct sim_cmd *cmd = &th->commands[i];

        if (cmd->state == SIM_CMD_MOVING && (cmd->dead || sim_command_reaches(th, cmd, m)))
            return true;
    }
    return false;
}

static bool ring_inside(uint64_t ring, const struct sim_mapping *m)
{
    return ring - m->iova < m->len;
}

/* Threads are paused. A queue without its ring stops the controller. */
static bool queue_reaches(struct sim *s, const struct sim_mapping *m)
{
    bool any = false;

    for (unsigned q = 0; q <= s->cfg.io_queues; q++)
        any |= (s->sqs[q].ring && ring_inside(s->sqs[q].iova, m)) ||
               (s->cqs[q].ring && ring_inside(s->cqs[q].iova, m));
    if (any) {
        sim_controller_stop(s);
        atomic_store(&s->halted, true);
    }
    return any;
}

/*
 * Called with all threads paused. Reports and fails commands that could still
 * access the mapping. Unmapping is not a mistake of a driver that has disabled
 * a controller which does not stop, or that has shut it down: SPDK leaves CC.EN
 * set then.
 */
static void take_out_of_service(struct sim *s, struct sim_mapping *m)
{
    bool given_up = s->stuck && !(atomic_load(&s->cc) & NVME_CC_ENABLE);
    bool reached = false;

    given_up |= atomic_load(&s->shst) == NVME_CSTS_SHST_COMPLETE;
    if (atomic_load(&s->gone))
        sim_controller_stop(s);
    for (unsigned i = 0; i < s->n_threads; i++)
        reached |= doom_commands(&s->threads[i], m);
    reached |= queue_reaches(s, m);
    if (reached && !given_up)
        sim_flag(s, SIM_EV_UNMAP_IN_FLIGHT, "iova %#llx, %zu bytes", (unsigned long long)m->iova,
                 m->len);
    m->dying = true;
}

/*
 * Waits for the copies in flight; copies of other mappings continue. Returns 0
 * or -ETIMEDOUT. After a timeout the function does not wait again until a copy
 * ends, since a client may have many buffers.
 */
static int wait_for_copies(struct sim *s, uint64_t iova)
{
    uint64_t deadline = now_ns() + (atomic_load(&s->stalled) ? 0 : SIM_DRAIN_MS * 1000000ull);

    for (;;) {
        bool busy = false;

        sim_pause(s);
        for (unsigned i = 0; i < s->n_threads && !busy; i++)
            busy = copies_reach(&s->threads[i], sim_iova_find(&s->iova, iova));
        sim_resume(s);
        if (!busy)
            return 0;
        if (now_ns() > deadline) {
            atomic_store(&s->stalled, true);
            return -ETIMEDOUT;
        }
        sim_nap();
    }
}

int sim_unmap(struct nvme_transport *tr, uint64_t iova)
{
    struct sim *s = sim_of(tr);
    int rc = -ENOENT;
    bool device = false;

    pthread_mutex_lock(&s->map_lock);
    sim_pause(s);
    struct sim_mapping *m = sim_iova_find(&s->iova, iova);
    if (m) {
        take_out_of_service(s, m);
        device = !m->host;
        rc = 0;
    }
    sim_resume(s);
    /* Only copies to a device outlive a round of the threads. */
    if (rc == 0 && device)
        rc = wait_for_copies(s, iova);
    if (rc == 0) {
        sim_pause(s);
        sim_iova_remove(&s->iova, iova);
        sim_resume(s);
        if (device)
            sim_dma_engine_detach(s);
    }
    pthread_mutex_unlock(&s->map_lock);
    return rc;
}

void sim_unmap_all(struct sim *s)
{
    size_t n = s->iova.n;

    s->iova.n = 0;
    for (size_t i = 0; i < n; i++)
        if (!s->iova.at[i].host)
            sim_dma_engine_detach(s);
}
