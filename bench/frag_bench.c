/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What does fragmentation cost? Files whose pieces lie on the drive in random order, read whole by
 * the READ ioctl, in turn with a plain copy of the same size.
 *
 * The file system makes the fragments itself: a file is written piece by piece at random offsets,
 * so that each piece lands behind the one written before it. How many extents came of it, and how
 * many of them do not follow the one before, is asked of the mount and reported. Every byte is
 * verified, over poison.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"

#define PROGRAM "frag_bench"
#define SEED    0x66726167u
#define CHUNK   ((uint64_t)16 << 20) /* sizes are multiples of it */
#define SWEEP   "KiB a fragment, at random"

static const unsigned fragments_kib[] = {16, 64, 256, 1024, 4096};
#define FRAGMENTS (sizeof(fragments_kib) / sizeof(fragments_kib[0]))

struct bench {
    uint64_t size;
    unsigned repeats, only_kib;
    bool json;
    const char *dir;
    struct bench_mount mount;
    struct bench_stream stream; /* of CHUNK bytes: for the plain copy */
    struct pattern_pieces pieces;
    struct bench_report *report;
};

static int fail(const char *object, const char *what)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", object, what);
    return -EIO;
}

/* Numbers below n in random order, by Fisher and Yates; the caller frees them. */
static uint64_t *shuffled(uint64_t n)
{
    uint64_t *order = calloc(n, sizeof(*order));

    for (uint64_t i = 0; order && i < n; i++) {
        uint64_t k = pattern_word(SEED, i) % (i + 1);

        order[i] = order[k];
        order[k] = i;
    }
    return order;
}

static int write_piece(const struct bench_file *f, uint64_t at, uint64_t len)
{
    return bench_file_write(f, PROGRAM, at, len, SEED, at);
}

static int make_fragmented(struct bench *b, struct bench_file *f, uint64_t fragment)
{
    uint64_t n = b->size / fragment, *order = shuffled(n);
    int err = order ? bench_file_create(f, PROGRAM, b->dir) : -ENOMEM;

    for (uint64_t i = 0; i < n && !err; i++)
        err = write_piece(f, order[i] * fragment, fragment);
    if (!err && fsync(f->fd))
        err = fail(f->path, strerror(errno));
    free(order);
    return err;
}

struct layout {
    uint64_t extents;
    uint64_t jumps; /* extents that do not begin where the one before ends */
};

static int look_at_layout(const struct bench_file *f, struct layout *out)
{
    static struct gpunvme_extent found[GPUNVME_EXTENTS_MAX];
    uint64_t at = 0, device = UINT64_MAX;
    bool last = false;

    *out = (struct layout){.extents = 0};
    while (!last) {
        ssize_t n = gpunvme_extents(f->fd, at, found, GPUNVME_EXTENTS_MAX);

        if (n <= 0)
            return fail(f->path, n ? gpunvme_error() : "extents are missing");
        for (ssize_t i = 0; i < n; i++) {
            out->extents++;
            out->jumps += found[i].device != device;
            device = found[i].device + found[i].len;
        }
        at = found[n - 1].file_offset + found[n - 1].len;
        last = found[n - 1].flags & GPUNVME_EXTENT_LAST;
    }
    return 0;
}

static int time_copy(struct bench *b, struct bench_samples *out)
{
    double start = bench_seconds();
    int err = 0;

    for (uint64_t at = 0; at < b->size && !err; at += CHUNK)
        err = bench_stream_copy(&b->stream, &b->mount.memory, at, CHUNK);
    if (!err)
        err = bench_stream_wait(&b->stream);
    bench_add(out, (double)b->size * 1e-9 / (bench_seconds() - start));
    return err ? fail("plain copy", "the GPU failed") : 0;
}

static int time_read(struct bench *b, const struct bench_file *f, struct bench_samples *out)
{
    struct gpunvme_result result = {.path = 0};
    int err = bench_poison(&b->mount.memory, SEED);
    double start = bench_seconds();
    ssize_t n = err ? err : gpunvme_read(b->mount.buffer, f->fd, 0, 0, b->size, &result);

    bench_add(out, (double)b->size * 1e-9 / (bench_seconds() - start));
    if (n != (ssize_t)b->size || result.path != GPUNVME_PATH_GPU)
        return fail("READ", n < 0 ? gpunvme_error() : "short, or not by the GPU path");
    return bench_verify(&b->mount.memory, &b->pieces, PROGRAM);
}

