/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures how fast one application thread moves the bytes of files to GPU memory and back.
 *
 * For one file it compares a pinned copy of the same size (the limit of the link), READ, the direct
 * path if the mount lends it (-o direct=) in a stream, for a host that waits and by blocks of a
 * kernel, the bounce pipeline of the library, and what people use today (-p). Then it compares a
 * copy to pinned memory, WRITE over data, and WRITE to a new file, whose blocks are allocated. It
 * reports the rates and the seconds of CPU for each GB.
 *
 * -f reads whole files whose fragments lie on the drive in random order. The file system creates
 * the fragments itself: a file is written piece by piece at random offsets, so that each piece
 * lands behind the one written before it. The extents are counted and reported.
 *
 * -n opens, reads and closes many files of one size one after the other, by READ and by read(2)
 * into pinned memory that is copied to the GPU while the next file is read.
 *
 * -c repeats this beside computing (bench/lib/computer.h) and reports what each costs the other.
 * The daemon is another process, so without MPS the GPU is time-sliced between READ and the
 * computing, while the kernels of the direct path belong to the application.
 *
 * All ways run in turn. Every byte is verified after each run, over poison, and written bytes are
 * read back. The first rounds (-w) warm up and are not counted. On a mount whose executor is the
 * CPU all memory is host memory. On other file systems only the ways of others exist. bare_bench
 * shows what the controller gives.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/computer.h"
#include "bench/lib/cpu.h"
#include "bench/lib/direct_kernels.h"
#include "bench/lib/peers.h"

#define PROGRAM         "file_bench"
#define SEED            0x6770756e766du
#define SEED_OVER       (SEED + 1)           /* seed of what is written over data */
#define UNIT            ((uint64_t)16 << 20) /* sizes are multiples of it */
#define MAX_WAYS        20u
#define COPY_BYTES      ((uint64_t)256 << 20) /* maximum of a pinned copy out */
#define SOME_BLOCKS     16u
#define DIRECTORY_FILES 1000u

static const unsigned fragments_kib[] = {16, 64, 256, 1024, 4096};

static const struct {
    unsigned kib, files; /* number of files, unless the memory is too small */
} many_sizes[] = {{4, 4000}, {64, 10000}, {256, 2000}, {1024, 1000}, {16384, 64}};

static struct {
    bool all_peers, computing, fragments, many;
    struct peer_job job;
    struct bench_computer computer;
    struct bench_file written;
    void *out; /* COPY_BYTES, pinned if there is a GPU */
    char dir[2048];
    uint64_t count, bytes; /* of the files of -n */
    uint64_t commands;
} files = {.written = {.fd = -1}};

enum kind { COPY, READ, COPY_OUT, WRITE_OVER, WRITE_NEW };

struct way {
    const char *name;
    enum kind kind;
    int (*run)(struct bench *b, const struct way *w); /* NULL for a peer */
    const struct peer *peer;
    uint32_t path;   /* of file_move() */
    uint64_t part;   /* of read_by_blocks(); 0: all bytes */
    unsigned blocks; /* of read_by_blocks() */
    int (*read_file)(struct bench *b, int fd, uint64_t i);
    struct bench_samples rates, computing;
    struct bench_cpu cpu; /* of all samples */
};

/* --- Ways to move one file ------------------------------------------------------------------- */

static int plain_copy(struct bench *b, const struct way *w)
{
    uint64_t size = b->pieces.n * b->pieces.bytes;
    int err = 0;

    (void)w;
    for (uint64_t at = 0; at < size && !err; at += PEER_CHUNK)
        err = bench_stream_copy(&files.job.streams[0], &b->mount.memory, at, PEER_CHUNK);
    return err ? err : bench_stream_wait(&files.job.streams[0]);
}

static int file_move(struct bench *b, const struct way *w)
{
    bool bounced = w->path == GPUNVME_PATH_BOUNCE;
    int err = bounced ? bench_mount_take_path(&b->mount, w->path) : 0, back = 0;

    if (!err)
        err = w->kind == READ ? bench_mount_read(&b->mount, b->file.fd, 0, 0, b->size, w->path,
                                                 bounced ? NULL : &files.commands)
                              : bench_mount_write(&b->mount, files.written.fd, b->size, w->path);
    if (bounced)
        back = bench_mount_take_path(&b->mount, GPUNVME_PATH_GPU);
    return err ? err : back;
}

static int file_read_direct(struct bench *b, const struct way *w)
{
    (void)w;
    return bench_direct_read(&b->direct, b->mount.memory.addr, b->size, 0);
}

