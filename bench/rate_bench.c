/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How many commands a second does the queue protocol alone carry?
 *
 * A GPU sends reads to a controller that completes them at once and moves nothing: threads of the
 * CPU, or (tier 3) warps of the same GPU. It sends commands that the host has made, and reads of a
 * file, whose commands it makes itself; in turn with the protocol that published code uses, a
 * block that owns a queue pair and meets at a barrier for each batch. Every status is checked, and
 * the controller's count and sum of the LBAs it saw.
 */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bench_report.h"
#include "bench/lib/null_ctrlr.h"
#include "bench/lib/rate_kernels.h"

#define MAX_QUEUES  512u
#define DEPTH       512u /* four rounds of a warp: with two, 32 warps lose a sixth */
#define BATCH       128u /* of the reference */
#define COMMAND_NS  5000000000u
#define LBA         512u
#define DOORBELL_AT 128u /* bytes from one to the next: no two share a cache line */

/* After a multiple of these all rings are where they began, which the reference relies on. */
#define COMMANDS_OF (2u * DEPTH * MAX_QUEUES)

/* The sender of commands, and their kind. */
enum way { WARP_COMMANDS, WARP_READS, BLOCK_COMMANDS };

struct rate {
    unsigned threads, repeats, commands;
    bool json, on_gpu; /* on_gpu: queues and controller are on the GPU */
    struct bench_report *report;
    cudaStream_t stream, serve_stream;
    char *rings, *doorbells; /* of the set-up under way */
    size_t ring_len;
    struct gq_cmd *cmds;         /* pinned */
    struct gq_read *reads;       /* pinned: the same of a file of one extent */
    struct gq_file_extent *map;  /* on the GPU */
    uint32_t *results, *checked; /* on the GPU, and what came back */
    struct gq_port ports[MAX_QUEUES];
    struct gq_port *gpu_ports;
    struct gq_state *states; /* pinned */
    /* Never set: the protocol looks at it. Where the queues are, pinned memory or the GPU's. */
    uint32_t *flags, *gpu_flags; /* gpu_flags[1] stops the GPU's controller */
    uint64_t *served;            /* pinned */
    struct gq_tracker *trackers; /* on the GPU, for all queues */
    uint32_t *cids;              /* likewise */
    struct null_queue *queues;
};

static int cuda(cudaError_t err, const char *what)
{
    if (err == cudaSuccess)
        return 0;
    fprintf(stderr, "rate_bench: %s: %s\n", what, cudaGetErrorString(err));
    return -EIO;
}

/* Memory for the rings and doorbells: of the host, pinned, or of the GPU. */
static int alloc_rings(struct rate *r, unsigned n, bool on_gpu)
{
    size_t rings, doorbells = 2u * DOORBELL_AT * n;
    int err;

    r->ring_len = DEPTH * (sizeof(struct nvme_sqe) + sizeof(struct nvme_cqe));
    rings = r->ring_len * n;
    if (on_gpu) {
        err = cuda(cudaMalloc((void **)&r->rings, rings + doorbells), "queues");
        if (!err)
            err = cuda(cudaMemset(r->rings, 0, rings + doorbells), "queues");
    } else {
        err = cuda(cudaHostAlloc((void **)&r->rings, rings + doorbells, cudaHostAllocMapped),
                   "queues");
        if (!err)
            memset(r->rings, 0, rings + doorbells);
    }
    r->doorbells = r->rings + rings;
    return err;
}

static void free_rings(struct rate *r, bool on_gpu)
{
    if (on_gpu)
        cudaFree(r->rings);
    else
        cudaFreeHost(r->rings);
    r->rings = NULL;
}

