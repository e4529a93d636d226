/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What do checksums of data cost?
 *
 * The core library in this process, without FUSE, over two files in memory, one formatted with
 * checksums. In turn on each: a new file is written, read, overwritten in place and removed.
 * Everything read is compared with the pattern that was written. Measured is the CPU time of the
 * calling thread, which also copies the data: other load on the machine counts little.
 *
 * Then what READ and WRITE by a GPU ask of the file system: the map of a file of one length, and
 * its checksums. The data is moved beside it and compared; its time is not counted.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench/lib/bench_report.h"
#include "bench/lib/pattern.h"
#include "fusefs/core/ffs.h"
#include "layout/layout.h"
#include "mkfs/mkfs_core.h"

#define PROGRAM "csum_bench"
#define SEED    0x6373u
#define SMALL   4096u
#define LARGE   (1u << 20)
#define PASSES  6u
#define STEPS   5u
#define BLOCK   4096u

static const struct pass {
    const char *name;
    uint32_t piece;
    bool write, random;
} passes[PASSES] = {
    {"write a new file, 1 MiB", LARGE, true, false},
    {"read, 1 MiB", LARGE, false, false},
    {"read, 4 KiB at random", SMALL, false, true},
    {"overwrite, 1 MiB", LARGE, true, false},
    {"overwrite, 4 KiB at random", SMALL, true, true},
    {"overwrite the same 4 KiB again", SMALL, true, true},
};

/* Of maps. */
static const struct step {
    const char *name;
    bool write;
} steps[STEPS] = {{"map of a WRITE, new", true},
                  {"map and checksums of a READ", false},
                  {"map of a WRITE, over", true},
                  {"map of a WRITE, over what waits", true},
                  {"map and checksums of a READ, which wait", false}};

struct volume {
    const char *name;
    struct bd_dev *dev;
    struct ffs *fs;
    struct ffs_inode *root;
    struct bench_samples samples[PASSES];
    struct bench_samples steps[STEPS];
};

struct bench {
    uint64_t size; /* of the file */
    unsigned repeats;
    bool json;
    uint8_t *buf;   /* LARGE */
    uint8_t *data;  /* the file of maps, */
    uint32_t *sums; /* its checksums, */
    uint32_t *got;  /* and those that the file system has */
    struct volume volumes[2];
};

static int fail(const char *object, int err)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", object, strerror(-err));
    return err;
}

/* A sparse file in memory without a name. */
static int open_volume(struct volume *v, uint64_t bytes, bool data_csum)
{
    char path[] = "/dev/shm/gpunvme-csum-bench-XXXXXX", why[256] = "";
    struct mkfs_params params = {.uuid = "csum-bench-fs-u", .data_csum = data_csum};
    struct ffs_mount_opts opts = {.commit_ms = 0};
    struct mkfs_plan plan;
    int fd = mkstemp(path);
    int err = fd < 0 || ftruncate(fd, (off_t)bytes) ? -errno : 0;

    if (!err)
        err = bd_file_open(path, BD_OPEN_EXCLUSIVE, SMALL, &v->dev);
    if (fd >= 0) {
        unlink(path);
        close(fd);
    }
    if (!err)
        err = mkfs_format(v->dev, &params, &plan);
    if (!err)
        err = ffs_mount(v->dev, &opts, &v->fs, why, sizeof(why));
    if (!err)
        err = ffs_iget(v->fs, 1, &v->root);
    return err ? fail(why[0] ? why : path, err) : 0;
}

