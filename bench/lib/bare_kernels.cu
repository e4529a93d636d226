/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of the bare loop. */
#include "bench/lib/bare_kernels.h"

#include <cuda_runtime.h>
#include <stdio.h>

#include "bench/lib/bench_report.h"
#include "bench/lib/kernel_times.cuh"
#include "bench/lib/pattern.h"
#include "client/device/gd_read.h"

struct bare_loop {
    const struct gpunvme_device_file *file;
    char *at; /* address of the first piece in memory */
    uint64_t bytes, room;
    struct gq_cmd *cmds; /* in device memory, like results and wrong */
    uint32_t *results, *wrong;
    uint32_t n; /* commands, at least one for each piece */
    uint32_t pieces;
    bool is_write;
};

namespace
{

/*
 * A list of prepared commands is executed by the queue protocol (gq_protocol.h). A round posts and
 * completes up to GQ_EACH commands per lane, as fast as the protocol can. Functions of a list are
 * called by all lanes of the group together.
 */

/* Describes a group's share of a list. */
struct bare_list {
    struct gq_worker w;
    const struct gq_cmd *cmds;
    uint32_t *results; /* of each command: GQ_ENDED | status */
    uint32_t fetched;  /* number of commands of the share that were loaded */
    /* These commands are posted next, by one lane, and have these CIDs. */
    struct gq_cmd next[GQ_EACH];
    uint32_t cid[GQ_EACH];
};

/*
 * Commands are assigned to the entries of the lanes in turn. Returns the
 * distance from w->sent to the entry's current or next command, counted within
 * the share.
 */
GQ_FN uint32_t bare_turn_of(const struct gq_worker *w, uint32_t place)
{
    uint32_t places = GQ_EACH * w->group.lanes;

    return (place + places - w->sent % places) % places;
}

/*
 * Loads the next command of entries whose command was posted; the loads
 * complete by the end of the round.
 */
GQ_FN void bare_fetch_cmds(struct bare_list *b)
{
    const struct gq_worker *w = &b->w;
    uint32_t left = w->share - w->sent, places = GQ_EACH * w->group.lanes;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            uint32_t i = bare_turn_of(w, h * w->group.lanes + lane);

            if (i < left && w->sent + i >= b->fetched)
                b->next[h] = b->cmds[gq_stripe(w, w->sent + i)];
        }
    }
    b->fetched = w->sent + (left < places ? left : places);
}

/*
 * Loads CIDs for the next commands, at the end of a round. This is early,
 * because a GPU counts outstanding loads with few counters: who waits for a load
 * between a peek and its fence may also wait for the peek.
 */
GQ_FN void bare_fetch_cids(struct bare_list *b)
{
    const struct gq_worker *w = &b->w;
    uint32_t n = gq_reserve(w, b->fetched - w->sent);

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            uint32_t i = bare_turn_of(w, h * w->group.lanes + lane);

            if (i < n)
                b->cid[h] = gq_free_cid(w, i);
        }
    }
}

/* Writes the SQEs of the next n commands. */
GQ_FN void bare_post_cmds(struct bare_list *b, uint32_t n)
{
    struct gq_worker *w = &b->w;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            uint32_t i = bare_turn_of(w, h * w->group.lanes + lane);

            if (i < n)
                gq_post(w, i, b->cid[h], &b->next[h], gq_stripe(w, w->sent + i), 0);
        }
    }
    gq_advance(w, n);
}

/* Stores the results of n completions. */
GQ_FN void bare_store_results(struct bare_list *b, GQ_LANE_PARAM(struct gq_ended, ended),
                              uint32_t n)
{
    const struct gq_worker *w = &b->w;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            if (h * w->group.lanes + lane < n && GQ_AT(ended).cmd[h] < GQ_TRACKER_FREE)
                b->results[GQ_AT(ended).cmd[h]] = GQ_ENDED | GQ_AT(ended).status[h];
        }
    }
}

