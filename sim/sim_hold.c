/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Keeps the commands that a thread has fetched and not completed: delayed ones
 * (in a heap by due time), lost ones, those with copies in flight, and those
 * whose CQ is full.
 */
#include <string.h>

#include "sim/sim_internal.h"

#define REORDER_SPREAD_NS 20000u

static uint32_t hold_index_of(const struct sim_thread *th, const struct sim_cmd *cmd)
{
    return (uint32_t)(cmd - th->commands);
}

void sim_commands_reset(struct sim_thread *th)
{
    for (uint32_t i = 0; i < SIM_COMMANDS; i++) {
        th->commands[i].state = SIM_CMD_FREE;
        th->free[i] = &th->commands[SIM_COMMANDS - 1 - i];
    }
    th->free_commands = SIM_COMMANDS;
    th->n_heap = 0;
    th->done = (struct sim_list){SIM_NO_COMMAND, SIM_NO_COMMAND};
}

static bool earlier(const struct sim_cmd *a, const struct sim_cmd *b)
{
    return a->due != b->due ? a->due < b->due : a->order < b->order;
}

static void hold_sift_down(struct sim_thread *th, unsigned i)
{
    uint32_t *h = th->heap;

    for (;;) {
        unsigned least = i;
        for (unsigned c = 2 * i + 1; c <= 2 * i + 2 && c < th->n_heap; c++)
            if (earlier(&th->commands[h[c]], &th->commands[h[least]]))
                least = c;
        if (least == i)
            return;
        uint32_t t = h[i];
        h[i] = h[least];
        h[least] = t;
        i = least;
    }
}