static int read_waiting(struct bench *b, const struct way *w)
{
    (void)w;
    return bench_direct_read_wait(&b->direct, b->mount.memory.addr, b->size, 0);
}

#ifdef GPUNVME_HAVE_CUDA

static int read_by_blocks(struct bench *b, const struct way *w)
{
    int err = kernel_block_reads(leased_file_device(b->direct.file), b->mount.memory.addr, b->size,
                                 w->part ? w->part : b->size, w->blocks);

    return err ? bench_fail_with("gpunvme_pread_block", err) : 0;
}

#endif

static int copy_out(struct bench *b, const struct way *w)
{
    int err = 0;

    (void)w;
    for (uint64_t at = 0; at < b->size && !err; at += COPY_BYTES) {
        uint64_t left = b->size - at;

        err =
            buffer_copy_out(b->mount.buffer, at, files.out, left < COPY_BYTES ? left : COPY_BYTES);
    }
    return err ? bench_fail("copy", gpunvme_error()) : 0;
}

/* --- Ways to read many files ----------------------------------------------------------------- */

static void path_of(uint64_t i, char *path, size_t len)
{
    snprintf(path, len, "%s/%u/%u", files.dir, (unsigned)(i / DIRECTORY_FILES), (unsigned)i);
}

static int file_read_whole(struct bench *b, int fd, uint64_t i)
{
    return bench_mount_read(&b->mount, fd, i * files.bytes, 0, files.bytes, GPUNVME_PATH_GPU, NULL);
}

/* Copies one chunk to the GPU while the next one is read. */
static int read_and_copy(struct bench *b, int fd, uint64_t i)
{
    uint64_t at = 0;
    int err = 0;

    for (; at < files.bytes && !err; at += PEER_CHUNK) {
        struct bench_stream *stream = &files.job.streams[(i + at / PEER_CHUNK) % 2];
        uint64_t left = files.bytes - at, n = left < PEER_CHUNK ? left : PEER_CHUNK;

        err = bench_stream_wait(stream);
        if (!err && pread(fd, stream->buffer, n, (off_t)at) != (ssize_t)n)
            err = bench_fail_with("pread", -errno);
        if (!err)
            err = bench_stream_copy(stream, &b->mount.memory, i * files.bytes + at, n);
    }
    return err;
}

static int read_files(struct bench *b, const struct way *w)
{
    char path[4096];
    int err = 0;

    for (uint64_t i = 0; i < files.count && !err; i++) {
        path_of(i, path, sizeof(path));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return bench_fail_with(path, -errno);
        err = w->read_file(b, fd, i);
        close(fd);
    }
    for (unsigned i = 0; i < 2 && !err; i++)
        err = bench_stream_wait(&files.job.streams[i]);
    return err;
}

/* --- Samples --------------------------------------------------------------------------------- */

static int prepare(struct bench *b, const struct way *w)
{
    switch (w->kind) {
    case WRITE_NEW:
        if (ftruncate(files.written.fd, 0))
            return bench_fail_with(files.written.path, -errno);
        return bench_fill(&b->mount.memory, b->size, SEED);
    case WRITE_OVER:
        return bench_fill(&b->mount.memory, b->size, SEED_OVER);
    default:
        return bench_poison(&b->mount.memory, SEED);
    }
}

/* Verifies what a READ has stored, or what a WRITE has put into the file. */
static int file_verify(struct bench *b, const struct way *w)
{
    struct pattern_pieces want = b->pieces;
    int err = 0;

    if (w->kind == COPY || w->kind == COPY_OUT)
        return 0;
    if (w->kind != READ) {
        want.seed = w->kind == WRITE_OVER ? SEED_OVER : SEED;
        err = bench_poison(&b->mount.memory, want.seed);
        if (!err)
            err = bench_mount_read(&b->mount, files.written.fd, 0, 0, b->size, GPUNVME_PATH_GPU,
                                   NULL);
    }
    return err ? err : bench_verify(&b->mount.memory, &want, w->name);
}

static int file_sample(struct bench *b, struct way *w)
{
    uint64_t bytes = b->pieces.n * b->pieces.bytes;
    double count = files.many ? (double)files.count : (double)bytes * 1e-9;
    int err = prepare(b, w), end;

    if (!err)
        err = bench_computer_start(&files.computer);
    if (err)
        return err;
    struct bench_cpu before = bench_cpu_now();
    double start = bench_seconds();
    err = w->peer ? w->peer->run(&files.job, w->peer->threads) : w->run(b, w);
    bench_add(&w->rates, count / (bench_seconds() - start));
    bench_cpu_add(&w->cpu, &before);
    end = bench_computer_stop(&files.computer, &w->computing);
    err = err ? err : end;
    return err ? bench_fail_with(w->name, err) : file_verify(b, w);
}

