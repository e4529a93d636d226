/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures graph algorithms over a gpunvme_array<T>: a sum of all targets of
 * edges, a breadth-first search, connected components by labels, and PageRank.
 *
 * The GPU makes a Kronecker graph of Graph 500 with 2^SCALE vertices. The targets of its edges (128
 * bytes for each vertex) are in a file on the mount, and kernels read them through a cache of an
 * eighth of that size. The offsets of rows and the results are in GPU memory. The bound is the same
 * kernel with all targets in pinned host memory. Each run begins with an empty cache. Up to scale
 * 18 the program computes the expected results on the host. Above, it takes them from the same
 * kernel with the targets in GPU memory. The program needs a GPU and the mount option direct=.
 *
 * Example: on_mount.sh 4G gpu=require,direct=all,sim=threads:8 graph_bench -k 24
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/graph_kernels.h"
#include "gpunvme/gpunvme.h"

#define PROGRAM "graph_bench"
#define SEED    0x6772617068u
#define CHUNK   ((size_t)8 << 20)

#define MOST_OF_HOST 18u /* scale up to which the host computes the expected results */

static const char *const work_names[GRAPH_WORKS] = {
    [GRAPH_SUM] = "sum",
    [GRAPH_BFS] = "BFS",
    [GRAPH_COMPONENTS] = "connected components",
    [GRAPH_PAGERANK] = "PageRank, 10 rounds",
};
static const char *const place_names[GRAPH_PLACES] = {
    [GRAPH_IN_GPU] = "GPU memory",
    [GRAPH_PINNED] = "pinned host memory",
    [GRAPH_CACHED] = "file behind a cache",
};

static struct {
    unsigned scale, part; /* the cache has one part in so many of the targets */
    uint32_t line;
    struct graph graph;
    struct gpunvme *g;
    struct gpunvme_file *f;
    struct gpunvme_cache *cache;
    uint64_t *expected, *found; /* values of all vertices */
} run = {.scale = 20, .part = 8, .line = 16384};

/* --- The host ------------------------------------------------------------------------------- */

/* Lowers values that exceed the value of a neighbour by more than the step, until none does. */
static void graph_relax(const struct graph *g, uint64_t step, uint64_t *values)
{
    const uint64_t *offsets = g->offsets[GRAPH_PINNED];
    bool changed = true;

    while (changed) {
        changed = false;
        for (uint64_t v = 0; v < g->vertices; v++) {
            for (uint64_t i = offsets[v]; i < offsets[v + 1] && values[v] != UINT64_MAX; i++) {
                uint64_t *other = &values[g->targets[GRAPH_PINNED][i]];

                if (*other > values[v] + step) {
                    *other = values[v] + step;
                    changed = true;
                }
            }
        }
    }
}

static void graph_rank(const struct graph *g, uint64_t *values, uint64_t *next)
{
    const uint64_t *offsets = g->offsets[GRAPH_PINNED];

    for (unsigned round = 0; round < GRAPH_ROUNDS; round++) {
        memset(next, 0, g->vertices * sizeof(*next));
        for (uint64_t v = 0; v < g->vertices; v++) {
            for (uint64_t i = offsets[v]; i < offsets[v + 1]; i++)
                next[g->targets[GRAPH_PINNED][i]] += values[v] / (offsets[v + 1] - offsets[v]);
        }
        for (uint64_t v = 0; v < g->vertices; v++)
            values[v] = GRAPH_MASS / g->vertices * 15 / 100 + next[v] * 85 / 100;
    }
}

/* Computes the results of an algorithm on the host. `next` has room for a value of each vertex. */
static void graph_compute(const struct graph *g, enum graph_work work, uint64_t *values,
                          uint64_t *next)
{
    for (uint64_t v = 0; v < g->vertices; v++)
        values[v] = work == GRAPH_SUM          ? 0
                    : work == GRAPH_BFS        ? (v ? UINT64_MAX : 0)
                    : work == GRAPH_COMPONENTS ? v
                                               : GRAPH_MASS / g->vertices;
    for (uint64_t i = 0; i < g->edges && work == GRAPH_SUM; i++)
        values[0] += g->targets[GRAPH_PINNED][i];
    if (work == GRAPH_BFS || work == GRAPH_COMPONENTS)
        graph_relax(g, work == GRAPH_BFS, values);
    else if (work == GRAPH_PAGERANK)
        graph_rank(g, values, next);
}

/* --- Measuring ------------------------------------------------------------------------------- */

