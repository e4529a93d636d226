/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Small reads in batches, from one thread: how many reach GPU memory in a second?
 *
 * For each size of a read, in one run and in turn: READV of a file on the mount, at random places,
 * of pieces that the mount reads where they are and of pieces that the library copies for it, and
 * what the bus allows for copies of that size (a bare kernel that gathers the same pieces out
 * of pinned memory; not without a GPU), without and with the entries, completions and lists that
 * come over it beside them; then a plain copy of as many bytes. Where the mount stages data (tiers
 * 0 and 1), also READV of the same pieces into pinned memory, without a copy: what the controller
 * gives. The memory is checked after each run, over poison. Also what a piece costs the processors,
 * for READV.
 *
 * Where the mount lends the direct path (-o direct=), the same batches by a kernel on leased
 * queues, of pieces in the GPU's memory. The bare loop beside it reads the same places on the same
 * queues (bench/lib/bare_kernels.h), by all of them, half and a quarter: the fastest is what the
 * controller gives with so many entries in flight (-d). It reads into the GPU's memory, or where
 * data is staged into pinned memory; there it is in turn with READV as well, and the base of both.
 * Elsewhere the direct path comes last. Reads that are shorter than the
 * mount's LBAs have no rows. The first rounds (-w) warm up and are not counted; where data is
 * staged the daemon measures numbers of queues in them:
 *
 *     on_mount.sh 2560M gpu=require,direct=all,sim=threads:8:lba:512 readv_bench
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bare_rows.h"
#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"
#include "bench/lib/cpu.h"
#include "bench/lib/direct_bench_kernels.h"

#define PROGRAM "readv_bench"
#define SEED    0x7265616476u
#define UNIT    ((uint64_t)16 << 20) /* sizes of files are multiples of it */
/* Pinned memory of the bare loop: as staging, it remains in the caches of the processors. */
#define BARE_ROOM ((uint64_t)4 << 20)

enum { COPY, GATHER, TRAFFIC, PINNED, OWN, COPIED, DIRECT_GATHER, DIRECT_TRAFFIC, DIRECT, WAYS };

static const uint64_t read_sizes[] = {512, 4096, 65536};

struct rates {
    struct bench_samples of[WAYS]; /* GB/s */
    struct bare_rows bare;
};

struct bench {
    uint64_t size; /* of the file, and of what a run reads */
    size_t batch;  /* pieces of a call */
    unsigned repeats, warm_ups;
    bool json;
    struct bench_mount mount;
    struct bench_file file;
    void *host; /* the file's bytes, pinned where there is a GPU */
    struct pattern_pieces pieces;
    struct bench_traffic traffic;
    struct gpunvme_piece *copied; /* all of them, in plain memory, */
    struct gpunvme_piece **own;   /* and batch by batch in memory of the library's */
    size_t batches;
    struct bench_cpu cpu;
    struct gpunvme_direct_options lease;
    struct bench_direct direct;
    struct gpunvme_buffer *list; /* all pieces once more, where the direct path finds them */
    struct bench_report *report;
};

static int fail(const char *object, const char *what)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", object, what);
    return -EIO;
}

static int check_batch(const struct gpunvme_piece *pieces, size_t n, uint64_t bytes)
{
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].result != (int32_t)bytes)
            return fail("READV", pieces[i].result < 0 ? strerror(-pieces[i].result) : "short");
    }
    return 0;
}

static size_t batch_len(const struct bench *b, size_t i)
{
    size_t left = b->pieces.n - i * b->batch;

    return left < b->batch ? left : b->batch;
}

static int read_batches(struct bench *b, struct gpunvme_buffer *buffer, bool own)
{
    for (size_t i = 0; i < b->batches; i++) {
        struct gpunvme_piece *pieces = own ? b->own[i] : b->copied + i * b->batch;
        struct gpunvme_result result;

        if (gpunvme_readv(buffer, b->file.fd, pieces, batch_len(b, i), &result))
            return fail("READV", gpunvme_error());
        if (result.path != GPUNVME_PATH_GPU)
            return fail("READV", "not by the GPU path");
    }
    return 0;
}

static int readv_own(struct bench *b)
{
    return read_batches(b, b->mount.buffer, true);
}

static int readv_copied(struct bench *b)
{
    return read_batches(b, b->mount.buffer, false);
}

static int readv_pinned(struct bench *b)
{
    return read_batches(b, b->mount.pinned, true);
}