/* Runs a round of a list of commands. The first round only fetches. */
GQ_FN enum gq_round bare_round(struct bare_list *b)
{
    struct gq_worker *w = &b->w;
    GQ_LANE_VAR(struct gq_peek, peeked);
    GQ_LANE_VAR(struct gq_ended, ended);
    uint32_t sent, n_peeked, n;

    if (b->fetched == 0 && w->share) {
        bare_fetch_cmds(b);
        bare_fetch_cids(b);
        return GQ_ROUND_BUSY;
    }
    sent = gq_reserve(w, b->fetched - w->sent);
    n_peeked = gq_peek(w, sent != 0, peeked);
    if (sent) {
        bare_post_cmds(b, sent);
        bare_fetch_cmds(b);
    }
    n = gq_publish_and_poll(w, sent, peeked, n_peeked, ended);
    bare_fetch_cids(b);
    bare_store_results(b, ended, n);
    return gq_end_round(w, w->sent < w->share, sent || n);
}

constexpr unsigned kGroupShift = 5;
constexpr unsigned kLooks = 1024; /* one of that many reads takes the clock */
constexpr unsigned kCut = 64;     /* one of that many pieces may be in two extents */

/* Returns how many pieces may have a second command. */
__host__ __device__ uint32_t second_commands(uint32_t pieces)
{
    return pieces / kCut;
}

/* Fills in the command for the next bytes of a piece, up to the end of their extent. */
__device__ bool make_command(const struct gq_file_map *map, const struct gq_target *target,
                             struct gq_cursor *cur, uint64_t at, uint64_t *len, struct gq_cmd *cmd)
{
    uint32_t lba_size = map->lba_size, shift = gq_prefix_ones(lba_size - 1);

    gq_find_extent(map, cur);
    if (*len > cur->to - cur->offset)
        *len = cur->to - cur->offset;
    cmd->slba = cur->lba + ((cur->offset - cur->from) >> shift);
    cmd->prp1 = target->iova + at;
    cmd->prp2 = gq_prp2(target->iova, target->prps_iova, at, *len);
    cmd->nlb = (uint32_t)(*len >> shift) - 1;
    return cur->lba != GQ_LBA_ZERO && ((cur->offset | *len) & (lba_size - 1)) == 0 &&
           gq_prp_clip(at, *len, lba_size) == *len;
}

GD_LOAD_STRUCT(load_file, gpunvme_device_file)

/* Returns the buffer that contains [addr, addr + len), or NULL. */
__device__ const struct gd_buffer *buffer_of(const struct gd_set *s, uint64_t addr, uint64_t len)
{
    for (uint32_t i = 0; i < *s->n_buffers; i++) {
        const struct gd_buffer *b = &s->buffers[i];

        if (addr >= b->addr && addr - b->addr <= b->len && len <= b->len - (addr - b->addr))
            return b;
    }
    return NULL;
}

/*
 * Called by a warp. Builds the command of each piece. A piece that goes on in a second extent has a
 * second command behind those of all pieces. *wrong counts the second commands; it is at least the
 * number of all pieces if a piece cannot be had so.
 */
__global__ void __launch_bounds__(GQ_LANES)
    make_commands(struct bare_loop b, struct pattern_pieces p, uint64_t to, uint64_t room)
{
    const struct gpunvme_device_file f = load_file(b.file);
    const struct gd_buffer *buffer = buffer_of(&f.set, to, room);

    if (!buffer) {
        *b.wrong = b.n;
        return;
    }
    for (uint32_t i = gq_thread(); i < b.n; i += GQ_LANES) {
        struct gq_cursor cur = {.offset = p.gpu_places[i]};
        uint64_t at = buffer->target.head + (to - buffer->addr) + i * p.bytes % room;
        uint64_t len = p.bytes, rest;
        bool good = make_command(&f.map, &buffer->target, &cur, at, &len, &b.cmds[i]);

        rest = p.bytes - len;
        if (good && rest > 0) {
            uint32_t more = atomicAdd(b.wrong, 1);
            cur.offset += len;
            good =
                more < second_commands(b.n) &&
                make_command(&f.map, &buffer->target, &cur, at + len, &rest, &b.cmds[b.n + more]) &&
                len + rest == p.bytes;
        }
        if (!good)
            atomicAdd(b.wrong, b.n);
    }
}

/*
 * Runs commands on a block of one warp with one queue. *wrong counts warps without a queue or with
 * failed commands.
 */