/* Runs a work once, and adds its rate in edges per nanosecond. */
static int graph_run_once(enum graph_work work, enum graph_place place, struct bench_samples *rates)
{
    size_t bytes = run.graph.vertices * sizeof(*run.found);
    double seconds, rounds = work == GRAPH_PAGERANK ? GRAPH_ROUNDS : 1;
    int err;

    if (place == GRAPH_CACHED && gpunvme_cache_drop(run.cache))
        return bench_fail("cache", gpunvme_error());
    err = graph_run(&run.graph, work, place, gpunvme_cache_device(run.cache), run.line, &seconds,
                    run.found);
    if (err)
        return bench_fail_with(work_names[work], err);
    if (place == GRAPH_IN_GPU && run.scale > MOST_OF_HOST)
        memcpy(run.expected, run.found, bytes);
    if (memcmp(run.expected, run.found, bytes) != 0)
        return bench_fail(place_names[place], "results differ from the expected ones");
    bench_add(rates, rounds * (double)run.graph.edges * 1e-9 / seconds);
    return 0;
}

static int graph_measure(struct bench *b, enum graph_work work)
{
    struct bench_samples rates[GRAPH_PLACES] = {{.n = 0}};
    char names[GRAPH_PLACES][80];
    int err = 0;

    if (run.scale <= MOST_OF_HOST)
        graph_compute(&run.graph, work, run.expected, run.found);
    for (unsigned i = 0; i < b->repeats && !err; i++) {
        for (unsigned place = 0; place < GRAPH_PLACES && !err; place++)
            err = graph_run_once(work, place, &rates[place]);
    }
    if (err)
        return err;
    for (unsigned place = 0; place < GRAPH_PLACES; place++) {
        snprintf(names[place], sizeof(names[place]), "%s, %s", work_names[work],
                 place_names[place]);
        bench_report_row(b->report, names[place], "10^9 edges/s", &rates[place],
                         place == GRAPH_CACHED ? names[GRAPH_PINNED] : NULL);
    }
    return 0;
}

/* Writes the targets to a new file. */
static int graph_make_file(struct bench *b)
{
    const char *targets = (const char *)run.graph.targets[GRAPH_PINNED];
    size_t bytes = run.graph.edges * sizeof(uint32_t);
    int err = bench_file_create(&b->file, b->dir);

    for (size_t done = 0; done < bytes && !err;) {
        size_t n = bytes - done < CHUNK ? bytes - done : CHUNK;
        ssize_t got = pwrite(b->file.fd, targets + done, n, (off_t)done);

        if (got <= 0)
            err = bench_fail_with(b->file.path, got < 0 ? -errno : -EIO);
        else
            done += (size_t)got;
    }
    return err ? err : bench_file_seal(&b->file);
}

static int graph_open(struct bench *b)
{
    const struct gpunvme_options o = {.lease_queues = b->lease.queues,
                                      .lease_depth = b->lease.depth};
    size_t bytes = run.graph.edges * sizeof(uint32_t) / run.part;

    if (gpunvme_open(&o, &run.g) ||
        gpunvme_file_open(run.g, b->file.fd, GPUNVME_FILE_DIRECT, &run.f) ||
        gpunvme_cache_open(run.f, bytes, run.line, &run.cache))
        return bench_fail("mount", gpunvme_error());
    run.expected = calloc(run.graph.vertices, sizeof(*run.expected));
    run.found = calloc(run.graph.vertices, sizeof(*run.found));
    return run.expected && run.found ? 0 : bench_fail("memory", "not enough of it");
}

static int graph_set_up(struct bench *b)
{
    int err = bench_begin_direct(b, 4096);

    if (err)
        return err;
    bench_report_number(b->report, "scale", run.scale);
    bench_report_number(b->report, "line", run.line);
    bench_report_number(b->report, "part", run.part);
    if (graph_make(&run.graph, run.scale, SEED))
        return bench_fail("graph", "the GPU failed, or memory is short");
    err = graph_make_file(b);
    return err ? err : graph_open(b);
}

int main(int argc, char **argv)
{
    static struct bench b = {.seed = SEED, .repeats = 3, .lease = {.queues = 32, .depth = 256}};
    const struct bench_option options[] = {{'k', BENCH_UNSIGNED, &run.scale, 6, 28},
                                           {'l', BENCH_UNSIGNED, &run.line, 512, UINT32_MAX},
                                           {'p', BENCH_UNSIGNED, &run.part, 1, 32},
                                           BENCH_LEASE_OPTIONS(b),
                                           BENCH_REPORT_OPTIONS(b),
                                           {0}};

    if (!bench_parse(argc, argv, options, &b.dir))
        return bench_usage("[-k SCALE, 6 to 28] [-p PART: a cache of 1/PART of the graph]\n"
                           "                   [-l BYTES of a line] [-r REPEATS] [-o json]\n"
                           "                   [-q QUEUES leased, -d of DEPTH] DIRECTORY\n");
    int err = graph_set_up(&b);
    for (unsigned work = 0; work < GRAPH_WORKS && !err; work++)
        err = graph_measure(&b, work);
    if (!err)
        err = bench_report_hits(&b, run.cache, "share of hits");
    gpunvme_close(run.g);
    graph_free(&run.graph);
    free(run.expected);
    free(run.found);
    return bench_end(&b, err);
}
