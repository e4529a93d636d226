/* SPDX-License-Identifier: BSD-2-Clause */
/* Visits the edges of a graph by chunks: lines of a cache, or parts of memory of that size. */
#include "bench/lib/graph_kernels.h"

#include <cuda_runtime.h>
#include <errno.h>

#include <vector>

#include "bench/lib/bench_report.h"
#include "bench/lib/pattern.h"
#include "gpunvme/gpunvme_array.cuh"

namespace
{

constexpr unsigned kThreads = 128, kWarp = 32, kUnroll = 4, kAll = 0xffffffffu;
constexpr uint64_t kNone = UINT64_MAX;

bool is_good(cudaError_t err)
{
    return err == cudaSuccess;
}

unsigned blocks_for(uint64_t n)
{
    return (unsigned)((n + kThreads - 1) / kThreads);
}

/* --- Graphs ---------------------------------------------------------------------------------- */

/* Computes the ends of edge i. Each bit of both is chosen with the probabilities of Graph 500. */
__device__ void edge_ends(uint64_t seed, uint64_t i, unsigned scale, uint32_t *from, uint32_t *to)
{
    uint64_t random = 0;

    *from = *to = 0;
    for (unsigned bit = 0; bit < scale; bit++, random >>= 16) {
        if (bit % 4 == 0)
            random = pattern_word(seed, i * 8 + bit / 4);
        uint32_t r = random & 0xffff, is_from = r >= 49807,
                 is_to = is_from ? r >= 62259 : r >= 37355;
        *from |= is_from << bit;
        *to |= is_to << bit;
    }
}

__global__ void count_degrees(uint64_t seed, unsigned scale, uint64_t edges, uint32_t *degrees)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t from, to;

    if (i >= edges)
        return;
    edge_ends(seed, i, scale, &from, &to);
    atomicAdd(&degrees[from], 1u);
    atomicAdd(&degrees[to], 1u);
}

/* The caller stores the offsets of the rows in `ends`. The kernel replaces them by the ends. */
__global__ void fill_rows(uint64_t seed, unsigned scale, uint64_t edges, const uint32_t *numbers,
                          uint64_t *ends, uint32_t *targets)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t from, to;

    if (i >= edges)
        return;
    edge_ends(seed, i, scale, &from, &to);
    from = numbers[from];
    to = numbers[to];
    targets[atomicAdd((unsigned long long *)&ends[from], 1ull)] = to;
    targets[atomicAdd((unsigned long long *)&ends[to], 1ull)] = from;
}

/* Numbers the vertices by descending degree, and computes the offsets of their rows. */
void number_vertices(const std::vector<uint32_t> &degrees, std::vector<uint32_t> *numbers,
                     uint64_t *offsets)
{
    std::vector<uint64_t> first; // vertices of a higher degree, for each degree

    for (uint32_t degree : degrees) {
        if (degree >= first.size())
            first.resize(degree + 1);
        first[degree]++;
    }
    uint64_t n = 0, offset = 0;
    for (size_t degree = first.size(); degree-- > 0;) {
        uint64_t count = first[degree];
        first[degree] = n;
        for (uint64_t i = 0; i < count; i++, offset += degree)
            offsets[n + i] = offset;
        n += count;
    }
    offsets[n] = offset;
    for (size_t v = 0; v < degrees.size(); v++)
        (*numbers)[v] = (uint32_t)first[degrees[v]]++;
}