static void describe_queue(struct rate *r, unsigned i)
{
    char *ring = r->rings + i * r->ring_len, *doorbell = r->doorbells + 2u * DOORBELL_AT * i;
    struct gq_port *port = &r->ports[i];

    *port = (struct gq_port){
        .sq = (struct nvme_sqe *)(void *)ring,
        .cq = (struct nvme_cqe *)(void *)(ring + DEPTH * sizeof(struct nvme_sqe)),
        .sq_doorbell = (volatile uint32_t *)(void *)doorbell,
        .cq_doorbell = (volatile uint32_t *)(void *)(doorbell + DOORBELL_AT),
        .trackers = r->trackers + (size_t)i * DEPTH,
        .free_cids = r->cids + (size_t)i * DEPTH,
        .depth = DEPTH,
    };
    r->states[i] = (struct gq_state){.phase = 1};
    r->queues[i] = (struct null_queue){.sq = port->sq,
                                       .cq = port->cq,
                                       .sq_doorbell = port->sq_doorbell,
                                       .cq_doorbell = port->cq_doorbell,
                                       .depth = DEPTH,
                                       .phase = 1};
}

static int open_queues(struct rate *r, unsigned n, bool on_gpu)
{
    int err = alloc_rings(r, n, on_gpu);

    if (err)
        return err;
    for (unsigned i = 0; i < n; i++)
        describe_queue(r, i);
    err = cuda(cudaMemcpy(r->gpu_ports, r->ports, n * sizeof(r->ports[0]), cudaMemcpyHostToDevice),
               "queues");
    if (err)
        free_rings(r, on_gpu);
    return err;
}

/* No bytes move, so any addresses will do. */
static cudaError_t launch(struct rate *r, const struct gq_run *run, enum way way)
{
    struct gq_reads reads = {
        .map = {.extents = r->map, .end = (uint64_t)r->commands * LBA, .count = 1, .lba_size = LBA},
        .target = {.len = UINT64_MAX},
        .list = r->reads,
        .max_command = LBA};

    if (way == BLOCK_COMMANDS)
        return rate_block_owned(run, r->gpu_ports, r->states, BATCH, r->stream);
    if (way == WARP_READS)
        return rate_warp_reads(run, &reads, r->gpu_ports, r->states, r->stream);
    return rate_warp_owned(run, r->gpu_ports, r->states, r->stream);
}

/* One list of commands through the queues; commands a second in *rate. */
static int run_once(struct rate *r, unsigned n, enum way way, double *rate)
{
    struct gq_run run = {.cmds = r->cmds,
                         .results = r->results,
                         .flags = r->on_gpu ? r->gpu_flags : r->flags,
                         .command_ns = COMMAND_NS,
                         .n_cmds = r->commands,
                         .n_queues = n,
                         .group_shift = 5,
                         .nsid = 1,
                         .opcode = NVME_IO_READ};
    double start;
    int err =
        cuda(cudaMemsetAsync(r->results, 0, r->commands * sizeof(uint32_t), r->stream), "results");

    /* Not the whole device: the controller may be a persistent kernel. */
    if (!err)
        err = cuda(cudaStreamSynchronize(r->stream), "results");
    start = bench_seconds();
    if (!err)
        err = cuda(launch(r, &run, way), "launch");
    if (!err)
        err = cuda(cudaStreamSynchronize(r->stream), "run");
    *rate = r->commands / (bench_seconds() - start);
    return err;
}

static int check_results(struct rate *r, unsigned n, enum way way)
{
    uint32_t good = way == WARP_READS ? GQ_READ_OK : GQ_ENDED;
    int err = cuda(cudaMemcpyAsync(r->checked, r->results, r->commands * sizeof(uint32_t),
                                   cudaMemcpyDeviceToHost, r->stream),
                   "results");

    if (!err)
        err = cuda(cudaStreamSynchronize(r->stream), "results");
    for (unsigned i = 0; i < n && !err; i++)
        err = r->states[i].outcome == GQ_OUT_DONE ? 0 : -EIO;
    for (unsigned i = 0; i < r->commands && !err; i++)
        err = r->checked[i] == good ? 0 : -EIO;
    if (err)
        fprintf(stderr, "rate_bench: a command was not completed with success\n");
    return err;
}

/* What the controller saw in `rounds` lists: every command, each with its own LBA. */
static int check_served(const struct rate *r, unsigned n, unsigned rounds)
{
    uint64_t count = 0, sum = 0, want = 0;

    for (unsigned i = 0; i < n; i++) {
        count += r->queues[i].served;
        sum += r->queues[i].lba_sum;
    }
    for (unsigned i = 0; i < r->commands; i++)
        want += i;
    if (count == (uint64_t)r->commands * rounds && sum == want * rounds)
        return 0;
    fprintf(stderr, "rate_bench: the controller did not see the commands that were sent\n");
    return -EIO;
}