void sim_hold(struct sim_thread *th, struct sim_cmd *cmd, uint64_t due)
{
    unsigned i = th->n_heap++;

    assert(i < SIM_COMMANDS && cmd->state == SIM_CMD_HELD);
    cmd->due = due;
    cmd->order = th->order++;
    while (i > 0 && earlier(cmd, &th->commands[th->heap[(i - 1) / 2]])) {
        th->heap[i] = th->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    th->heap[i] = hold_index_of(th, cmd);
}

static void heap_remove(struct sim_thread *th, unsigned i)
{
    assert(i < th->n_heap);
    th->heap[i] = th->heap[--th->n_heap];
    /* Removals with i > 0 are rare, so the heap is rebuilt. */
    if (i == 0)
        hold_sift_down(th, 0);
    else
        for (unsigned k = th->n_heap / 2 + 1; k-- > 0;)
            hold_sift_down(th, k);
}

void sim_wait_for_room(struct sim_thread *th, struct sim_cmd *cmd, uint16_t status)
{
    assert(cmd->state != SIM_CMD_FREE);
    cmd->state = SIM_CMD_DONE;
    cmd->status = status;
    cmd->next = SIM_NO_COMMAND;
    if (th->done.head == SIM_NO_COMMAND)
        th->done.head = hold_index_of(th, cmd);
    else
        th->commands[th->done.tail].next = hold_index_of(th, cmd);
    th->done.tail = hold_index_of(th, cmd);
}

struct sim_cmd *sim_held_take(struct sim_thread *th, uint64_t now)
{
    struct sim_cmd *cmd = th->n_heap ? &th->commands[th->heap[0]] : NULL;

    if (!cmd || cmd->due > now)
        return NULL;
    heap_remove(th, 0);
    return cmd;
}

/* Returns the time at which the shared bandwidth admits the command. */
static uint64_t bandwidth_due(struct sim *s, const struct nvme_sqe *sqe, uint64_t now)
{
    uint64_t bytes = sim_data_bytes(s, sqe);
    uint64_t cost = (uint64_t)((double)bytes * 1e9 / (double)s->cfg.bytes_per_sec);
    uint64_t free_at = atomic_load(&s->bandwidth_free_at), end;

    do
        end = (free_at > now ? free_at : now) + cost;
    while (!atomic_compare_exchange_weak(&s->bandwidth_free_at, &free_at, end));
    return end;
}

uint64_t sim_due(struct sim_thread *th, const struct nvme_sqe *sqe, uint64_t now)
{
    const struct sim_config *cfg = &th->s->cfg;
    uint64_t due = cfg->bytes_per_sec ? bandwidth_due(th->s, sqe, now) : now;

    due += cfg->latency_ns;
    if (cfg->reorder)
        due += sim_random(&th->rng) % REORDER_SPREAD_NS;
    return due;
}

static void unheap(struct sim_thread *th, const struct sim_cmd *cmd)
{
    for (unsigned i = 0; i < th->n_heap; i++) {
        if (th->heap[i] == hold_index_of(th, cmd)) {
            heap_remove(th, i);
            return;
        }
    }
}

static bool abortable(const struct sim_cmd *cmd)
{
    return cmd->state == SIM_CMD_HELD || cmd->state == SIM_CMD_LOST;
}

static void hold_abort_command(struct sim_thread *th, struct sim_cmd *cmd, uint16_t status)
{
    if (cmd->state == SIM_CMD_HELD)
        unheap(th, cmd);
    sim_finish(th, cmd, status);
}

bool sim_held_flushed(struct sim_thread *th, uint64_t flush, uint16_t status)
{
    bool any = false;

    for (uint32_t i = 0; th->n_heap && i < SIM_COMMANDS; i++) {
        struct sim_cmd *cmd = &th->commands[i];

        if (cmd->state != SIM_CMD_HELD || cmd->due != SIM_NEVER || cmd->flush > flush)
            continue;
        unheap(th, cmd);
        sim_finish(th, cmd, cmd->decided ? cmd->status : status);
        any = true;
    }
    return any;
}

bool sim_abort(struct sim *s, uint16_t sqid, uint16_t cid, uint16_t status)
{
    struct sim_thread *th = &s->threads[sim_owner(s, sqid, false)];

    for (uint32_t i = 0; i < SIM_COMMANDS; i++) {
        struct sim_cmd *cmd = &th->commands[i];

        if (abortable(cmd) && cmd->sq->id == sqid && cmd->sqe.cid == cid) {
            hold_abort_command(th, cmd, status);
            return true;
        }
    }
    return false;
}

void sim_abort_queue(struct sim *s, struct sim_sq *sq, uint16_t status)
{
    struct sim_thread *th = &s->threads[sim_owner(s, sq->id, false)];

    for (uint32_t i = 0; th->free_commands < SIM_COMMANDS && i < SIM_COMMANDS; i++)
        if (abortable(&th->commands[i]) && th->commands[i].sq == sq)
            hold_abort_command(th, &th->commands[i], status);
    /* Commands that wait for room in the CQ are lost with the queue. */
    struct sim_list waiting = th->done;
    th->done = (struct sim_list){SIM_NO_COMMAND, SIM_NO_COMMAND};
    for (uint32_t i = waiting.head; i != SIM_NO_COMMAND;) {
        struct sim_cmd *cmd = &th->commands[i];

        i = cmd->next;
        cmd->dead = cmd->sq == sq;
        sim_finish(th, cmd, cmd->status);
    }
}

unsigned sim_queue_moving(struct sim *s, const struct sim_sq *sq)
{
    struct sim_thread *th = &s->threads[sim_owner(s, sq->id, false)];
    unsigned n = 0;

    for (uint32_t i = 0; th->free_commands < SIM_COMMANDS && i < SIM_COMMANDS; i++)
        n += th->commands[i].state == SIM_CMD_MOVING && th->commands[i].sq == sq;
    return n;
}

void sim_forget_all(struct sim_thread *th)
{
    th->n_heap = 0;
    th->done = (struct sim_list){SIM_NO_COMMAND, SIM_NO_COMMAND};
    for (uint32_t i = 0; th->free_commands < SIM_COMMANDS && i < SIM_COMMANDS; i++) {
        if (th->commands[i].state == SIM_CMD_MOVING)
            th->commands[i].dead = true;
        else if (th->commands[i].state != SIM_CMD_FREE)
            sim_command_free(th, &th->commands[i]);
    }
}