bool copy(void *to, const void *from, size_t bytes)
{
    return is_good(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}

bool alloc_graph(struct graph *g)
{
    size_t bytes = g->edges * sizeof(uint32_t), vertices = g->vertices * sizeof(uint64_t);

    return is_good(cudaMalloc(&g->targets[GRAPH_IN_GPU], bytes)) &&
           is_good(cudaHostAlloc(&g->targets[GRAPH_PINNED], bytes, 0)) &&
           is_good(cudaMalloc(&g->offsets[GRAPH_IN_GPU], vertices + sizeof(uint64_t))) &&
           is_good(cudaHostAlloc(&g->offsets[GRAPH_PINNED], vertices + sizeof(uint64_t), 0)) &&
           is_good(cudaMalloc(&g->values, vertices)) && is_good(cudaMalloc(&g->next, vertices));
}

/* The caller provides `numbers` with one word for each vertex. */
bool make_rows(struct graph *g, unsigned scale, uint64_t seed, uint32_t *numbers)
{
    std::vector<uint32_t> degrees(g->vertices), numbers_of(g->vertices);
    size_t bytes = g->vertices * sizeof(uint32_t), offsets = (g->vertices + 1) * sizeof(uint64_t);
    uint64_t edges = g->edges / 2;

    if (!is_good(cudaMemset(numbers, 0, bytes)))
        return false;
    count_degrees<<<blocks_for(edges), kThreads>>>(seed, scale, edges, numbers);
    if (!copy(degrees.data(), numbers, bytes))
        return false;
    number_vertices(degrees, &numbers_of, g->offsets[GRAPH_PINNED]);
    if (!copy(numbers, numbers_of.data(), bytes) ||
        !copy(g->offsets[GRAPH_IN_GPU], g->offsets[GRAPH_PINNED], offsets))
        return false;
    fill_rows<<<blocks_for(edges), kThreads>>>(seed, scale, edges, numbers,
                                               g->offsets[GRAPH_IN_GPU], g->targets[GRAPH_IN_GPU]);
    return copy(g->offsets[GRAPH_IN_GPU], g->offsets[GRAPH_PINNED], offsets) &&
           copy(g->targets[GRAPH_PINNED], g->targets[GRAPH_IN_GPU], g->edges * sizeof(uint32_t));
}

/* --- Sweeps ---------------------------------------------------------------------------------- */

/* A sweep over all chunks has these arguments. */
struct sweep {
    uint64_t vertices, edges, chunks, per_chunk; // targets of a chunk
    const uint64_t *offsets;
    const uint64_t *first; // vertex of the first target of each chunk
    uint64_t *carried;     // of each chunk, for the row that began in an earlier one
    uint64_t *turn;        // number of the next chunk, which a warp takes
    const uint32_t *targets;
    const struct gpunvme_device_cache *cache;
    int *error;
};

class Loads
{
  public:
    __device__ explicit Loads(const struct sweep &s) : targets_(s.targets) {}
    __device__ void hold(uint64_t) {}
    __device__ void fetch(uint64_t, uint64_t) {}
    __device__ uint32_t target(uint64_t i) const { return targets_[i]; }

  private:
    const uint32_t *targets_;
};

/* Loads targets in place, or copies some of them if the set of their line has no free way. */
class Cached
{
  public:
    __device__ explicit Cached(const struct sweep &s)
        : targets_(s.cache, 0, s.edges), line_(targets_), error_(s.error)
    {
        __shared__ uint32_t copies[kThreads / kWarp][kWarp * kUnroll];

        copy_ = copies[threadIdx.x / kWarp];
    }
    __device__ void hold(uint64_t i)
    {
        tell(line_.hold(i));
        is_held_ = line_.at(i) != nullptr;
        from_ = line_.at(i);
        first_ = i;
    }
    /* Called by a warp before it loads targets, at most kWarp * kUnroll of them. */
    __device__ void fetch(uint64_t i, uint64_t n)
    {
        if (is_held_)
            return;
        __syncwarp();
        tell(targets_.get_warp(i, copy_, n));
        from_ = copy_;
        first_ = i;
    }
    __device__ uint32_t target(uint64_t i) const { return from_[i - first_]; }

  private:
    __device__ void tell(int err) const
    {
        if (err)
            *error_ = err;
    }

    gpunvme_array<uint32_t> targets_;
    gpunvme_line<uint32_t> line_;
    uint32_t *copy_;
    const uint32_t *from_ = nullptr;
    uint64_t first_ = 0;
    bool is_held_ = false;
    int *error_;
};

/*
 * A warp visits a part of a chunk at a time: the targets of 32 vertices, of
 * which each lane has one.
 */
struct part {
    uint64_t begin, end; // targets
    uint64_t from;       // the lane's first target
    uint64_t value;      // of the lane's vertex
    uint32_t active;     // lanes
};

/* Returns the last lane whose targets begin at or before target i. */
__device__ uint32_t owner_of(const struct part &p, uint64_t i)
{
    uint32_t owner = 0;

    for (uint32_t step = kWarp / 2; step; step /= 2) {
        uint64_t from = __shfl_sync(kAll, p.from, (int)(owner + step));
        owner += from <= i ? step : 0;
    }
    return owner;
}

template <class Targets, class Work>
__device__ void visit(Targets &targets, Work &work, const struct part &p)
{
    const uint64_t most = kWarp * kUnroll;

    for (uint64_t first = p.begin & ~(uint64_t)(kWarp - 1); first < p.end; first += most) {
        uint64_t values[kUnroll], from = max(first, p.begin), end = min(first + most, p.end);
        uint32_t found[kUnroll];
        bool is[kUnroll], any = false;

        for (unsigned k = 0; k < kUnroll; k++) {
            uint64_t i = first + k * kWarp + threadIdx.x % kWarp;
            uint32_t owner = owner_of(p, i);

            values[k] = __shfl_sync(kAll, p.value, (int)owner);
            is[k] = i >= from && i < end && (p.active >> owner & 1);
            any = any || is[k];
        }
        if (!__any_sync(kAll, any))
            continue;
        targets.fetch(from, end - from);
        for (unsigned k = 0; k < kUnroll; k++)
            found[k] = is[k] ? targets.target(first + k * kWarp + threadIdx.x % kWarp) : 0;
        for (unsigned k = 0; k < kUnroll; k++) {
            if (is[k])
                work.edge(values[k], found[k]);
        }
    }
}

/* Called by a warp. Holds the targets of a chunk only if one of its vertices is active. */
template <class Targets, class Work>
__device__ void sweep_chunk(const struct sweep &s, Targets &targets, Work &work, uint64_t chunk)
{
    uint64_t begin = chunk * s.per_chunk, end = min(begin + s.per_chunk, s.edges);
    bool is_held = false;

    for (uint64_t first = s.first[chunk]; first < s.vertices && s.offsets[first] < end;
         first += kWarp) {
        uint64_t v = min(first + threadIdx.x % kWarp, s.vertices);
        uint64_t row = s.offsets[v], row_end = s.offsets[min(v + 1, s.vertices)];
        uint64_t from = min(max(row, begin), end), to = min(max(row_end, begin), end);
        uint64_t value = 0, *carried = row < begin ? &s.carried[chunk] : nullptr;
        bool is = from < to && work.begin(v, row_end - row, carried, &value);
        struct part p = {__shfl_sync(kAll, from, 0), __shfl_sync(kAll, to, kWarp - 1), from, value,
                         __ballot_sync(kAll, is)};

        if (!p.active)
            continue;
        if (!is_held)
            targets.hold(begin);
        is_held = true;
        visit(targets, work, p);
        __syncwarp();
    }
}

/* Warps take chunks in order, so those that are visited at one time lie near each other. */
template <class Targets, class Work>
__global__ void __launch_bounds__(kThreads)
    sweep_chunks(const __grid_constant__ struct sweep s, Work work, bool backwards)
{
    Targets targets(s);

    for (;;) {
        uint64_t i = 0;

        if (threadIdx.x % kWarp == 0)
            i = atomicAdd((unsigned long long *)s.turn, 1ull);
        i = __shfl_sync(kAll, i, 0);
        if (i >= s.chunks)
            break;
        sweep_chunk(s, targets, work, backwards ? s.chunks - 1 - i : i);
    }
    work.end();
}

/* --- Works ----------------------------------------------------------------------------------- */

/*
 * A work has these functions:
 *  - begin() returns true if the targets of a vertex in this chunk are to be
 *    visited, and stores a value for them. `carried` is not NULL if the row
 *    began in an earlier chunk.
 *  - edge() uses this value for one target.
 *  - end() is called by each thread after its last edge.
 */

/* Adds all targets. */
struct sum {
    uint64_t *total, own;

    __device__ bool begin(uint64_t, uint64_t, uint64_t *, uint64_t *) { return true; }
    __device__ void edge(uint64_t, uint32_t target) { own += target; }
    __device__ void end() { atomicAdd((unsigned long long *)total, (unsigned long long)own); }
};

/*
 * Lowers the values of targets to that of the vertex plus a step: levels of a
 * search with 1, labels of components with 0. A vertex is visited whenever its
 * value is lower than at the last visit, also if this sweep has lowered it. Since
 * sweeps begin with the vertices of the highest degrees, most lines are read once.
 */
struct relax {
    uint64_t *values, *sent, step;
    unsigned *changed, own;

    __device__ bool begin(uint64_t v, uint64_t, uint64_t *carried, uint64_t *value)
    {
        uint64_t found = *(const volatile uint64_t *)&values[v];
        uint64_t *last = carried ? carried : &sent[v];

        if (found >= *last)
            return false;
        *last = found;
        *value = found + step;
        return true;
    }
    __device__ void edge(uint64_t value, uint32_t target)
    {
        if (values[target] > value &&
            atomicMin((unsigned long long *)&values[target], (unsigned long long)value) > value)
            own = 1;
    }
    __device__ void end()
    {
        if (own)
            *changed = 1;
    }
};

/* Adds up integers, whose sum does not depend on the order. */
struct pagerank {
    const uint64_t *ranks;
    uint64_t *next;

    __device__ bool begin(uint64_t v, uint64_t degree, uint64_t *, uint64_t *value)
    {
        *value = ranks[v] / degree;
        return true;
    }
    __device__ void edge(uint64_t share, uint32_t target)
    {
        atomicAdd((unsigned long long *)&next[target], (unsigned long long)share);
    }
    __device__ void end() {}
};

/*
 * Sets the value of each vertex to `value`, or to its number with
 * `are_numbers`. If `value` is kNone, vertex 0 gets 0.
 */
__global__ void set_values(const struct graph g, uint64_t value, bool are_numbers, uint64_t next)
{
    uint64_t v = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (v >= g.vertices)
        return;
    g.values[v] = are_numbers ? v : v == 0 && value == kNone ? 0 : value;
    g.next[v] = next;
}

__global__ void end_round(const struct graph g)
{
    uint64_t v = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (v >= g.vertices)
        return;
    g.values[v] = GRAPH_MASS / g.vertices * 15 / 100 + g.next[v] * 85 / 100;
    g.next[v] = 0;
}

/* Stores the vertex of the first target of each chunk, by a binary search. */
__global__ void find_first(const struct sweep s, uint64_t *first)
{
    uint64_t chunk = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t low = 0, high = s.vertices;

    if (chunk >= s.chunks)
        return;
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;

        if (s.offsets[middle] <= chunk * s.per_chunk)
            low = middle;
        else
            high = middle;
    }
    first[chunk] = low;
}

