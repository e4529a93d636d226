/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures the GPUs of one mount, one after the other and all at once.
 *
 * Each GPU has one thread of the host, which reads the same file, writes a file of its own, and
 * reads lists of pieces of 4 KiB. If the mount lends the direct path (-o direct=), leased queues
 * read the file and the list, and a kernel of many warps reads the pieces. The plain copy from
 * pinned memory shows the rate of the links. Before each run the memory is poisoned, and after it
 * all bytes are verified.
 *
 * "one" has the rates of each GPU while the others are idle. "all" is the sum of their bytes over
 * the time from the first start to the last end. "fairness" is the rate of the slowest GPU divided
 * by that of the fastest one in the same run.
 *
 * Example: on_mount.sh 16G gpu=require,direct=all,sim=threads:16 gpus_bench -s 4096
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/direct_kernels.h"

#define PROGRAM      "gpus_bench"
#define SEED         0x67707573u
#define UNIT         ((uint64_t)64 << 20) /* sizes of files are multiples of it */
#define PIECE        4096u
#define PIECES       262144u /* maximum number */
#define KERNEL_WARPS 512u
#define LEASED_MOST  32u /* queue pairs of a GPU */

/*
 * This struct has the state of one GPU. Only the GPU's thread uses it, which
 * has selected the GPU.
 */
struct gpu {
    struct bench *b;
    uint8_t uuid[16];
    struct bench_mount mount;
    struct bench_direct direct;
    struct bench_stream copies; /* with a pinned buffer of UNIT bytes */
    struct bench_file written;
    struct pattern_pieces whole, small; /* the file in one piece, and pieces of it */
    struct bench_list list;             /* the small pieces */
    pthread_t thread;
    int err;
    double start, end; /* of a run, in seconds */
};

static struct {
    const struct way *way; /* of the run */
    pthread_barrier_t begin;
    struct gpu gpus[GPUNVME_GPUS_MAX];
    unsigned n;
} run;

enum kind { COPY, READ, WRITE, LIST, DIRECT_LIST, PIECES_READ };

struct way {
    const char *name;
    enum kind kind;
    bool direct, kernel; /* needs the direct path, or kernels */
    int (*run)(struct gpu *g);
};

/* --- Ways ------------------------------------------------------------------------------------ */

static int gpus_copy(struct gpu *g)
{
    int err = 0;

    for (uint64_t at = 0; at < g->b->size && !err; at += UNIT)
        err = bench_stream_copy(&g->copies, &g->mount.memory, at, UNIT);
    return err ? err : bench_stream_wait(&g->copies);
}

static int gpus_read_fd(struct gpu *g, int fd)
{
    return bench_mount_read(&g->mount, fd, 0, 0, g->b->size, GPUNVME_PATH_GPU, NULL);
}

static int gpus_read(struct gpu *g)
{
    return gpus_read_fd(g, g->b->file.fd);
}

static int gpus_write(struct gpu *g)
{
    return bench_mount_write(&g->mount, g->written.fd, g->b->size, GPUNVME_PATH_GPU);
}

static int gpus_read_list(struct gpu *g)
{
    return bench_list_read(&g->list, &g->mount, g->b->file.fd, g->list.n, GPUNVME_PATH_GPU);
}

static int gpus_read_direct(struct gpu *g)
{
    return bench_direct_read(&g->direct, g->mount.memory.addr, g->b->size, 0);
}

static int gpus_read_direct_list(struct gpu *g)
{
    return bench_list_read_direct(&g->list, &g->direct, g->mount.memory.addr, g->list.n);
}

static int gpus_run_kernel(struct gpu *g)
{
#ifdef GPUNVME_HAVE_CUDA
    int64_t result;

    if (kernel_warps(WARPS_THREADS, leased_file_device(g->direct.file), &g->small,
                     g->mount.memory.addr, KERNEL_WARPS, 1, &result))
        return bench_fail("kernel", result < 0 ? strerror((int)-result) : "the GPU failed");
#endif
    (void)g;
    return 0;
}

static const struct way ways[] = {
    {"plain copy", COPY, false, false, gpus_copy},
    {"READ", READ, false, false, gpus_read},
    {"WRITE", WRITE, false, false, gpus_write},
    {"READV of 4 KiB", LIST, false, false, gpus_read_list},
    {"direct path, file", READ, true, false, gpus_read_direct},
    {"direct path, list of 4 KiB", DIRECT_LIST, true, false, gpus_read_direct_list},
    {"kernel, 4 KiB", PIECES_READ, true, true, gpus_run_kernel},
};

static bool is_of_pieces(const struct way *w)
{
    return w->kind == LIST || w->kind == DIRECT_LIST || w->kind == PIECES_READ;
}

/* --- Runs ------------------------------------------------------------------------------------ */