static int close_volume(struct volume *v)
{
    if (v->root)
        ffs_iput(v->root, 1);
    int err = v->fs ? ffs_unmount(v->fs) : 0;
    if (v->dev)
        bd_close(v->dev);
    return err ? fail("unmount", err) : 0;
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* One transfer of the file's pattern; *seconds grows by the time of the transfer alone. */
static int move(struct bench *b, const struct pass *p, struct ffs_inode *file, uint64_t at,
                double *seconds)
{
    struct pattern_pieces want = {.seed = SEED, .bytes = p->piece, .n = 1, .places = &at};

    pattern_host_write(b->buf, p->piece, SEED, at, !p->write);
    double start = cpu_seconds();
    ssize_t n =
        p->write ? ffs_write(file, at, b->buf, p->piece) : ffs_read(file, at, b->buf, p->piece);
    *seconds += cpu_seconds() - start;
    if (n != (ssize_t)p->piece)
        return n < 0 ? (int)n : -EIO;
    return !p->write && pattern_host_count_wrong(b->buf, &want) ? -EBADMSG : 0;
}

static int run_pass(struct bench *b, struct volume *v, unsigned number, struct ffs_inode *file)
{
    const struct pass *p = &passes[number];
    uint64_t pieces = p->random ? b->size / LARGE * 16 : b->size / LARGE;
    double seconds = 0;
    int err = 0;

    for (uint64_t i = 0; i < pieces && !err; i++) {
        uint64_t place = p->random ? pattern_word(SEED, i) % (b->size / SMALL) * SMALL : i * LARGE;
        err = move(b, p, file, place, &seconds);
    }
    bench_add(&v->samples[number], seconds / (double)pieces * 1e6);
    return err;
}

static int run_file(struct bench *b, struct volume *v)
{
    static const struct ffs_cred user = {0, 0, 0};
    struct ffs_inode *file;
    int err = ffs_mknod(v->root, "file", S_IFREG | 0644, 0, &user, &file);

    if (err)
        return fail("create", err);
    for (unsigned i = 0; i < PASSES && !err; i++)
        err = run_pass(b, v, i, file);
    ffs_iput(file, 1);
    if (!err)
        err = ffs_unlink(v->root, "file");
    if (!err)
        err = ffs_sync(v->fs);
    return err ? fail(v->name, err) : 0;
}

static int move_mapped(struct bench *b, struct volume *v, const struct ffs_map *map, bool write)
{
    int err = 0;

    for (size_t i = 0; i < map->count && !err; i++) {
        const struct ffs_segment *s = &map->segments[i];

        if (write)
            err = bd_write(v->dev, s->device, b->data + s->offset, s->len, 0);
        else
            err = bd_read(v->dev, s->device, b->data + s->offset, s->len);
    }
    return err;
}

/* As transfer_gpu_write(). */
static int write_mapped(struct bench *b, struct volume *v, struct ffs_inode *file, unsigned step)
{
    struct ffs_map map;
    double start = cpu_seconds();
    int err = ffs_map_write(file, 0, b->size, &map);
    double seconds = cpu_seconds() - start;

    if (err)
        return err;
    pattern_host_write(b->data, b->size, SEED + step, 0, false);
    for (uint64_t i = 0; i < b->size / BLOCK; i++)
        b->sums[i] = lay_data_sum(b->data + i * BLOCK);
    err = move_mapped(b, v, &map, true);
    start = cpu_seconds();
    int end = ffs_map_write_end_sums(&map, err ? 0 : b->size, b->sums);
    bench_add(&v->steps[step], (seconds + cpu_seconds() - start) * 1e6);
    return err ? err : end;
}

/* As transfer_gpu_read(), of what the step before wrote. */
static int read_mapped(struct bench *b, struct volume *v, struct ffs_inode *file, unsigned step)
{
    uint64_t n = b->size / BLOCK, place = 0;
    struct pattern_pieces want = {
        .seed = SEED + step - 1, .bytes = b->size, .n = 1, .places = &place};
    struct ffs_map map;
    double start = cpu_seconds();
    int err = ffs_map_read(file, 0, b->size, &map);
    double seconds = cpu_seconds() - start;

    if (err)
        return err;
    err = move_mapped(b, v, &map, false);
    start = cpu_seconds();
    ffs_map_release(&map);
    if (!err)
        err = ffs_file_sums(file, 0, n, b->got);
    bench_add(&v->steps[step], (seconds + cpu_seconds() - start) * 1e6);
    if (pattern_host_count_wrong(b->data, &want))
        return -EBADMSG;
    bool has_sums = v == &b->volumes[1];
    return err || !has_sums || memcmp(b->got, b->sums, n * sizeof(*b->got)) == 0 ? err : -EBADMSG;
}

static int run_maps(struct bench *b, struct volume *v)
{
    static const struct ffs_cred user = {0, 0, 0};
    struct ffs_inode *file;
    int err = ffs_mknod(v->root, "map", S_IFREG | 0644, 0, &user, &file);

    if (err)
        return fail("create", err);
    for (unsigned i = 0; i < STEPS && !err; i++)
        err = steps[i].write ? write_mapped(b, v, file, i) : read_mapped(b, v, file, i);
    ffs_iput(file, 1);
    if (!err)
        err = ffs_unlink(v->root, "map");
    if (!err)
        err = ffs_sync(v->fs);
    return err ? fail(v->name, err) : 0;
}

static void report_steps(struct bench *b, struct bench_report *r)
{
    char name[2][96];

    for (unsigned i = 0; i < STEPS; i++) {
        for (unsigned k = 0; k < 2; k++) {
            struct volume *v = &b->volumes[k];
            snprintf(name[k], sizeof(name[k]), "%s, %s", steps[i].name, v->name);
            bench_report_row(r, name[k], "us", &v->steps[i], k ? name[0] : NULL);
        }
    }
}

static void report(struct bench *b)
{
    struct bench_report *r = bench_report_new(PROGRAM, b->json, NULL);
    char name[2][96];

    if (!r)
        return;
    bench_report_number(r, "file_bytes", (double)b->size);
    for (unsigned i = 0; i < PASSES; i++) {
        for (unsigned k = 0; k < 2; k++) {
            struct volume *v = &b->volumes[k];
            snprintf(name[k], sizeof(name[k]), "%s, %s", passes[i].name, v->name);
            bench_report_row(r, name[k], "us", &v->samples[i], k ? name[0] : NULL);
        }
    }
    report_steps(b, r);
    bench_report_end(r);
}

static bool alloc_memory(struct bench *b)
{
    uint64_t n = b->size / BLOCK;

    b->buf = aligned_alloc(SMALL, LARGE);
    b->data = aligned_alloc(SMALL, b->size);
    b->sums = calloc(n, sizeof(*b->sums));
    b->got = calloc(n, sizeof(*b->got));
    return b->buf && b->data && b->sums && b->got;
}

static void free_memory(struct bench *b)
{
    free(b->buf);
    free(b->data);
    free(b->sums);
    free(b->got);
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = 128u << 20,
                             .repeats = 7,
                             .volumes = {{.name = "without"}, {.name = "with checksums"}}};
    int opt, err = 0;

    while ((opt = getopt(argc, argv, "s:r:o:")) != -1) {
        if (!bench_option(opt, &b.size, &b.repeats, &b.json)) {
            fputs("usage: " PROGRAM " [-s MiB] [-r REPEATS] [-o json]\n", stderr);
            return 2;
        }
    }
    if (!alloc_memory(&b))
        return 1;
    for (unsigned k = 0; k < 2 && !err; k++)
        err = open_volume(&b.volumes[k], 2 * b.size + (64u << 20), k == 1);
    for (unsigned i = 0; i < b.repeats && !err; i++) {
        for (unsigned k = 0; k < 2 && !err; k++)
            err = run_file(&b, &b.volumes[k]);
        for (unsigned k = 0; k < 2 && !err; k++)
            err = run_maps(&b, &b.volumes[k]);
    }
    for (unsigned k = 0; k < 2; k++) {
        int end = close_volume(&b.volumes[k]);
        err = err ? err : end;
    }
    if (!err)
        report(&b);
    free_memory(&b);
    return err ? 1 : 0;
}