/* The first round warms up. */
static int run_rounds(struct rate *r, unsigned n, enum way way, struct bench_samples *samples)
{
    int err = 0;

    for (unsigned i = 0; i <= r->repeats && !err; i++) {
        double rate;

        err = run_once(r, n, way, &rate);
        if (!err)
            err = check_results(r, n, way);
        if (!err && i > 0)
            bench_add(samples, rate * 1e-6);
    }
    return err;
}

static int measure_cpu(struct rate *r, unsigned n, enum way way)
{
    static const char *names[] = {"warp-owned", "warp-owned, reads", "block-owned"};
    unsigned gpu_threads = n * (way == BLOCK_COMMANDS ? BATCH : 32u);
    struct bench_samples samples = {.n = 0};
    struct null_ctrlr *c;
    char name[64];
    int err = open_queues(r, n, false);

    if (err)
        return err;
    err = null_ctrlr_start(r->queues, n, r->threads, &c);
    if (!err) {
        err = run_rounds(r, n, way, &samples);
        null_ctrlr_stop(c);
    }
    if (!err)
        err = check_served(r, n, r->repeats + 1);
    free_rings(r, false);
    snprintf(name, sizeof(name), "%s, %u threads of the GPU", names[way], gpu_threads);
    if (!err)
        bench_report_row(r->report, name, "M/s", &samples, NULL);
    return err;
}

static int set_stop(struct rate *r, unsigned value)
{
    int err = cuda(cudaMemsetAsync(r->gpu_flags, (int)value, 2 * sizeof(uint32_t), r->stream),
                   "controller");

    return err ? err : cuda(cudaStreamSynchronize(r->stream), "controller");
}

/* Queues and controller on the GPU. */
static int measure_gpu(struct rate *r, unsigned n)
{
    struct bench_samples samples = {.n = 0};
    uint64_t served = 0;
    int err = open_queues(r, n, true), end;

    if (err)
        return err;
    r->on_gpu = true;
    err = set_stop(r, 0);
    if (!err)
        err = cuda(rate_serve(r->gpu_ports, n, &r->gpu_flags[1], r->served, r->serve_stream),
                   "controller");
    if (!err)
        err = run_rounds(r, n, WARP_COMMANDS, &samples);
    end = set_stop(r, 1);
    if (!end)
        end = cuda(cudaStreamSynchronize(r->serve_stream), "controller");
    err = err ? err : end;
    for (unsigned i = 0; i < n; i++)
        served += r->served[i];
    if (!err && served != (uint64_t)r->commands * (r->repeats + 1))
        err = -EIO;
    free_rings(r, true);
    if (!err)
        bench_report_row(r->report, "warp-owned, tier 3: all on the GPU", "M/s", &samples, NULL);
    return err;
}

static int alloc_reads(struct rate *r)
{
    size_t list = r->commands * sizeof(*r->reads);

    if (cuda(cudaHostAlloc((void **)&r->reads, list, cudaHostAllocMapped), "reads") ||
        cuda(cudaMalloc((void **)&r->map, sizeof(*r->map)), "map") ||
        cuda(cudaMemset(r->map, 0, sizeof(*r->map)), "map"))
        return -ENOMEM;
    for (uint64_t i = 0; i < r->commands; i++)
        r->reads[i] = (struct gq_read){i * LBA, i * LBA, LBA};
    return 0;
}