__global__ void __launch_bounds__(GQ_LANES) run_commands(struct bare_loop b)
{
    const struct gpunvme_device_file f = load_file(b.file);
    struct gd_reader self = {.group = gq_whole_group(), .file = &f}, *r = &self;
    struct gq_run run = gd_run(&f, b.n, gridDim.x);
    struct bare_list list = {.cmds = b.cmds, .results = b.results};
    struct gq_worker *w = &list.w;
    uint32_t bad = 0;

    if (gd_take_from(r, blockIdx.x) != 0) {
        atomicAdd(b.wrong, 1);
        return;
    }
    run.opcode = b.is_write ? NVME_IO_WRITE : NVME_IO_READ;
    run.group_shift = kGroupShift;
    gq_begin(w, r->group, &run, &r->port, &f.set.queues[r->queue].state, blockIdx.x);
    w->sq_tail = w->cq_head = r->position.entry;
    w->phase = r->position.phase;
    w->cq_db_pending = r->position.cq_db_pending != 0;
    while (bare_round(&list) != GQ_ROUND_ENDED)
        ;
    r->in_flight = gq_in_flight(w);
    r->outcome = w->outcome;
    r->position = (struct gd_position){.entry = w->cq_head, .phase = w->phase};
    gq_end(w);
    gd_give(r);
    for (uint32_t j = gq_thread(); j < w->share; j += GQ_LANES)
        bad += b.results[gq_stripe(w, j)] != GQ_ENDED;
    atomicAdd(b.wrong, bad + (w->outcome != GQ_OUT_DONE));
}

/*
 * Loads the whole command at once. A compiler would move ordinary loads to where each word is used.
 */
__device__ struct gq_cmd load(const struct gq_cmd *at)
{
    return {gd_load64(&at->slba), gd_load64(&at->prp1), gd_load64(&at->prp2), gd_load32(&at->nlb),
            0};
}

/* Called by one lane. Sends the command. */
__device__ void send(const struct gd_reader *r, const struct gq_run *run, const struct gq_cmd *cmd)
{
    const struct gq_port *port = &r->port;
    uint32_t entry = r->position.entry, next = entry + 1;

    gq_store_sqe(&port->sq[entry], run, cmd, entry);
    gq_fence_entries();
    if (r->position.cq_db_pending)
        gq_store_doorbell(port->cq_doorbell, entry);
    gq_store_doorbell(port->sq_doorbell, next < port->depth ? next : 0);
}

/* Called by the same lane. Returns false if the command has failed or did not end in time. */
__device__ bool await(struct gd_reader *r, uint64_t limit_ns)
{
    struct gd_position *at = &r->position;
    const struct nvme_cqe *cqe = &r->port.cq[at->entry];
    uint64_t until = gq_clock_ns() + limit_ns;
    uint32_t dw3, cid = at->entry;

    for (unsigned looks = 1;; looks++) {
        dw3 = gq_load_cqe(cqe);
        if (NVME_CQE_PHASE(dw3 >> 16) == at->phase)
            break;
        if (looks % kLooks == 0 && gq_clock_ns() > until)
            return false;
    }
    at->cq_db_pending = 1;
    if (++at->entry == r->port.depth) {
        at->entry = 0;
        at->phase ^= 1;
    }
    return NVME_STATUS(dw3 >> 16) == 0 && (dw3 & 0xffffu) == cid;
}

/*
 * A block is one warp with one queue. It posts a command, polls for its completion, copies its
 * bytes to `on` unless that is NULL, and goes on with the next one. The command is in registers
 * when its time begins.
 */
__global__ void __launch_bounds__(GQ_LANES)
    run_one_by_one(struct bare_loop b, char *on, struct kernel_times times)
{
    const struct gpunvme_device_file f = load_file(b.file);
    struct gd_reader self = {.group = gq_whole_group(), .file = &f}, *r = &self;
    const struct gq_run run = gd_run(&f, 1, 1);
    struct kernel_clock clock = kernel_clock_start();
    bool good = gd_take_from(r, blockIdx.x) == 0;
    bool holds = good;

    for (uint32_t i = blockIdx.x; i < b.n && good; i += gridDim.x) {
        const struct gq_cmd cmd = load(&b.cmds[i]);
        uint64_t asked, at = i * b.bytes;

        good = cmd.prp1 != 0; /* false if the command was not built */
        asked = (uint64_t)clock64();
        if (gq_thread() == 0) {
            send(r, &run, &cmd);
            good = await(r, f.set.command_ns);
        }
        good = GQ_UNIFORM32(good);
        if (on)
            gq_copy_4k((uint64_t)on + at, (uint64_t)b.at + at % b.room, b.bytes, gq_thread(),
                       GQ_LANES);
        __syncwarp();
        if (gq_thread() == 0)
            times.ticks[i] = (uint64_t)clock64() - asked;
    }
    if (holds) {
        r->in_flight = !good;
        r->outcome = GQ_OUT_DONE;
        gd_give(r);
    }
    if (gq_thread() == 0) {
        if (blockIdx.x == 0)
            kernel_clock_end(clock, times);
        atomicAdd(b.wrong, !good);
    }
}

