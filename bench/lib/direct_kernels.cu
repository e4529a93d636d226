/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of benchmarks that read by the direct path. */
#include "bench/lib/direct_kernels.h"
#include "bench/lib/kernel_times.cuh"
#include "bench/lib/pattern.h"
#include "gpunvme/gpunvme_device.h"

namespace
{

constexpr unsigned kWarp = 32;

using reader = void (*)(const struct gpunvme_device_file *file, struct pattern_pieces p, char *to,
                        struct kernel_times times, unsigned *wrong);

/*
 * One warp, one read after another, whose place is in registers when its time begins. *wrong: how
 * many were not served whole.
 */
__global__ void __launch_bounds__(kWarp)
    read_pieces(const struct gpunvme_device_file *file, struct pattern_pieces p, char *to,
                struct kernel_times times, unsigned *wrong)
{
    struct kernel_clock clock = kernel_clock_start();
    unsigned bad = 0;

    for (unsigned i = 0; i < p.n; i++) {
        uint64_t place = p.gpu_places[i], asked;
        int64_t got = 0;

        if (place != UINT64_MAX) { /* waits for the load of the place */
            asked = (uint64_t)clock64();
            got = gpunvme_pread_warp(file, to + i * p.bytes, p.bytes, place);
            if (threadIdx.x == 0)
                times.ticks[i] = (uint64_t)clock64() - asked;
        }
        bad += got != (int64_t)p.bytes;
    }
    if (threadIdx.x == 0) {
        kernel_clock_end(clock, times);
        *wrong = bad;
    }
}

/* Of one read: where the clock stood at the end of each phase, at[0] at its start. */
struct stamps {
    uint64_t at[DIRECT_PHASES + 1];
};

/* As gpunvme_pread_warp() of what one command serves, with stamps in between. */
__device__ bool read_in_phases(const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                               uint64_t offset, struct stamps &s)
{
    s.at[0] = (uint64_t)clock64();
    const struct gpunvme_device_file f = gd_load_file(file);
    struct gd_reader self = {.group = gq_whole_group(), .file = &f}, *w = &self;
    const struct gq_run run = gd_run(&f, 1, 1);
    struct gq_single single = {};
    struct gd_extents extents;
    struct gd_table table;
    struct gd_buffer b;
    struct gq_cmd cmd;
    bool good;

    if (gq_read_bytes(&f.map, offset, n) != n || f.set.n_queues == 0)
        return false;
    s.at[DIRECT_FILE + 1] = (uint64_t)clock64();
    gd_load_table(w, 0, &table);
    gd_load_extents(w, &extents);
    if (gd_take(w) != 0)
        return false;
    s.at[DIRECT_TAKE + 1] = (uint64_t)clock64();
    good = gd_find_buffer(w, &table, dst, n, &b) == 0;
    s.at[DIRECT_FIND + 1] = (uint64_t)clock64();
    if (!good || !gd_make_single(w, &b, &extents, {offset, dst - b.addr, n}, &cmd)) {
        gd_give(w);
        return false;
    }
    s.at[DIRECT_MAKE + 1] = (uint64_t)clock64();
    gd_send(w, &single, &run, &cmd);
    s.at[DIRECT_SEND + 1] = (uint64_t)clock64();
    good = gd_await(w, &single) == 0;
    s.at[DIRECT_WAIT + 1] = (uint64_t)clock64();
    gd_give_fenced(w);
    s.at[DIRECT_GIVE + 1] = (uint64_t)clock64();
    return good;
}

/* The same reads, with the time of each phase: of phase k at k * n. */
__global__ void __launch_bounds__(kWarp)
    read_pieces_in_phases(const struct gpunvme_device_file *file, struct pattern_pieces p, char *to,
                          struct kernel_times times, unsigned *wrong)
{
    struct kernel_clock clock = kernel_clock_start();
    unsigned bad = 0;

#pragma unroll 1
    for (unsigned i = 0; i < p.n; i++) {
        struct stamps s = {};

        bad += !read_in_phases(file, (uint64_t)to + i * p.bytes, p.bytes, p.gpu_places[i], s);
        bad += GQ_UNIFORM64(gq_clock_ns()) == 0; /* waits for it, as rounds do */
        s.at[DIRECT_CLOCK + 1] = (uint64_t)clock64();
#pragma unroll
        for (unsigned k = 0; k < DIRECT_PHASES; k++) {
            if (threadIdx.x == 0)
                times.ticks[k * p.n + i] = s.at[k + 1] - s.at[k];
        }
    }
    if (threadIdx.x == 0) {
        kernel_clock_end(clock, times);
        *wrong = bad;
    }
}

int run(reader read, const struct gpunvme_device_file *file, const struct pattern_pieces *p,
        void *to, const struct kernel_times *times, unsigned *wrong, double *micros)
{
    unsigned bad = 0;

    read<<<1, kWarp>>>(file, *p, (char *)to, *times, wrong);
    if (cudaGetLastError() != cudaSuccess || cudaStreamSynchronize(0) != cudaSuccess ||
        cudaMemcpy(&bad, wrong, sizeof(bad), cudaMemcpyDeviceToHost) != cudaSuccess || bad)
        return -EIO;
    return kernel_times_take(times, micros);
}

/* times_each: of each read. */
int open_and_run(reader read, unsigned times_each, const struct gpunvme_device_file *file,
                 const struct pattern_pieces *p, void *to, double *micros)
{
    struct kernel_times times;
    unsigned *wrong = nullptr;
    int err = kernel_times_open(&times, (unsigned)p->n * times_each);

    if (!err && cudaMalloc((void **)&wrong, sizeof(*wrong)) != cudaSuccess)
        err = -ENOMEM;
    if (!err)
        err = run(read, file, p, to, &times, wrong, micros);
    cudaFree(wrong);
    kernel_times_close(&times);
    return err;
}

} // namespace

extern "C" int kernel_direct_reads(const struct gpunvme_device_file *file,
                                   const struct pattern_pieces *p, void *to, double *micros)
{
    return open_and_run(read_pieces, 1, file, p, to, micros);
}

extern "C" int kernel_direct_phases(const struct gpunvme_device_file *file,
                                    const struct pattern_pieces *p, void *to, double *micros)
{
    return open_and_run(read_pieces_in_phases, DIRECT_PHASES, file, p, to, micros);
}