static int gpus_prepare(struct gpu *g, const struct way *w)
{
    int err;

    if (w->kind == WRITE)
        return bench_fill(&g->mount.memory, g->b->size, SEED);
    err = bench_list_prepare(&g->list, w->kind == DIRECT_LIST);
    return err ? err : bench_poison(&g->mount.memory, SEED);
}

/* Verifies what was read, or reads what was written and verifies it. */
static int gpus_verify(struct gpu *g, const struct way *w)
{
    int err = 0;

    if (w->kind == COPY)
        return 0;
    if (w->kind == WRITE) {
        err = bench_poison(&g->mount.memory, SEED);
        if (!err)
            err = gpus_read_fd(g, g->written.fd);
    }
    if (w->kind == LIST || w->kind == DIRECT_LIST)
        err = bench_list_check(&g->list, w->kind == DIRECT_LIST);
    return err ? err
               : bench_verify(&g->mount.memory, is_of_pieces(w) ? &g->small : &g->whole, w->name);
}

/* The threads of a run begin at the same time. A thread that failed to prepare begins, too. */
static void *gpus_thread(void *arg)
{
    struct gpu *g = arg;
    const struct way *w = run.way;
    int err = bench_gpu_select(g->uuid);

    if (!err)
        err = gpus_prepare(g, w);
    pthread_barrier_wait(&run.begin);
    g->start = bench_seconds();
    if (!err)
        err = w->run(g);
    g->end = bench_seconds();
    g->err = err;
    return NULL;
}

/* Runs a way on n GPUs at once. */
static int gpus_run(const struct way *w, struct gpu *first, unsigned n)
{
    unsigned started = 0;
    int err = 0;

    run.way = w;
    pthread_barrier_init(&run.begin, NULL, n);
    while (started < n &&
           pthread_create(&first[started].thread, NULL, gpus_thread, &first[started]) == 0)
        started++;
    if (started < n) /* the threads wait for one that does not exist */
        exit(bench_fail("thread", "cannot be started") != 0);
    for (unsigned i = 0; i < n; i++) {
        pthread_join(first[i].thread, NULL);
        err = err ? err : first[i].err;
    }
    pthread_barrier_destroy(&run.begin);
    /* GPUs are verified in turn, since verification counts in one variable of a device. */
    for (unsigned i = 0; i < n && !err; i++) {
        err = bench_gpu_select(first[i].uuid);
        err = err ? err : gpus_verify(&first[i], w);
    }
    return err;
}

/* Returns the size of a run in GB, or in millions of pieces if the way reads pieces. */
static double gpus_work(const struct gpu *g, const struct way *w)
{
    return is_of_pieces(w) ? (double)g->small.n * 1e-6 : (double)g->b->size * 1e-9;
}

static void gpus_add_all(const struct way *w, struct bench_samples *all,
                         struct bench_samples *fairness)
{
    double start = run.gpus[0].start, end = run.gpus[0].end, shortest = end - start, longest = 0;

    for (unsigned i = 0; i < run.n; i++) {
        const struct gpu *g = &run.gpus[i];
        double took = g->end - g->start;

        start = g->start < start ? g->start : start;
        end = g->end > end ? g->end : end;
        shortest = took < shortest ? took : shortest;
        longest = took > longest ? took : longest;
    }
    bench_add(all, gpus_work(&run.gpus[0], w) * run.n / (end - start));
    bench_add(fairness, shortest / longest);
}

struct rates {
    struct bench_samples one, all, fairness;
};

static int gpus_round(const struct way *w, struct rates *r)
{
    int err = 0;

    for (unsigned i = 0; i < run.n && !err; i++) {
        struct gpu *g = &run.gpus[i];

        err = gpus_run(w, g, 1);
        bench_add(&r->one, gpus_work(g, w) / (g->end - g->start));
    }
    if (!err)
        err = gpus_run(w, run.gpus, run.n);
    gpus_add_all(w, &r->all, &r->fairness);
    return err;
}

static int gpus_measure(struct bench *b, const struct way *w)
{
    struct rates r = {.one.n = 0};
    char one[64], all[64], fairness[64];
    int err = gpus_round(w, &r); /* warms up */

    r = (struct rates){.one.n = 0};
    for (unsigned i = 0; i < b->repeats && !err; i++)
        err = gpus_round(w, &r);
    if (err)
        return err;
    snprintf(one, sizeof(one), "%s, one", w->name);
    snprintf(all, sizeof(all), "%s, all", w->name);
    snprintf(fairness, sizeof(fairness), "%s, fairness", w->name);
    bench_report_row(b->report, one, is_of_pieces(w) ? "M/s" : "GB/s", &r.one, NULL);
    bench_report_row(b->report, all, is_of_pieces(w) ? "M/s" : "GB/s", &r.all, one);
    bench_report_row(b->report, fairness, "of the fastest", &r.fairness, NULL);
    return 0;
}

