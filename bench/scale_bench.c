/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How do reads by the queue code scale: with queues, their depth, threads of the controller and of
 * the application, the size of a command, and how fragmented a file is?
 *
 * One process, one drive in memory; each point in turn with what the hardware allows for it: a bare
 * gather of the same pieces, or, from 64 KiB on, a plain copy. Every byte is checked.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/gq_stack.h"

#define PROGRAM   "scale_bench"
#define SEED      0x7363616c65u
#define UNIT      16u /* MiB */
#define SMALL     4096u
#define COPY_FROM 65536u /* from this piece on a plain copy is what to reach */
#define MAX_X     6u

enum subject { QUEUES, DEPTH, CONTROLLER, READERS, COMMAND, FRAGMENT };

struct sweep {
    const char *name, *option;
    enum subject subject;
    uint64_t piece; /* bytes, at random places */
    unsigned x[MAX_X];
};

static const struct sweep sweeps[] = {
    {"queues, 4 KiB reads", "queues", QUEUES, SMALL, {1, 2, 4, 8, 16, 32}},
    {"queues, 64 KiB reads", "queues", QUEUES, 65536, {1, 2, 4, 8, 16, 32}},
    {"entries a queue, 4 KiB reads", "depth", DEPTH, SMALL, {4, 16, 64, 256, 1024}},
    {"controller threads, 4 KiB reads", "controller", CONTROLLER, SMALL, {1, 2, 4, 8, 12}},
    {"application threads, 4 KiB reads", "readers", READERS, SMALL, {1, 2, 4, 8}},
    {"KiB a command, in order", "command", COMMAND, 0, {4, 16, 64, 256, 1024}},
    {"KiB a fragment, at random", "fragment", FRAGMENT, 0, {4, 16, 64, 256, 1024}},
};
#define SWEEPS (sizeof(sweeps) / sizeof(sweeps[0]))

struct bench {
    uint64_t size;
    unsigned repeats, sim_threads;
    struct gq_options opts;
    const char *only; /* an option of a sweep, or NULL */
    bool json;
    struct gq_stack stack;
    struct bench_report *report;
};

static void report_point(struct bench *b, const struct sweep *s, unsigned x, uint64_t piece,
                         struct gq_figures *f)
{
    bool against_copy = piece >= COPY_FROM || f->gathers.n == 0;
    char base[128], name[128];

    snprintf(base, sizeof(base), "%s: %u, %s", s->name, x, against_copy ? "plain copy" : "gather");
    bench_report_row(b->report, base, "GB/s", against_copy ? &f->copies : &f->gathers, NULL);
    bench_report_point(b->report, s->name, against_copy ? "plain copy" : "gather", x);
    snprintf(name, sizeof(name), "%s: %u, read", s->name, x);
    bench_report_row(b->report, name, "GB/s", &f->reads, base);
    bench_report_point(b->report, s->name, "read", x);
}

/* The stack that the point wants; true when it must be another drive. */
static bool configure(struct bench *b, const struct sweep *s, unsigned x, uint64_t *piece)
{
    bool drive = b->stack.sim_threads != b->sim_threads || !b->stack.sim;

    b->stack.sim_threads = b->sim_threads;
    b->stack.opts = b->opts;
    b->stack.readers = 1;
    *piece = s->piece ? s->piece : (uint64_t)x << 10;
    switch (s->subject) {
    case QUEUES:
        b->stack.opts.queues = x;
        break;
    case DEPTH:
        b->stack.opts.depth = x;
        break;
    case CONTROLLER:
        b->stack.sim_threads = x;
        drive = true;
        break;
    case READERS:
        b->stack.readers = x;
        break;
    case COMMAND:
        b->stack.opts.max_command = x << 10;
        break;
    case FRAGMENT:
        break;
    }
    return drive;
}

static int open_stack(struct bench *b, bool drive)
{
    if (!drive)
        return gq_stack_reopen(&b->stack);
    gq_stack_close(&b->stack);
    return gq_stack_open(&b->stack);
}