static int alloc_all(struct rate *r)
{
    size_t list = r->commands * sizeof(*r->cmds);
    int err = cuda(rate_load(), "kernels");

    r->queues = aligned_alloc(_Alignof(struct null_queue), MAX_QUEUES * sizeof(*r->queues));
    r->checked = malloc(r->commands * sizeof(uint32_t));
    if (!r->queues || !r->checked)
        return -ENOMEM;
    if (err || cuda(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking), "stream") ||
        cuda(cudaStreamCreateWithFlags(&r->serve_stream, cudaStreamNonBlocking), "stream") ||
        cuda(cudaHostAlloc((void **)&r->cmds, list, cudaHostAllocMapped), "commands") ||
        cuda(cudaMalloc((void **)&r->results, r->commands * sizeof(uint32_t)), "results") ||
        cuda(cudaMalloc((void **)&r->gpu_ports, sizeof(r->ports)), "queues") ||
        cuda(cudaHostAlloc((void **)&r->states, MAX_QUEUES * sizeof(*r->states), 0), "states") ||
        cuda(cudaHostAlloc((void **)&r->flags, sizeof(uint32_t), 0), "flags") ||
        cuda(cudaMalloc((void **)&r->gpu_flags, 2 * sizeof(uint32_t)), "flags") ||
        cuda(cudaHostAlloc((void **)&r->served, MAX_QUEUES * sizeof(uint64_t), 0), "counts") ||
        cuda(cudaMalloc((void **)&r->trackers, MAX_QUEUES * DEPTH * sizeof(*r->trackers)),
             "trackers") ||
        cuda(cudaMalloc((void **)&r->cids, MAX_QUEUES * DEPTH * sizeof(*r->cids)), "trackers"))
        return -ENOMEM;
    *r->flags = 0;
    memset(r->cmds, 0, list);
    for (unsigned i = 0; i < r->commands; i++)
        r->cmds[i].slba = i;
    return alloc_reads(r);
}

static int measure_all(struct rate *r)
{
    static const unsigned warps[] = {8, 16, 32, 64, 128}, blocks[] = {8, 16, 32};
    int err = 0;

    for (unsigned i = 0; i < sizeof(blocks) / sizeof(blocks[0]) && !err; i++)
        err = measure_cpu(r, blocks[i], BLOCK_COMMANDS);
    for (unsigned i = 0; i < sizeof(warps) / sizeof(warps[0]) && !err; i++)
        err = measure_cpu(r, warps[i], WARP_COMMANDS);
    for (unsigned i = 0; i < sizeof(warps) / sizeof(warps[0]) && !err; i++)
        err = measure_cpu(r, warps[i], WARP_READS);
    return err ? err : measure_gpu(r, MAX_QUEUES);
}

static int usage(FILE *to)
{
    fprintf(to,
            "usage: rate_bench [-t CONTROLLER_THREADS] [-n REPEATS] [-c COMMANDS] [-o json]\n"
            "  -c  a multiple of %u\n",
            COMMANDS_OF);
    return to == stdout ? 0 : 2;
}

static int set_option(struct rate *r, int option, const char *arg)
{
    char *end = NULL;
    unsigned long n = option == 'o' ? 1 : strtoul(arg, &end, 10);

    if ((end && *end) || n == 0 || n > 1ul << 26)
        return -EINVAL;
    switch (option) {
    case 't':
        r->threads = (unsigned)n;
        return 0;
    case 'n':
        r->repeats = (unsigned)n;
        return n < BENCH_MAX_SAMPLES ? 0 : -EINVAL;
    case 'c':
        r->commands = (unsigned)n;
        return n % COMMANDS_OF ? -EINVAL : 0;
    case 'o':
        r->json = true;
        return strcmp(arg, "json") ? -EINVAL : 0;
    default:
        return -EINVAL;
    }
}

int main(int argc, char **argv)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    static struct rate r = {.repeats = 5, .commands = 1u << 22};
    struct cudaDeviceProp gpu;
    int option, err;

    r.threads = cores > 3 ? (unsigned)cores - 2 : 1;
    while ((option = getopt(argc, argv, "ht:n:c:o:")) != -1) {
        if (option == 'h')
            return usage(stdout);
        if (set_option(&r, option, optarg ? optarg : ""))
            return usage(stderr);
    }
    if (cuda(cudaGetDeviceProperties(&gpu, 0), "GPU") || alloc_all(&r))
        return 1;
    r.report = bench_report_new("rate_bench", r.json, gpu.name);
    if (!r.report)
        return 1;
    bench_report_number(r.report, "threads", r.threads);
    bench_report_number(r.report, "commands", r.commands);
    err = measure_all(&r);
    bench_report_end(r.report);
    return err ? 1 : 0;
}