/* An algorithm has this state while it runs. */
struct run {
    const struct graph *g;
    enum graph_place place;
    struct sweep sweep;
    uint64_t *first;   // arrays of the sweep
    unsigned *changed; // pinned, as the error
    bool backwards;    // the sweep begins with the lines that the previous one has left
};

template <class Targets, class Work> bool launch(const struct run &r, const Work &work)
{
    int device = 0, processors = 0, blocks = 0;

    if (!is_good(cudaGetDevice(&device)) ||
        !is_good(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) ||
        !is_good(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, sweep_chunks<Targets, Work>,
                                                               kThreads, 0)) ||
        !is_good(cudaMemsetAsync(r.sweep.turn, 0, sizeof(*r.sweep.turn), 0)))
        return false;
    sweep_chunks<Targets, Work>
        <<<(unsigned)(blocks * processors), kThreads>>>(r.sweep, work, r.backwards);
    return is_good(cudaGetLastError());
}

template <class Work> bool sweep_over(const struct run &r, const Work &work)
{
    return r.place == GRAPH_CACHED ? launch<Cached>(r, work) : launch<Loads>(r, work);
}

/* Repeats sweeps until one of them changes nothing. */
bool relax_all(struct run *r, uint64_t step)
{
    const struct graph *g = r->g;

    do {
        *r->changed = 0;
        if (!sweep_over(*r, relax{g->values, g->next, step, r->changed, 0}) ||
            !is_good(cudaStreamSynchronize(0)))
            return false;
    } while (*r->changed && !*r->sweep.error);
    return true;
}