static void report(struct bench *b, unsigned kib, const struct layout *l,
                   struct bench_samples *copies, struct bench_samples *reads)
{
    struct bench_samples extents = {.n = 0}, jumps = {.n = 0};
    char copy[64], name[64];

    snprintf(copy, sizeof(copy), "plain copy, %u KiB", kib);
    bench_report_row(b->report, copy, "GB/s", copies, NULL);
    bench_report_point(b->report, SWEEP, "plain copy", kib);
    snprintf(name, sizeof(name), "READ ioctl, %u KiB", kib);
    bench_report_row(b->report, name, "GB/s", reads, copy);
    bench_report_point(b->report, SWEEP, "READ ioctl", kib);
    bench_add(&extents, (double)l->extents);
    bench_add(&jumps, (double)l->jumps);
    snprintf(name, sizeof(name), "extents of the file, %u KiB", kib);
    bench_report_row(b->report, name, "", &extents, NULL);
    snprintf(name, sizeof(name), "not behind the one before, %u KiB", kib);
    bench_report_row(b->report, name, "", &jumps, NULL);
}

static int measure(struct bench *b, struct bench_file *f, unsigned kib)
{
    struct bench_samples copies = {.n = 0}, reads = {.n = 0};
    struct layout layout;
    int err = make_fragmented(b, f, (uint64_t)kib << 10);

    if (!err)
        err = look_at_layout(f, &layout);
    for (unsigned i = 0; i <= b->repeats && !err; i++) {
        if (i == 1) /* the first round warms up */
            copies.n = reads.n = 0;
        err = time_copy(b, &copies);
        if (!err)
            err = time_read(b, f, &reads);
    }
    if (!err)
        report(b, kib, &layout, &copies, &reads);
    return err;
}

static int measure_all(struct bench *b)
{
    int err = 0;

    for (size_t i = 0; i < FRAGMENTS && !err; i++) {
        struct bench_file f = {.fd = -1};

        if (b->only_kib && b->only_kib != fragments_kib[i])
            continue;
        err = measure(b, &f, fragments_kib[i]);
        bench_file_close(&f);
    }
    return err;
}

static int set_up(struct bench *b)
{
    uint64_t in_order = 0;
    int err = bench_mount_open(&b->mount, PROGRAM, b->dir, b->size);
    bool gpu = b->mount.memory.on_gpu;

    if (err)
        return err;
    if (!b->mount.g)
        return fail(b->dir, "is not on a mount of gpunvmefs");
    b->report = bench_report_new(PROGRAM, b->json, gpu ? bench_gpu_name() : NULL);
    if (!b->report || bench_stream_open(&b->stream, gpu, CHUNK) ||
        bench_pieces_make(&b->pieces, gpu, SEED, b->size, CHUNK, b->size, &in_order))
        return fail("memory", "not enough of it");
    bench_mount_describe(&b->mount, b->report);
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "seed", SEED);
    return 0;
}

static void tear_down(struct bench *b)
{
    bench_pieces_free(&b->pieces, b->mount.memory.on_gpu);
    bench_stream_close(&b->stream);
    bench_mount_close(&b->mount);
}

static bool is_swept(unsigned kib)
{
    for (size_t i = 0; i < FRAGMENTS; i++) {
        if (fragments_kib[i] == kib)
            return true;
    }
    return false;
}

static int parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:r:k:o:h")) != -1) {
        if (opt == 'k' && is_swept((unsigned)strtoul(optarg, NULL, 10)))
            b->only_kib = (unsigned)strtoul(optarg, NULL, 10);
        else if (!bench_option(opt, &b->size, &b->repeats, &b->json))
            return 1;
    }
    b->dir = argv[optind];
    return !bench_arguments_fit(argc, b->repeats) || b->size < CHUNK || b->size % CHUNK ||
           b->size > (uint64_t)1 << 40;
}

int main(int argc, char **argv)
{
    struct bench b = {.size = (uint64_t)1 << 30, .repeats = 5};
    int err, failed;

    if (parse(argc, argv, &b)) {
        fputs("usage: " PROGRAM " [-s MiB, a multiple of 16] [-r REPEATS] [-k KIB] [-o json]"
              " DIRECTORY\n"
              "  -k  only fragments of 16, 64, 256, 1024 or 4096 KiB\n",
              stderr);
        return 2;
    }
    err = set_up(&b);
    if (!err)
        err = measure_all(&b);
    failed = bench_report_close(b.report, err);
    tear_down(&b);
    return failed;
}