static int measure_ways(struct bench *b, struct way *ways, unsigned n)
{
    int err = 0;

    for (unsigned i = 0; i < b->warm_ups + b->repeats && !err; i++) {
        for (unsigned k = 0; k < n && !err; k++) {
            if (i == b->warm_ups) {
                ways[k].rates.n = ways[k].computing.n = 0;
                ways[k].cpu = (struct bench_cpu){.self = 0};
            }
            err = file_sample(b, &ways[k]);
        }
    }
    return err;
}

static int file_new_pieces(struct bench *b, uint64_t len, uint64_t bytes)
{
    return bench_pieces_make(&b->pieces, b->mount.memory.on_gpu, SEED, len, bytes, 0, len, false);
}

/* --- One file -------------------------------------------------------------------------------- */

static unsigned add_ways(struct way *ways, const struct way *more, unsigned n)
{
    memcpy(ways, more, n * sizeof(*more));
    return n;
}

static unsigned list_reads(const struct bench *b, struct way *ways)
{
    static const struct way on_mount[] = {
        {"READ ioctl", READ, file_move, .path = GPUNVME_PATH_GPU},
        {"bounce pipeline of the library", READ, file_move, .path = GPUNVME_PATH_BOUNCE},
    };
    static const struct way direct[] = {
        {.name = "direct path", .kind = READ, .run = file_read_direct},
        {.name = "direct path, waiting host", .kind = READ, .run = read_waiting},
#ifdef GPUNVME_HAVE_CUDA
        {"a block, direct path", READ, read_by_blocks, .blocks = 1},
        {"a block, 1 MiB at a time", READ, read_by_blocks, .part = 1u << 20, .blocks = 1},
        {"16 blocks, 64 KiB at a time", READ, read_by_blocks, .part = 65536, .blocks = SOME_BLOCKS},
#endif
    };
    unsigned n = add_ways(ways, &(struct way){.name = "plain copy", .run = plain_copy}, 1);

    if (b->mount.g)
        n += add_ways(&ways[n], on_mount, 2);
    if (b->direct.file)
        n += add_ways(&ways[n], direct,
                      b->mount.memory.on_gpu ? sizeof(direct) / sizeof(direct[0]) : 2);
    for (const struct peer *p = peers; p->name; p++) {
        if (files.all_peers || p == peers)
            ways[n++] = (struct way){.name = p->name, .kind = READ, .peer = p};
    }
    return n;
}

static void file_report_cpu(struct bench *b, const char *way, const char *whose, double seconds)
{
    double value = seconds / ((double)b->size * 1e-9 * b->repeats);
    char name[128];

    snprintf(name, sizeof(name), "%s: CPU of %s", way, whose);
    bench_report_values(b->report, name, "s/GB", &value, 1, NULL);
}

/* Reports the ways; the first one is the bound. Seconds of CPU for a GB are cores for each GB/s. */
static void report_ways(struct bench *b, struct way *ways, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        bench_report_row(b->report, ways[i].name, "GB/s", &ways[i].rates, i ? ways[0].name : NULL);
    for (unsigned i = 1; i < n; i++) {
        bench_computer_report(b->report, ways[i].name, &ways[i].computing);
        file_report_cpu(b, ways[i].name, "the application", ways[i].cpu.self);
        if (b->mount.g && bench_cpu_knows_daemon()) {
            file_report_cpu(b, ways[i].name, "the daemon", ways[i].cpu.daemon);
            file_report_cpu(b, ways[i].name, "the simulated drive", ways[i].cpu.drive);
        }
    }
}

/*
 * Measures writes. The lease ends before, because writes to a leased file would have to revoke it.
 */
static int file_measure_writes(struct bench *b)
{
    static struct way ways[] = {
        {.name = "copy to pinned memory", .kind = COPY_OUT, .run = copy_out},
        {"WRITE ioctl, new file", WRITE_NEW, file_move, .path = GPUNVME_PATH_GPU},
        {"WRITE ioctl, over", WRITE_OVER, file_move, .path = GPUNVME_PATH_GPU},
        {"bounced WRITE, over", WRITE_OVER, file_move, .path = GPUNVME_PATH_BOUNCE},
    };
    int err = 0;

    bench_direct_close(&b->direct);
    files.out = bench_host_alloc(b->mount.memory.on_gpu, COPY_BYTES);
    if (!files.out)
        return bench_fail("memory", "not enough of it");
    err = bench_file_create(&files.written, b->dir);
    if (!err)
        err = measure_ways(b, ways, 4);
    if (!err)
        report_ways(b, ways, 4);
    return err;
}