bool rank_pages(struct run *r)
{
    const struct graph *g = r->g;

    for (unsigned i = 0; i < GRAPH_ROUNDS; i++) {
        r->backwards = i % 2;
        if (!sweep_over(*r, pagerank{g->values, g->next}))
            return false;
        end_round<<<blocks_for(g->vertices), kThreads>>>(*g);
    }
    return true;
}

bool run_work(struct run *r, enum graph_work work)
{
    const struct graph *g = r->g;
    unsigned blocks = blocks_for(g->vertices);

    switch (work) {
    case GRAPH_SUM:
        set_values<<<blocks, kThreads>>>(*g, 0, false, 0);
        return sweep_over(*r, sum{g->values, 0});
    case GRAPH_BFS:
        set_values<<<blocks, kThreads>>>(*g, kNone, false, kNone);
        return relax_all(r, 1);
    case GRAPH_COMPONENTS:
        set_values<<<blocks, kThreads>>>(*g, 0, true, kNone);
        return relax_all(r, 0);
    default:
        set_values<<<blocks, kThreads>>>(*g, GRAPH_MASS / g->vertices, false, 0);
        return rank_pages(r);
    }
}

/* Prepares a run. `words` are pinned. */
bool begin_run(struct run *r, const struct gpunvme_device_cache *cache, uint32_t line, int *words)
{
    const struct graph *g = r->g;
    uint64_t per_chunk = line / sizeof(uint32_t), chunks = (g->edges + per_chunk - 1) / per_chunk;

    if (!is_good(cudaMalloc(&r->first, (2 * chunks + 1) * sizeof(*r->first))) ||
        !is_good(cudaMemset(r->first + chunks, 0xff, chunks * sizeof(*r->first))))
        return false;
    words[0] = words[1] = 0;
    r->changed = (unsigned *)&words[1];
    r->sweep = {.vertices = g->vertices,
                .edges = g->edges,
                .chunks = chunks,
                .per_chunk = per_chunk,
                .offsets = g->offsets[GRAPH_IN_GPU],
                .first = r->first,
                .carried = r->first + chunks,
                .turn = r->first + 2 * chunks,
                .targets = r->place == GRAPH_CACHED ? nullptr : g->targets[r->place],
                .cache = cache,
                .error = &words[0]};
    find_first<<<blocks_for(chunks), kThreads>>>(r->sweep, r->first);
    return is_good(cudaStreamSynchronize(0));
}

} // namespace