/* Waits for the kernel. Stores the count that it has left in *wrong. */
int finish(const struct bare_loop *b, uint32_t *wrong)
{
    cudaError_t err = cudaStreamSynchronize(0);

    if (err == cudaSuccess)
        err = cudaMemcpy(wrong, b->wrong, sizeof(*wrong), cudaMemcpyDeviceToHost);
    if (err != cudaSuccess)
        fprintf(stderr, "bare loop: %s\n", cudaGetErrorString(err));
    return err == cudaSuccess ? 0 : -EIO;
}

/* Launches by cudaLaunchKernel(), whose error concerns only this launch. */
int launch(const void *kernel, unsigned blocks, void **args, const struct bare_loop *b,
           uint32_t *wrong)
{
    cudaError_t err = cudaLaunchKernel(kernel, blocks, GQ_LANES, args, 0, 0);

    if (err != cudaSuccess)
        fprintf(stderr, "bare loop: %s\n", cudaGetErrorString(err));
    return err == cudaSuccess ? finish(b, wrong) : -EIO;
}

bool allocate(struct bare_loop *b)
{
    size_t most = (size_t)b->n + second_commands(b->n);

    return cudaMalloc((void **)&b->cmds, most * sizeof(*b->cmds)) == cudaSuccess &&
           cudaMalloc((void **)&b->results, most * sizeof(*b->results)) == cudaSuccess &&
           cudaMalloc((void **)&b->wrong, sizeof(*b->wrong)) == cudaSuccess &&
           cudaMemset(b->results, 0, most * sizeof(*b->results)) == cudaSuccess &&
           cudaMemset(b->wrong, 0, sizeof(*b->wrong)) == cudaSuccess;
}

} // namespace

extern "C" int bare_loop_open(const struct gpunvme_device_file *file,
                              const struct pattern_pieces *p, void *at, uint64_t room,
                              bool is_write, struct bare_loop **out)
{
    struct bare_loop *b =
        new bare_loop{file,    (char *)at, p->bytes,       room,           nullptr,
                      nullptr, nullptr,    (uint32_t)p->n, (uint32_t)p->n, is_write};
    int err = allocate(b) ? 0 : -ENOMEM;

    void *args[] = {b, (void *)p, &at, &room};
    uint32_t wrong = 0;

    if (!err)
        err = launch((const void *)make_commands, 1, args, b, &wrong);
    if (!err && wrong > second_commands(b->n))
        err = -ENOTSUP;
    b->n += wrong;
    if (!err && cudaMemset(b->wrong, 0, sizeof(*b->wrong)) != cudaSuccess)
        err = -EIO;
    if (err)
        bare_loop_close(b);
    else
        *out = b;
    return err;
}

extern "C" int bare_loop_time(struct bare_loop *b, unsigned queues, double *seconds)
{
    void *args[] = {b};
    uint32_t wrong = 0;
    double start = bench_seconds();
    int err = launch((const void *)run_commands, queues, args, b, &wrong);

    *seconds = bench_seconds() - start;
    return !err && wrong ? -EIO : err;
}

extern "C" int bare_loop_one_by_one(struct bare_loop *b, unsigned warps, void *on, double *seconds,
                                    double *micros)
{
    struct kernel_times times = {};
    uint32_t wrong = 0;
    /* The place of a second command's bytes does not follow from its number. */
    int err = b->n > b->pieces ? -ENOTSUP : kernel_times_open(&times, b->n);
    void *args[] = {b, &on, &times};
    double start = bench_seconds();

    if (!err)
        err = launch((const void *)run_one_by_one, warps, args, b, &wrong);
    *seconds = bench_seconds() - start;
    if (!err)
        err = wrong ? -EIO : micros ? kernel_times_take(&times, micros) : 0;
    kernel_times_close(&times);
    return err;
}

extern "C" void bare_loop_close(struct bare_loop *b)
{
    cudaFree(b->cmds);
    cudaFree(b->results);
    cudaFree(b->wrong);
    delete b;
}