static int readv_direct(struct bench *b)
{
    struct gpunvme_piece *list = gpunvme_buffer_addr(b->list);

    for (size_t i = 0; i < b->batches; i++) {
        if (gpunvme_readv_async(b->direct.file, b->mount.memory.addr, list + i * b->batch,
                                batch_len(b, i), b->direct.stream.cuda))
            return fail("direct path", gpunvme_error());
    }
    return bench_stream_wait(&b->direct.stream) ? fail("direct path", "the GPU failed") : 0;
}

static int gather_all(struct bench *b)
{
    return bench_gather(&b->mount.memory, b->host, &b->pieces) ? fail("gather", "the GPU failed")
                                                               : 0;
}

static int move_traffic(struct bench *b, bool with_list)
{
    int err = bench_traffic(&b->mount.memory, b->host, &b->pieces, &b->traffic, with_list);

    return err ? fail("traffic", "the GPU failed") : 0;
}

static int traffic_of_readv(struct bench *b)
{
    return move_traffic(b, true);
}

static int traffic_of_direct(struct bench *b)
{
    return move_traffic(b, false);
}

static int copy_all(struct bench *b)
{
    return bench_copy(&b->mount.memory, b->size, b->host, b->size) ? fail("copy", "the GPU failed")
                                                                   : 0;
}

static int run_once(struct bench *b, int (*run)(struct bench *b), struct bench_samples *rates)
{
    const struct bench_memory *m = run == readv_pinned ? &b->mount.pinned_memory : &b->mount.memory;
    int err = bench_poison(m, SEED);
    struct bench_cpu before = bench_cpu_now();
    double start = bench_seconds();

    if (!err)
        err = run(b);
    bench_add(rates, (double)b->size * 1e-9 / (bench_seconds() - start));
    if (run == readv_own)
        bench_cpu_add(&b->cpu, &before);
    return err || run == copy_all ? err : bench_verify(m, &b->pieces, PROGRAM);
}

static void drop_pieces(struct bench *b)
{
    for (size_t i = 0; b->own && i < b->batches; i++)
        gpunvme_pieces_free(b->mount.g, b->own[i]);
    free(b->own);
    free(b->copied);
    b->own = NULL;
    b->copied = NULL;
    bench_pieces_free(&b->pieces, b->mount.memory.on_gpu);
}

static int list_pieces(struct bench *b, uint64_t bytes)
{
    for (size_t i = 0; i < b->pieces.n; i++)
        b->copied[i] = (struct gpunvme_piece){
            .file_offset = b->pieces.places[i], .buffer_offset = i * bytes, .len = (uint32_t)bytes};
    for (size_t i = 0; i < b->batches; i++) {
        size_t n = batch_len(b, i);

        if (gpunvme_pieces_alloc(b->mount.g, n, &b->own[i]))
            return fail("pieces", gpunvme_error());
        memcpy(b->own[i], b->copied + i * b->batch, n * sizeof(b->copied[0]));
    }
    return 0;
}

static int new_pieces(struct bench *b, uint64_t bytes)
{
    uint64_t state = SEED;

    if (bench_pieces_make(&b->pieces, b->mount.memory.on_gpu, SEED, b->size, bytes, b->size,
                          &state))
        return fail("memory", "not enough of it");
    b->batches = (b->pieces.n + b->batch - 1) / b->batch;
    b->copied = calloc(b->pieces.n, sizeof(b->copied[0]));
    b->own = calloc(b->batches, sizeof(*b->own));
    if (!b->copied || !b->own)
        return fail("memory", "not enough of it");
    return list_pieces(b, bytes);
}

/* Outside of the timed part; the bytes are verified as well. */
static int check_results(const struct bench *b, bool own)
{
    int err = 0;

    for (size_t i = 0; i < b->batches && !err; i++)
        err = check_batch(own ? b->own[i] : b->copied + i * b->batch, batch_len(b, i),
                          b->pieces.bytes);
    return err;
}

static void report_cpu(struct bench *b, const char *whose, double seconds)
{
    struct bench_samples sample = {.n = 0};
    char name[64];

    snprintf(name, sizeof(name), "READV, %llu B: CPU of %s", (unsigned long long)b->pieces.bytes,
             whose);
    bench_add(&sample, seconds * 1e9 / ((double)b->pieces.n * b->repeats));
    bench_report_row(b->report, name, "ns/read", &sample, NULL);
}

static void report_costs(struct bench *b)
{
    report_cpu(b, "the application", b->cpu.self);
    if (bench_cpu_knows_daemon())
        report_cpu(b, "the daemon", b->cpu.daemon);
}