extern "C" int graph_make(struct graph *g, unsigned scale, uint64_t seed)
{
    uint32_t *numbers = nullptr;

    *g = {};
    g->vertices = (uint64_t)1 << scale;
    g->edges = g->vertices * GRAPH_EDGE_FACTOR * 2;
    bool ok = alloc_graph(g) && is_good(cudaMalloc(&numbers, g->vertices * sizeof(uint32_t))) &&
              make_rows(g, scale, seed, numbers);
    cudaFree(numbers);
    return ok ? 0 : -EIO;
}

extern "C" void graph_free(struct graph *g)
{
    cudaFree(g->targets[GRAPH_IN_GPU]);
    cudaFreeHost(g->targets[GRAPH_PINNED]);
    cudaFree(g->offsets[GRAPH_IN_GPU]);
    cudaFreeHost(g->offsets[GRAPH_PINNED]);
    cudaFree(g->values);
    cudaFree(g->next);
    *g = {};
}

extern "C" int graph_run(const struct graph *g, enum graph_work work, enum graph_place place,
                         const struct gpunvme_device_cache *cache, uint32_t line, double *seconds,
                         uint64_t *results)
{
    struct run r = {g, place, {}, nullptr, nullptr, false};
    int *words = nullptr, err = 0;
    bool ok =
        is_good(cudaHostAlloc(&words, 2 * sizeof(*words), 0)) && begin_run(&r, cache, line, words);
    double start = bench_seconds();

    ok = ok && run_work(&r, work) && is_good(cudaStreamSynchronize(0));
    *seconds = bench_seconds() - start;
    if (ok)
        err = words[0];
    ok = ok &&
         is_good(cudaMemcpy(results, g->values, g->vertices * sizeof(*results), cudaMemcpyDefault));
    cudaFree(r.first);
    cudaFreeHost(words);
    return ok ? err : -EIO;
}
