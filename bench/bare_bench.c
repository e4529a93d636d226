/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures what the controller gives to warps that have prepared commands and queues of their own.
 *
 * The bare loop (bench/lib/bare_kernels.h) is the bound of the direct path, and on a mount that
 * stages data also of READ and WRITE. Rows with full queues bound long lists and files. Rows with
 * one command in flight for each warp bound kernels of few warps. Data goes to GPU memory. If it is
 * staged, it goes to 4 MiB of pinned memory, which stay in the caches of a software controller's
 * processors as staging does. With one command at a time, the warp copies the bytes to GPU memory.
 * Before each row of reads the same commands run once into memory for all of them, and every byte
 * is verified. After the writes the file is read back and verified. The program needs a GPU and -o
 * direct=.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bare_kernels.h"
#include "bench/lib/bench_mount.h"

#define PROGRAM     "bare_bench"
#define SEED        0x62617265u
#define UNIT        ((uint64_t)16 << 20) /* sizes are multiples of it */
#define ROOM        ((uint64_t)4 << 20)
#define SMALL       4096u
#define WRITE_PIECE 65536u
#define WARP_READS  4096u /* maximum commands of each warp that has one in flight */
#define QUEUE_STEPS 3u    /* all queues, half and a quarter of them */

static const uint64_t read_sizes[] = {512, 4096, 65536};
static const unsigned warp_counts[] = {1, 8, 16, 32, 128};

/* Returns the memory of the commands, which leased queues reach. It has b->size bytes. */
static const struct bench_memory *target_of(const struct bench *b)
{
    return b->mount.pinned ? &b->mount.pinned_memory : &b->mount.memory;
}

/* Returns the bytes of the target that are used in turn when queues are full. */
static uint64_t room_of(const struct bench *b)
{
    return b->mount.pinned && b->size > ROOM ? ROOM : b->size;
}

static int open_loop(struct bench *b, uint64_t room, bool is_write, struct bare_loop **loop)
{
    int err = bare_loop_open(leased_file_device(b->direct.file), &b->pieces, target_of(b)->addr,
                             room, is_write, loop);

    if (err)
        bench_fail("commands", err == -ENOTSUP ? "a piece takes several" : strerror(-err));
    return err;
}

/* Runs all pieces into memory for all of them, and verifies it. */
static int verify_reads(struct bench *b, unsigned queues)
{
    struct bare_loop *loop;
    double seconds;
    int err = bench_poison(target_of(b), SEED);

    if (!err)
        err = open_loop(b, b->size, false, &loop);
    if (err)
        return err;
    err = bare_loop_time(loop, queues, &seconds);
    bare_loop_close(loop);
    return err ? bench_fail("reads", "a command failed")
               : bench_verify(target_of(b), &b->pieces, PROGRAM);
}

/* --- Queues that are kept full --------------------------------------------------------------- */

static int measure_queues(struct bench *b, bool is_write, unsigned queues)
{
    struct bench_samples rates = {.n = 0};
    struct bare_loop *loop;
    char name[96];
    double seconds;
    int err = is_write ? 0 : verify_reads(b, queues);

    if (!err)
        err = open_loop(b, room_of(b), is_write, &loop);
    if (err)
        return err;
    for (unsigned i = 0; i < b->repeats && !err; i++) {
        err = bare_loop_time(loop, queues, &seconds);
        bench_add(&rates, (double)b->size * 1e-9 / seconds);
    }
    bare_loop_close(loop);
    if (err)
        return bench_fail(is_write ? "writes" : "reads", "a command failed");
    snprintf(name, sizeof(name), "%s of %llu B, %u queues", is_write ? "writes" : "reads",
             (unsigned long long)b->pieces.bytes, queues);
    bench_report_row(b->report, name, "GB/s", &rates, NULL);
    return 0;
}

static int measure_steps(struct bench *b, bool is_write)
{
    int err = 0;

    for (unsigned i = 0; i < QUEUE_STEPS && b->lease.queues >> i && !err; i++)
        err = measure_queues(b, is_write, b->lease.queues >> i);
    return err;
}

static int bare_measure_reads(struct bench *b)
{
    int err = 0;

    for (size_t i = 0; i < sizeof(read_sizes) / sizeof(read_sizes[0]) && !err; i++) {
        if (read_sizes[i] < b->mount.info.lba_size)
            continue;
        err = bench_pieces_make(&b->pieces, true, SEED, b->size, read_sizes[i], 0, b->size, true);
        if (!err)
            err = measure_steps(b, false);
    }
    return err;
}