static int measure_one(struct bench *b)
{
    static struct way ways[MAX_WAYS];
    unsigned n;
    int err = bench_file_make(&b->file, b->dir, b->size, SEED);

    files.job.fd = b->file.fd;
    if (!err && b->mount.g && b->mount.info.direct)
        err = bench_direct_open(&b->direct, &b->mount, b->file.fd, NULL);
    if (!err)
        err = file_new_pieces(b, b->size, UNIT);
    if (err)
        return err;
    n = list_reads(b, ways);
    err = measure_ways(b, ways, n);
    if (err)
        return err;
    bench_report_number(b->report, "commands", (double)files.commands);
    report_ways(b, ways, n);
    return b->mount.g ? file_measure_writes(b) : 0;
}

/* --- Fragments ------------------------------------------------------------------------------- */

/* Returns the numbers below n in random order (Fisher and Yates). The caller frees them. */
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

static int make_fragmented(struct bench *b, uint64_t fragment)
{
    uint64_t n = b->size / fragment, *order = shuffled(n);
    int err = order ? bench_file_create(&b->file, b->dir) : -ENOMEM;

    for (uint64_t i = 0; i < n && !err; i++)
        err = bench_file_write(&b->file, order[i] * fragment, fragment, SEED, order[i] * fragment);
    free(order);
    return err ? err : bench_file_seal(&b->file);
}

/*
 * Counts the extents of the file. *jumps counts those that do not begin where the previous one
 * ends.
 */
static int count_extents(const struct bench_file *f, uint64_t *extents, uint64_t *jumps)
{
    static struct gpunvme_extent found[GPUNVME_EXTENTS_MAX];
    uint64_t at = 0, device = UINT64_MAX;
    bool last = false;

    *extents = *jumps = 0;
    while (!last) {
        ssize_t n = gpunvme_extents(f->fd, at, found, GPUNVME_EXTENTS_MAX);

        if (n <= 0)
            return bench_fail(f->path, n ? gpunvme_error() : "extents are missing");
        for (ssize_t i = 0; i < n; i++) {
            *jumps += found[i].device != device;
            device = found[i].device + found[i].len;
        }
        *extents += (uint64_t)n;
        at = found[n - 1].file_offset + found[n - 1].len;
        last = found[n - 1].flags & GPUNVME_EXTENT_LAST;
    }
    return 0;
}

/* Reports the points of a sweep at x. The first way is the bound. */
static void report_points(struct bench *b, struct way *ways, unsigned n, const char *sweep,
                          const char *unit, unsigned x)
{
    char bound[128], name[128];

    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s, %u %s", ways[i].name, x, sweep);
        bench_report_row(b->report, name, unit, &ways[i].rates, i ? bound : NULL);
        bench_report_point(b->report, sweep, ways[i].name, x);
        if (i == 0)
            snprintf(bound, sizeof(bound), "%s", name);
    }
}

static int measure_fragments(struct bench *b, unsigned kib)
{
    struct way ways[] = {{.name = "plain copy", .run = plain_copy},
                         {"READ ioctl", READ, file_move, .path = GPUNVME_PATH_GPU}};
    uint64_t extents, jumps;
    char key[64];
    int err = make_fragmented(b, (uint64_t)kib << 10);

    if (!err)
        err = count_extents(&b->file, &extents, &jumps);
    if (!err)
        err = file_new_pieces(b, b->size, UNIT);
    if (!err)
        err = measure_ways(b, ways, 2);
    bench_file_close(&b->file);
    if (err)
        return err;
    report_points(b, ways, 2, "KiB a fragment", "GB/s", kib);
    snprintf(key, sizeof(key), "extents_%u_kib", kib);
    bench_report_number(b->report, key, (double)extents);
    snprintf(key, sizeof(key), "not_behind_the_one_before_%u_kib", kib);
    bench_report_number(b->report, key, (double)jumps);
    return 0;
}

/* --- Many files ------------------------------------------------------------------------------ */

