/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How close do reads by the queue code come to a plain copy of the same size?
 *
 * Media in memory behind the simulator, read by gq_transfer or gq_readv, in turn with a pinned
 * cudaMemcpy (CPU executor: memcpy) and a kernel that gathers the same pieces from pinned memory,
 * which is what the bus allows for small reads. Every byte is checked after every read, over
 * poison.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/gq_stack.h"

#define SEED 0x67712d62656eu
#define UNIT ((uint64_t)16 << 20) /* sizes are multiples of it */

struct bench {
    struct gq_stack stack;
    uint64_t piece; /* bytes of an extent, at random places; 0: one extent for all */
    unsigned repeats;
    bool json;
};

static void parameters(const struct bench *b, const struct gq_figures *f, struct bench_report *r)
{
    const struct gq_info *info = &b->stack.info;

    bench_report_text(r, "executor", info->device);
    bench_report_number(r, "bytes", (double)b->stack.size);
    bench_report_number(r, "piece", (double)b->piece);
    bench_report_number(r, "lba", (double)b->stack.lba);
    bench_report_number(r, "extents", b->stack.batch);
    bench_report_number(r, "queues", info->queues);
    bench_report_number(r, "depth", info->depth);
    bench_report_number(r, "max_command", info->max_command);
    bench_report_number(r, "sim_threads", b->stack.sim_threads);
    bench_report_number(r, "commands", (double)f->commands);
    bench_report_number(r, "seed", SEED);
    if (b->stack.is_cuda)
        bench_report_number(r, "multiprocessors", bench_gpu_processors());
}

static int report(const struct bench *b, struct gq_figures *f)
{
    const char *gpu = b->stack.is_cuda ? bench_gpu_name() : NULL;
    struct bench_report *r = bench_report_new("gq_bench", b->json, gpu);
    struct bench_samples rates = f->reads;
    const char *what = b->stack.batch ? "gq_readv" : "gq_transfer";
    const char *of_gather =
        b->stack.batch ? "gq_readv, of the gather" : "gq_transfer, of the gather";
    double m_per_gb = 1e3 * (double)f->commands / (double)b->stack.size;

    if (!r)
        return -ENOMEM;
    for (unsigned i = 0; i < rates.n; i++)
        rates.values[i] *= m_per_gb;
    parameters(b, f, r);
    bench_report_row(r, "plain copy", "GB/s", &f->copies, NULL);
    if (f->gathers.n)
        bench_report_row(r, "gather", "GB/s", &f->gathers, "plain copy");
    bench_report_row(r, what, "GB/s", &f->reads, "plain copy");
    if (f->gathers.n)
        bench_report_row(r, of_gather, "GB/s", &f->reads, "gather");
    bench_report_row(r, "commands", "M/s", &rates, NULL);
    bench_report_end(r);
    return 0;
}

static int usage(FILE *to)
{
    fprintf(to, "usage: gq_bench [-x cpu|cuda|auto] [-s MIB] [-p PIECE_KIB] [-v EXTENTS]\n"
                "                [-n REPEATS] [-c MAX_COMMAND_KIB] [-q QUEUES] [-d DEPTH]\n"
                "                [-t SIM_THREADS] [-l CPU_LANES] [-o json]\n"
                "  -s  a multiple of 16 and of the piece\n"
                "  -p  reads pieces of this size at random places, instead of all in order;\n"
                "      0.5: 512 bytes, from LBAs of that size\n"
                "  -v  by one gq_readv() of a file of so many extents, with -p\n");
    return to == stdout ? 0 : 2;
}

static int set_number(struct bench *b, int option, unsigned long n)
{
    switch (option) {
    case 's':
        b->stack.size = (uint64_t)n << 20;
        return b->stack.size % UNIT ? -EINVAL : 0;
    case 'p':
        b->piece = (uint64_t)n << 10;
        return b->piece % GQ_STACK_LBA ? -EINVAL : 0;
    case 'v':
        b->stack.batch = (unsigned)n;
        return n <= GQ_READV_EXTENTS ? 0 : -EINVAL;
    case 'n':
        b->repeats = (unsigned)n;
        return n < BENCH_MAX_SAMPLES ? 0 : -EINVAL;
    case 'c':
        b->stack.opts.max_command = (uint32_t)n << 10;
        return 0;
    case 'q':
        b->stack.opts.queues = (unsigned)n;
        return 0;
    case 'd':
        b->stack.opts.depth = (unsigned)n;
        return 0;
    case 't':
        b->stack.sim_threads = (unsigned)n;
        return 0;
    case 'l':
        b->stack.opts.cpu_lanes = (unsigned)n;
        return 0;
    default:
        return -EINVAL;
    }
}

/* -EINVAL for what makes no sense. */
static int set_option(struct bench *b, int option, const char *arg)
{
    char *end = NULL;
    unsigned long n;

    if (option == 'x')
        return gq_stack_executor(&b->stack.opts, arg);
    if (option == 'o') {
        b->json = true;
        return strcmp(arg, "json") ? -EINVAL : 0;
    }
    if (option == 'p' && !strcmp(arg, "0.5")) {
        b->piece = b->stack.lba = 512;
        return 0;
    }
    n = strtoul(arg, &end, 10);
    return *end || n == 0 || n > 1ul << 24 ? -EINVAL : set_number(b, option, n);
}

int main(int argc, char **argv)
{
    struct bench b = {.repeats = 5, .stack = {.who = "gq_bench", .sim_threads = 1, .seed = SEED}};
    struct gq_figures figures;
    int option, err;
    char why[128];

    while ((option = getopt(argc, argv, "hx:s:p:v:n:c:q:d:t:l:o:")) != -1) {
        if (option == 'h')
            return usage(stdout);
        if (set_option(&b, option, optarg ? optarg : ""))
            return usage(stderr);
    }
    if (!b.stack.size)
        b.stack.size = gq_probe(0, why, sizeof(why)) ? (uint64_t)256 << 20 : (uint64_t)4 << 30;
    if (optind != argc || (b.stack.batch && !b.piece) ||
        (b.piece && (b.stack.size % b.piece || UNIT % b.piece)))
        return usage(stderr);
    err = gq_stack_open(&b.stack);
    if (!err)
        err = gq_stack_measure(&b.stack, b.piece, b.piece != 0, b.repeats, &figures);
    if (!err)
        err = report(&b, &figures);
    gq_stack_close(&b.stack);
    return err ? 1 : 0;
}
