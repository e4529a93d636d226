/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread that computes beside what is measured. */
#include "bench/lib/computer.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#ifdef GPUNVME_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "bench/lib/kernels.h"
#endif

#define STEP_S   0.001 /* about */
#define ALONE_US 300000u

static int compute_step(const struct bench_computer *c, uint64_t work)
{
    volatile float x = 1.0f;

#ifdef GPUNVME_HAVE_CUDA
    if (c->stream.gpu)
        return kernel_compute(c->stream.cuda, work);
#endif
    (void)c;
    for (uint64_t i = 0; i < work; i++)
        x = x * 1.000001f + 0.5f;
    return 0;
}

/* Finds the work of a step. The first one warms up. */
static int calibrate(struct bench_computer *c)
{
    double start, took = 0;
    int err = compute_step(c, 1000);

    for (c->work = 1000; !err && took < STEP_S; c->work *= 2) {
        start = bench_seconds();
        err = compute_step(c, c->work);
        took = bench_seconds() - start;
    }
    c->work /= 2;
    return err;
}

static void *computer_compute(void *arg)
{
    struct bench_computer *c = arg;
    double start = bench_seconds();
    unsigned steps = 0;

    do {
        c->err = compute_step(c, c->work);
        steps++;
    } while (!atomic_load(&c->stop) && !c->err);
    c->rate = steps / (bench_seconds() - start);
    return NULL;
}

int bench_computer_start(struct bench_computer *c)
{
    if (!c->work)
        return 0;
    atomic_store(&c->stop, false);
    return -pthread_create(&c->thread, NULL, computer_compute, c);
}

int bench_computer_stop(struct bench_computer *c, struct bench_samples *shares)
{
    if (!c->work)
        return 0;
    atomic_store(&c->stop, true);
    pthread_join(c->thread, NULL);
    if (shares)
        bench_add(shares, c->rate / c->alone);
    if (c->err)
        fputs("computing: the GPU failed\n", stderr);
    return c->err;
}

int bench_computer_open(struct bench_computer *c, bool gpu)
{
    int err = bench_stream_open(&c->stream, gpu, sizeof(uint64_t));

    if (!err)
        err = calibrate(c);
    if (!err)
        err = bench_computer_start(c);
    if (err) {
        fputs("computing: not enough memory, or the GPU failed\n", stderr);
        return err;
    }
    usleep(ALONE_US);
    err = bench_computer_stop(c, NULL);
    c->alone = c->rate;
    return err;
}

void bench_computer_close(struct bench_computer *c)
{
    if (c->stream.buffer)
        bench_stream_close(&c->stream);
}

void bench_computer_report(struct bench_report *r, const char *name, struct bench_samples *shares)
{
    char row[160];

    if (shares->n == 0)
        return;
    snprintf(row, sizeof(row), "computing beside %s, of computing alone", name);
    bench_report_row(r, row, "", shares, NULL);
}

const char *bench_computer_sharing(bool gpu)
{
#if defined(GPUNVME_HAVE_CUDA) && CUDART_VERSION >= 12040
    int on = 0;

    if (gpu && cudaDeviceGetAttribute(&on, cudaDevAttrMpsEnabled, 0) == cudaSuccess)
        return on ? "MPS" : "time-sliced";
#endif
    return gpu ? "unknown" : "no GPU";
}