/* Verifies that each part of the file, as long as the room, has the contents of the room. */
static int verify_writes(struct bench *b)
{
    int err = bench_pieces_make(&b->pieces, true, SEED, b->size, WRITE_PIECE, 0, room_of(b), false);

    if (!err)
        err = bench_poison(&b->mount.memory, SEED);
    if (!err && transfer_read(b->mount.buffer, b->file.fd, 0, 0, b->size, NULL) != (ssize_t)b->size)
        err = bench_fail("READ", gpunvme_error());
    return err ? err : bench_verify(&b->mount.memory, &b->pieces, PROGRAM);
}

static int bare_measure_writes(struct bench *b)
{
    int err = bench_fill(target_of(b), room_of(b), SEED);

    if (!err)
        err = bench_pieces_make(&b->pieces, true, SEED, b->size, WRITE_PIECE, 0, b->size, false);
    if (!err)
        err = measure_steps(b, true);
    return err ? err : verify_writes(b);
}

/* --- One command in flight a warp ------------------------------------------------------------ */

/* Takes samples with one number of warps. The first round warms up. */
static int sample_warps(struct bench *b, struct bare_loop *loop, unsigned warps, double *micros,
                        struct bench_samples *rates)
{
    void *on = b->mount.pinned ? b->mount.memory.addr : NULL;
    double seconds;
    int err = 0;

    for (unsigned i = 0; i <= b->repeats && !err; i++) {
        err = bench_poison(&b->mount.memory, SEED);
        if (!err)
            err = bare_loop_one_by_one(loop, warps, on, &seconds, micros);
        if (i > 0)
            bench_add(rates, (double)b->pieces.n * 1e-6 / seconds);
    }
    return err ? bench_fail("one command a warp", "a command failed")
               : bench_verify(&b->mount.memory, &b->pieces, PROGRAM);
}

/* Measures one number of warps. If data is staged, each warp has room for one read. */
static int bare_measure_warps(struct bench *b, unsigned warps)
{
    struct bench_samples rates = {.n = 0};
    uint64_t most = b->size / SMALL, n = (uint64_t)WARP_READS * warps;
    double *micros;
    struct bare_loop *loop;
    char name[64];
    int err;

    n = n < most ? n : most / warps * warps;
    err = bench_pieces_make(&b->pieces, true, SEED, n * SMALL, SMALL, 0, b->size, true);
    if (err)
        return err;
    micros = calloc(n, sizeof(*micros));
    err = micros ? open_loop(b, (b->mount.pinned ? warps : n) * SMALL, false, &loop) : -ENOMEM;
    if (!err) {
        err = sample_warps(b, loop, warps, micros, &rates);
        bare_loop_close(loop);
    }
    if (!err) {
        snprintf(name, sizeof(name), "one read of %u B in flight, %u warps", SMALL, warps);
        bench_report_row(b->report, name, "M/s", &rates, NULL);
        bench_report_point(b->report, "warps", "one read in flight", warps);
        snprintf(name, sizeof(name), "such a read, %u warps", warps);
        bench_report_values(b->report, name, "us", micros, n, NULL);
    }
    free(micros);
    return err;
}

static int measure_few_warps(struct bench *b)
{
    int err = 0;

    for (size_t i = 0; i < sizeof(warp_counts) / sizeof(warp_counts[0]) && !err; i++) {
        if (warp_counts[i] <= b->lease.queues)
            err = bare_measure_warps(b, warp_counts[i]);
    }
    return err;
}

/* --- The program ----------------------------------------------------------------------------- */

static int bare_measure(struct bench *b)
{
    int err = bench_direct_open(&b->direct, &b->mount, b->file.fd, &b->lease);

    if (!err)
        err = measure_few_warps(b);
    if (!err)
        err = bare_measure_reads(b);
    return err ? err : bare_measure_writes(b);
}

static int bare_set_up(struct bench *b)
{
    int err = bench_begin_direct(b, b->size);

    if (!err)
        err = bench_mount_open_pinned(&b->mount, b->size);
    if (err)
        return err;
    bench_report_number(b->report, "bytes", (double)b->size);
    return bench_file_make(&b->file, b->dir, b->size, SEED);
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30,
                             .seed = SEED,
                             .repeats = 5,
                             .lease = {.queues = 32, .depth = 256}};
    const struct bench_option options[] = {{'s', BENCH_MIB, &b.size, UNIT, BENCH_SIZE_MOST},
                                           BENCH_LEASE_OPTIONS(b),
                                           BENCH_REPORT_OPTIONS(b),
                                           {0}};

    if (!bench_parse(argc, argv, options, &b.dir))
        return bench_usage("[-s MiB, a multiple of 16] [-r REPEATS] [-o json]\n"
                           "                  [-q QUEUES leased, -d of DEPTH] DIRECTORY\n");
    int err = bare_set_up(&b);
    if (!err)
        err = bare_measure(&b);
    return bench_end(&b, err);
}