static int file_make_file(uint64_t i)
{
    struct bench_file f = {.fd = -1};
    int err;

    path_of(i, f.path, sizeof(f.path));
    if (i % DIRECTORY_FILES == 0) {
        char *name = strrchr(f.path, '/');

        *name = '\0';
        if (mkdir(f.path, 0700))
            return bench_fail_with(f.path, -errno);
        *name = '/';
    }
    f.fd = open(f.path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (f.fd < 0)
        return bench_fail_with(f.path, -errno);
    err = bench_file_write(&f, 0, files.bytes, SEED, i * files.bytes);
    close(f.fd);
    return err;
}

static void remove_files(void)
{
    char path[4096];

    for (uint64_t i = 0; i < files.count; i++) {
        path_of(i, path, sizeof(path));
        unlink(path);
        if ((i + 1) % DIRECTORY_FILES == 0 || i + 1 == files.count) {
            *strrchr(path, '/') = '\0';
            rmdir(path);
        }
    }
}

static int measure_many(struct bench *b, unsigned kib, unsigned most)
{
    struct way ways[] = {{"pread + pinned", READ, read_files, .read_file = read_and_copy},
                         {"READ ioctl", READ, read_files, .read_file = file_read_whole}};
    uint64_t fit = (b->size >> 10) / kib;
    int err = 0;

    files.bytes = (uint64_t)kib << 10;
    files.count = fit < most ? fit : most;
    for (uint64_t i = 0; i < files.count && !err; i++)
        err = file_make_file(i);
    sync();
    if (!err)
        err = file_new_pieces(b, files.count * files.bytes, files.bytes);
    if (!err)
        err = measure_ways(b, ways, 2);
    remove_files();
    if (!err)
        report_points(b, ways, 2, "KiB a file", "files/s", kib);
    return err;
}

/* --- The program ----------------------------------------------------------------------------- */

static int file_measure(struct bench *b)
{
    int err = 0;

    if (!files.fragments && !files.many)
        return measure_one(b);
    if (!b->mount.g)
        return bench_fail(b->dir, "not on a gpunvmefs mount");
    for (size_t i = 0; files.fragments && i < sizeof(fragments_kib) / sizeof(unsigned) && !err; i++)
        err = measure_fragments(b, fragments_kib[i]);
    if (files.fragments)
        return err;
    snprintf(files.dir, sizeof(files.dir), "%s/" PROGRAM ".XXXXXX", b->dir);
    if (!mkdtemp(files.dir))
        return bench_fail_with(b->dir, -errno);
    for (size_t i = 0; i < sizeof(many_sizes) / sizeof(many_sizes[0]) && !err; i++)
        err = measure_many(b, many_sizes[i].kib, many_sizes[i].files);
    rmdir(files.dir);
    return err;
}

static int file_set_up(struct bench *b)
{
    int err = bench_begin(b, b->size);

    if (err)
        return err;
    files.job.to = &b->mount.memory;
    files.job.size = b->size;
    if (peers_open(&files.job))
        return bench_fail("memory", "not enough of it");
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "warm_ups", b->warm_ups);
    bench_report_number(b->report, "rounds", b->repeats);
    if (!files.computing)
        return 0;
    bench_report_text(b->report, "beside computing",
                      bench_computer_sharing(b->mount.memory.on_gpu));
    return bench_computer_open(&files.computer, b->mount.memory.on_gpu);
}

static void file_tear_down(struct bench *b)
{
    peers_close(&files.job);
    bench_computer_close(&files.computer);
    bench_host_free(b->mount.memory.on_gpu, files.out);
    bench_file_close(&files.written);
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30, .seed = SEED, .repeats = 5, .warm_ups = 1};
    const struct bench_option options[] = {{'s', BENCH_MIB, &b.size, UNIT, BENCH_SIZE_MOST},
                                           {'w', BENCH_UNSIGNED, &b.warm_ups, 0, UINT32_MAX},
                                           {'c', BENCH_FLAG, &files.computing, 0, 0},
                                           {'p', BENCH_FLAG, &files.all_peers, 0, 0},
                                           {'f', BENCH_FLAG, &files.fragments, 0, 0},
                                           {'n', BENCH_FLAG, &files.many, 0, 0},
                                           BENCH_REPORT_OPTIONS(b),
                                           {0}};

    if (!bench_parse(argc, argv, options, &b.dir))
        return bench_usage("[-s MiB, a multiple of 16] [-r REPEATS] [-w ROUNDS] [-c] [-p]\n"
                           "                  [-f | -n] [-o json] DIRECTORY\n"
                           "  -w  rounds that warm up and are not counted\n"
                           "  -c  beside computing\n"
                           "  -p  all ways that people read today, not only pread with one thread\n"
                           "  -f  fragmented files instead of one in order\n"
                           "  -n  many files of one size instead of one; -s is the bytes of all\n");
    int err = file_set_up(&b);
    if (!err)
        err = file_measure(&b);
    file_tear_down(&b);
    return bench_end(&b, err);
}