/* What a way is compared with: an earlier row, or NULL. */
static const char *base_of(const struct bench *b, const struct rates *r, char (*names)[64],
                           const char *bare, unsigned way)
{
    bool by_mount = way == OWN || way == COPIED || way == DIRECT;

    if (b->mount.pinned && bare[0] && by_mount)
        return bare;
    if (way > DIRECT_GATHER)
        return r->of[DIRECT_GATHER].n ? names[DIRECT_GATHER] : NULL;
    if (way == COPY || way == DIRECT_GATHER)
        return NULL;
    return way > GATHER && r->of[GATHER].n ? names[GATHER] : names[COPY];
}

static void report_rows(struct bench *b, uint64_t bytes, struct rates *r)
{
    static const char *const ways[WAYS] = {"plain copy",
                                           "gather kernel",
                                           "READV's traffic alone",
                                           "READV into pinned memory",
                                           "READV",
                                           "READV, pieces copied",
                                           "gather kernel, beside the direct path",
                                           "direct path's traffic alone",
                                           "direct path"};
    char names[WAYS][64], bare[64], what[32];

    snprintf(what, sizeof(what), "%llu B", (unsigned long long)bytes);
    bare_rows_report(&r->bare, b->report, what, NULL, bare, sizeof(bare));
    for (unsigned i = 0; i < WAYS; i++) {
        snprintf(names[i], sizeof(names[i]), "%s, %s", ways[i], what);
        if (r->of[i].n == 0)
            continue;
        bench_report_row(b->report, names[i], "GB/s", &r->of[i], base_of(b, r, names, bare, i));
        bench_report_point(b->report, "bytes of a read", ways[i], (double)bytes);
    }
}

/* The pieces on their way to the direct path's list, or their results on the way back. */
static int copy_list(struct bench *b, bool back)
{
    size_t bytes = b->pieces.n * sizeof(b->copied[0]);

    for (size_t i = 0; i < b->pieces.n && !back; i++)
        b->copied[i].result = INT32_MIN; /* none that a run brings */
    int err = back ? gpunvme_copy_out(b->list, 0, b->copied, bytes)
                   : gpunvme_copy_in(b->list, 0, b->copied, bytes);

    return err ? fail("pieces", gpunvme_error()) : 0;
}

#ifdef GPUNVME_HAVE_CUDA

static int run_bare(struct bench *b, struct rates *r)
{
    struct bare_loop *loop;
    void *at = b->mount.pinned ? b->mount.pinned_memory.addr : b->mount.memory.addr;
    int err = bare_loop_open(gpunvme_file_device(b->direct.file), &b->pieces, at,
                             b->mount.pinned ? BARE_ROOM : b->size, false, &loop);

    if (err)
        return fail("bare loop",
                    err == -ENOTSUP ? "a read takes several commands" : strerror(-err));
    err = bare_rows_time(&r->bare, PROGRAM, loop, b->lease.queues, b->size);
    bare_loop_close(loop);
    return err;
}

#endif

/* In turn with what the bus allows, and the controller, as before. */
static int run_direct(struct bench *b, struct rates *r)
{
    int err = 0;

    if (b->mount.memory.on_gpu)
        err = run_once(b, gather_all, &r->of[DIRECT_GATHER]);
    if (!err && b->mount.memory.on_gpu)
        err = run_once(b, traffic_of_direct, &r->of[DIRECT_TRAFFIC]);
#ifdef GPUNVME_HAVE_CUDA
    if (!err && b->mount.memory.on_gpu)
        (void)run_bare(b, r); /* without it the rows are missing, with a message */
#endif
    if (!err)
        err = copy_list(b, false);
    if (!err)
        err = run_once(b, readv_direct, &r->of[DIRECT]);
    if (!err)
        err = copy_list(b, true);
    return err ? err : check_results(b, false);
}

static int run_mount(struct bench *b, struct rates *r)
{
    int err = run_once(b, copy_all, &r->of[COPY]);

    if (!err && b->mount.memory.on_gpu)
        err = run_once(b, gather_all, &r->of[GATHER]);
    if (!err && b->mount.memory.on_gpu)
        err = run_once(b, traffic_of_readv, &r->of[TRAFFIC]);
    if (!err && b->mount.pinned)
        err = run_once(b, readv_pinned, &r->of[PINNED]);
    if (!err)
        err = run_once(b, readv_own, &r->of[OWN]);
    if (!err)
        err = check_results(b, true);
    if (!err)
        err = run_once(b, readv_copied, &r->of[COPIED]);
    return err ? err : check_results(b, false);
}

