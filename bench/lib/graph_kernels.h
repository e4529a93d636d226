/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes Kronecker graphs, and runs kernels over their edges, which are in GPU
 * memory, in pinned host memory, or in a file behind a cache.
 */
#ifndef BENCH_LIB_GRAPH_KERNELS_H
#define BENCH_LIB_GRAPH_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_device_cache;

/* Undirected edges for each vertex, each of which has an entry in two rows. */
#define GRAPH_EDGE_FACTOR 16u
#define GRAPH_ROUNDS      10u                 /* of PageRank */
#define GRAPH_MASS        ((uint64_t)1 << 50) /* about the sum of all ranks, which are integers */

enum graph_work { GRAPH_SUM, GRAPH_BFS, GRAPH_COMPONENTS, GRAPH_PAGERANK, GRAPH_WORKS };
enum graph_place { GRAPH_IN_GPU, GRAPH_PINNED, GRAPH_CACHED, GRAPH_PLACES };

/*
 * A graph has a row of targets for each vertex. Vertices are numbered by
 * descending degree. A search that reads the rows in order therefore finds most
 * vertices before it reaches their rows.
 */
struct graph {
    uint64_t vertices, edges; /* edges: targets in all rows */
    uint32_t *targets[2];     /* in GPU memory and in pinned host memory */
    uint64_t *offsets[2];     /* of the first target of each vertex, and the end; the same places */
    uint64_t *values, *next;  /* results and state of each vertex; GPU memory */
};

/*
 * Generates a graph of 2^scale vertices. scale is 4 to 28. Returns 0 or -EIO.
 * The caller ends it with graph_free() in both cases.
 */
int graph_make(struct graph *g, unsigned scale, uint64_t seed);
void graph_free(struct graph *g);

/*
 * Runs one algorithm over the targets in one place. `cache` caches the file of
 * the targets in lines of `line` bytes. Stores the time in *seconds, and a
 * value for each vertex in `results`: its level in a search from vertex 0
 * (UINT64_MAX: not reached), the lowest vertex of its component, or its rank.
 * GRAPH_SUM stores the sum of all targets as the value of vertex 0. Returns 0,
 * -EIO if the GPU failed, or the error of a read.
 */
int graph_run(const struct graph *g, enum graph_work work, enum graph_place place,
              const struct gpunvme_device_cache *cache, uint32_t line, double *seconds,
              uint64_t *results);

#ifdef __cplusplus
}
#endif

#endif