static int gpus_measure_all(struct bench *b)
{
    const struct bench_mount *m = &run.gpus[0].mount;
    int err = 0;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) && !err; i++) {
        if ((!ways[i].direct || m->info.direct) && (!ways[i].kernel || m->memory.on_gpu))
            err = gpus_measure(b, &ways[i]);
    }
    return err;
}

/* --- The program ----------------------------------------------------------------------------- */

static int gpus_make_list(struct gpu *g)
{
    uint64_t n = g->b->size / PIECE;

    n = n < PIECES ? n : PIECES;
    int err = bench_pieces_make(&g->small, g->mount.memory.on_gpu, SEED + g->uuid[0], n * PIECE,
                                PIECE, 0, g->b->size, true);
    g->small.seed = SEED; /* that of the file's bytes */
    return err ? err : bench_list_make(&g->list, &g->mount, &g->small);
}

static int gpus_open(struct bench *b, struct gpu *g)
{
    int err = bench_gpu_select(g->uuid);

    if (err)
        return bench_fail("GPU", "this process does not see a GPU of the mount");
    g->b = b;
    if (bench_mount_open(&g->mount, b->dir, b->size))
        return -EIO;
    if (bench_stream_open(&g->copies, g->mount.memory.on_gpu, UNIT))
        return bench_fail("memory", "not enough of it");
    err = bench_pieces_make(&g->whole, g->mount.memory.on_gpu, SEED, b->size, b->size, 0, b->size,
                            false);
    if (!err)
        err = gpus_make_list(g);
    if (!err)
        err = bench_file_create(&g->written, b->dir);
    if (!err && g->mount.info.direct)
        err = bench_direct_open(&g->direct, &g->mount, b->file.fd, &b->lease);
    return err;
}

static void gpus_close(struct gpu *g)
{
    bench_gpu_select(g->uuid);
    bench_direct_close(&g->direct);
    bench_list_free(&g->list, &g->mount);
    bench_pieces_free(&g->small, g->mount.memory.on_gpu);
    bench_pieces_free(&g->whole, g->mount.memory.on_gpu);
    if (g->copies.buffer)
        bench_stream_close(&g->copies);
    bench_file_close(&g->written);
    bench_mount_close(&g->mount);
}

/* Finds the GPUs of the mount. */
static int gpus_list(struct bench *b)
{
    static struct gpunvme_ioc_gpus found;

    if (gpunvme_gpus(b->file.fd, &found))
        return bench_fail(b->dir, gpunvme_error());
    if (!found.count)
        return bench_fail(b->dir, "the mount has no GPU path");
    for (uint32_t i = 0; i < found.count && i < GPUNVME_GPUS_MAX; i++)
        memcpy(run.gpus[run.n++].uuid, found.gpus[i].uuid, sizeof(run.gpus[0].uuid));
    return 0;
}

/* Each GPU gets an equal part of the queues that the mount lends, unless -q says otherwise. */
static int gpus_divide_queues(struct bench *b)
{
    struct gpunvme_ioc_info info;

    if (gpunvme_info(b->file.fd, &info))
        return bench_fail(b->dir, gpunvme_error());
    if (!b->lease.queues)
        b->lease.queues = info.lease_queues / run.n;
    if (b->lease.queues > LEASED_MOST)
        b->lease.queues = LEASED_MOST;
    return 0;
}

static int gpus_set_up(struct bench *b)
{
    int err = bench_file_make(&b->file, b->dir, b->size, SEED);

    if (!err)
        err = gpus_list(b);
    if (!err)
        err = gpus_divide_queues(b);
    for (unsigned i = 0; i < run.n && !err; i++)
        err = gpus_open(b, &run.gpus[i]);
    if (err)
        return err;
    b->report = bench_mount_report(b, &run.gpus[0].mount);
    if (!b->report)
        return bench_fail("memory", "not enough of it");
    bench_report_number(b->report, "gpus", run.n);
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "pieces", (double)run.gpus[0].small.n);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30,
                             .seed = SEED,
                             .repeats = 3,
                             .lease = {.depth = 256},
                             .file = {.fd = -1}};
    const struct bench_option options[] = {{'s', BENCH_MIB, &b.size, UNIT, BENCH_SIZE_MOST},
                                           BENCH_LEASE_OPTIONS(b),
                                           BENCH_REPORT_OPTIONS(b),
                                           {0}};

    for (unsigned i = 0; i < GPUNVME_GPUS_MAX; i++)
        run.gpus[i].written.fd = -1;
    if (!bench_parse(argc, argv, options, &b.dir))
        return bench_usage(
            "[-s MiB, a multiple of 64] [-r REPEATS] [-o json]\n"
            "                  [-q QUEUES leased by a GPU, -d of DEPTH] DIRECTORY\n");
    int err = gpus_set_up(&b);
    if (!err)
        err = gpus_measure_all(&b);
    for (unsigned i = 0; i < run.n; i++)
        gpus_close(&run.gpus[i]);
    return bench_end(&b, err);
}