/* By READV, by the direct path, or in turn. */
static int measure(struct bench *b, uint64_t bytes, bool by_mount, bool direct)
{
    static struct rates rates;
    int err = new_pieces(b, bytes);

    if (!err && direct && gpunvme_alloc(b->mount.g, b->pieces.n * sizeof(b->copied[0]), &b->list))
        err = fail("pieces", gpunvme_error());
    for (unsigned i = 0; i < b->warm_ups + b->repeats && !err; i++) {
        if (i == 0 || i == b->warm_ups) {
            memset(&rates, 0, sizeof(rates));
            b->cpu = (struct bench_cpu){0};
        }
        if (by_mount)
            err = run_mount(b, &rates);
        if (!err && direct)
            err = run_direct(b, &rates);
    }
    if (!err)
        report_rows(b, bytes, &rates);
    if (!err && by_mount)
        report_costs(b);
    if (b->list)
        gpunvme_unregister(b->list);
    b->list = NULL;
    drop_pieces(b);
    return err;
}

static int measure_sizes(struct bench *b, bool by_mount, bool direct)
{
    int err = 0;

    for (size_t i = 0; i < sizeof(read_sizes) / sizeof(read_sizes[0]) && !err; i++) {
        if (read_sizes[i] >= b->mount.info.lba_size)
            err = measure(b, read_sizes[i], by_mount, direct);
    }
    return err;
}

static int measure_all_direct(struct bench *b, bool by_mount)
{
    int err = bench_direct_open_with(&b->direct, &b->mount, PROGRAM, b->file.fd, &b->lease);

    if (!err)
        err = measure_sizes(b, by_mount, true);
    bench_direct_close(&b->direct);
    return err;
}

static int measure_all(struct bench *b)
{
    bool in_turn = b->mount.pinned && b->mount.info.direct;
    int err = 0;

    b->report =
        bench_report_new(PROGRAM, b->json, b->mount.memory.on_gpu ? bench_gpu_name() : NULL);
    if (!b->report)
        return fail("memory", "not enough of it");
    bench_mount_describe(&b->mount, b->report);
    bench_report_number(b->report, "lba_size", b->mount.info.lba_size);
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "batch", (double)b->batch);
    bench_report_number(b->report, "seed", SEED);
    bench_report_number(b->report, "warm_ups", b->warm_ups);
    bench_report_number(b->report, "rounds", b->repeats);
    if (!in_turn)
        err = measure_sizes(b, true, false);
    if (!err && b->mount.info.direct)
        err = measure_all_direct(b, in_turn);
    if (err)
        bench_report_drop(b->report);
    else
        bench_report_end(b->report);
    return err;
}

static int set_up(struct bench *b, const char *dir)
{
    if (bench_mount_open(&b->mount, PROGRAM, dir, b->size))
        return -EIO;
    if (!b->mount.g)
        return fail(dir, "not on a gpunvmefs mount");
    b->host = bench_host_alloc(b->mount.memory.on_gpu, b->size);
    if (!b->host)
        return fail("memory", "not enough of it");
    if (b->mount.memory.on_gpu && bench_traffic_open(&b->traffic, b->size / read_sizes[0]))
        return fail("memory", "not enough of it");
    pattern_host_write(b->host, b->size, SEED, 0, false);
    return bench_file_make(&b->file, PROGRAM, dir, b->size, SEED);
}

static void tear_down(struct bench *b)
{
    if (b->host)
        bench_host_free(b->mount.memory.on_gpu, b->host);
    bench_traffic_close(&b->traffic);
    bench_file_close(&b->file);
    bench_mount_close(&b->mount);
}

static int parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:n:r:w:o:q:d:h")) != -1) {
        if (opt == 'n')
            b->batch = strtoul(optarg, NULL, 10);
        else if (opt == 'w')
            b->warm_ups = (unsigned)strtoul(optarg, NULL, 10);
        else if (!bench_lease_option(opt, &b->lease) &&
                 !bench_option(opt, &b->size, &b->repeats, &b->json))
            return 1;
    }
    return !bench_arguments_fit(argc, b->repeats) || b->size < UNIT || b->size % UNIT ||
           b->batch < 1 || b->batch > GPUNVME_PIECES_MAX;
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30,
                             .batch = 262144,
                             .repeats = 5,
                             .warm_ups = 1,
                             .lease = {.queues = 32, .depth = 256},
                             .file = {.fd = -1}};

    if (parse(argc, argv, &b)) {
        fputs("usage: readv_bench [-s MiB, a multiple of 16] [-n READS of a batch] [-r REPEATS]\n"
              "                   [-w ROUNDS that warm up] [-q QUEUES leased, -d of DEPTH] [-o "
              "json] DIRECTORY\n",
              stderr);
        return 2;
    }
    int err = set_up(&b, argv[optind]);

    if (!err)
        err = measure_all(&b);
    tear_down(&b);
    return err ? 1 : 0;
}