static int run_point(struct bench *b, const struct sweep *s, unsigned x)
{
    struct gq_figures figures;
    uint64_t piece;
    int err = open_stack(b, configure(b, s, x, &piece));

    if (!err)
        err = gq_stack_measure(&b->stack, piece, s->subject != COMMAND, b->repeats, &figures);
    /* The engine has bounds of its own. */
    if (!err && ((s->subject == QUEUES && b->stack.info.queues != x) ||
                 (s->subject == DEPTH && b->stack.info.depth != x)))
        fprintf(stderr, PROGRAM ": %s: %u is out of its range, left out\n", s->name, x);
    else if (!err)
        report_point(b, s, x, piece, &figures);
    return err;
}

/* Threads of the controller past the cores measure the scheduler. */
static bool makes_sense(const struct sweep *s, unsigned x)
{
    return s->subject != CONTROLLER || x == 1 || (long)x <= sysconf(_SC_NPROCESSORS_ONLN) - 2;
}

static int run_all(struct bench *b)
{
    int err = 0;

    for (size_t i = 0; i < SWEEPS && !err; i++) {
        const struct sweep *s = &sweeps[i];

        if (b->only && strcmp(b->only, s->option) != 0)
            continue;
        for (unsigned k = 0; k < MAX_X && s->x[k] && !err; k++) {
            if (makes_sense(s, s->x[k]))
                err = run_point(b, s, s->x[k]);
        }
    }
    return err;
}

static int usage(FILE *to)
{
    fprintf(to, "usage: " PROGRAM " [-x cpu|cuda|auto] [-s MIB] [-n REPEATS] [-t SIM_THREADS]\n"
                "                   [-w SWEEP] [-o json]\n"
                "  -s  a multiple of 16, at most 1024\n"
                "  -w  only one of: queues depth controller readers command fragment\n");
    return to == stdout ? 0 : 2;
}

static int set_sweep(struct bench *b, const char *name)
{
    for (size_t i = 0; i < SWEEPS; i++) {
        if (!strcmp(sweeps[i].option, name))
            b->only = sweeps[i].option;
    }
    return b->only ? 0 : -EINVAL;
}

/* -EINVAL for what makes no sense. */
static int set_option(struct bench *b, int option, const char *arg)
{
    char *end = NULL;
    unsigned long n = strtoul(arg, &end, 10);
    bool number = *arg && !*end && n > 0;

    switch (option) {
    case 'x':
        return gq_stack_executor(&b->opts, arg);
    case 'o':
        b->json = true;
        return strcmp(arg, "json") ? -EINVAL : 0;
    case 'w':
        return set_sweep(b, arg);
    case 's':
        b->size = (uint64_t)n << 20;
        return number && n % UNIT == 0 && n <= 1024 ? 0 : -EINVAL;
    case 'n':
        b->repeats = (unsigned)n;
        return number && n < BENCH_MAX_SAMPLES ? 0 : -EINVAL;
    case 't':
        b->sim_threads = (unsigned)n;
        return number && n <= 256 ? 0 : -EINVAL;
    default:
        return -EINVAL;
    }
}

static int measure(struct bench *b)
{
    uint64_t piece;
    int err;

    b->stack = (struct gq_stack){.who = PROGRAM, .size = b->size, .seed = SEED};
    configure(b, &sweeps[0], 1, &piece);
    err = gq_stack_open(&b->stack);
    b->report =
        err ? NULL : bench_report_new(PROGRAM, b->json, b->stack.is_cuda ? bench_gpu_name() : NULL);
    if (!b->report)
        return -ENOMEM;
    bench_report_text(b->report, "executor", b->stack.info.device);
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "repeats", b->repeats);
    bench_report_number(b->report, "sim_threads", b->sim_threads);
    bench_report_number(b->report, "seed", SEED);
    err = run_all(b);
    if (err)
        bench_report_drop(b->report);
    else
        bench_report_end(b->report);
    return err;
}

int main(int argc, char **argv)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    static struct bench b = {.repeats = 5};
    int option, err;
    char why[128];

    b.sim_threads = cores >= 16 ? 8 : cores > 3 ? (unsigned)cores / 2 : 1;
    b.size = gq_probe(0, why, sizeof(why)) ? (uint64_t)64 << 20 : (uint64_t)512 << 20;
    while ((option = getopt(argc, argv, "hx:s:n:t:w:o:")) != -1) {
        if (option == 'h')
            return usage(stdout);
        if (set_option(&b, option, optarg ? optarg : ""))
            return usage(stderr);
    }
    if (optind != argc)
        return usage(stderr);
    err = measure(&b);
    gq_stack_close(&b.stack);
    return err ? 1 : 0;
}
