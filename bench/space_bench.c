/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Costs of a large file system that is nearly full, for its callers.
 *
 * The core library in this process, without FUSE, over a sparse file. mkfs makes it, and its
 * bitmaps are overwritten: one block in a thousand is free, spread evenly, at the end, or at the
 * end without hints. Then one thread writes new files while another one asks for attributes.
 * Milliseconds: the slowest call of each thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/lib/bench_report.h"
#include "fusefs/core/ffs.h"
#include "layout/layout.h"
#include "mkfs/mkfs_core.h"

#define PROGRAM "space_bench"
#define CHUNK   256u /* bitmaps written at a time */
#define FILES   2000u
#define MOST    65536u /* TiB */

enum where { SPREAD, AT_THE_END, WITHOUT_HINTS };
static const char *const names[] = {"spread", "at the end", "at the end, no hints"};

struct bench {
    uint64_t bytes;
    bool json;
    const char *dir;
    int fd;
    struct bd_dev *dev;
    struct mkfs_plan plan;
    struct ffs *fs;
    struct ffs_inode *root;
    _Atomic bool stop;
    double slowest_stat; /* s, of the other thread */
    struct bench_report *report;
};

static int fail(const char *object, int err)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", object, strerror(-err));
    return err;
}

static const struct ffs_cred root_user = {0, 0, 0};

/* --- An image that is nearly full ------------------------------------------------------------- */

static int open_image(struct bench *b)
{
    char path[256];
    int err = 0;

    snprintf(path, sizeof(path), "%s/gpunvme-space-bench-XXXXXX", b->dir);
    b->fd = mkstemp(path);
    if (b->fd < 0)
        return fail(path, -errno);
    if (ftruncate(b->fd, (off_t)b->bytes))
        err = -errno;
    if (!err)
        err = bd_file_open(path, BD_OPEN_EXCLUSIVE, LAY_BLOCK_SIZE, &b->dev);
    unlink(path);
    return err ? fail(path, err) : 0;
}

/* Blocks of a group that stay free. */
static uint32_t room(const struct bench *b, uint64_t group, enum where where)
{
    uint64_t groups = lay_groups(&b->plan.geo);

    if (where == SPREAD)
        return group == 0 || group + 1 == groups ? 0 : LAY_GROUP_BLOCKS / 1000;
    return group >= groups - groups / 1000 - 1 && group + 1 < groups ? LAY_GROUP_BLOCKS : 0;
}

static void fill(const struct bench *b, struct lay_bitmap *bm, uint64_t group, enum where where)
{
    uint32_t left = room(b, group, where);
    bool fixed = lay_get32(bm->free) != LAY_GROUP_BLOCKS;

    if (fixed && where != SPREAD)
        left = 0;
    for (uint32_t i = 0; i < sizeof(bm->bits); i++) {
        uint32_t gap = left ? LAY_GROUP_BLOCKS / left : 0;
        bool keep = left == LAY_GROUP_BLOCKS || (gap && i % (gap / 8) == 0);
        bm->bits[i] |= keep ? left == LAY_GROUP_BLOCKS ? 0 : 0xfe : 0xff;
    }
    uint32_t free_bits = 0;
    for (uint32_t i = 0; i < sizeof(bm->bits); i++)
        free_bits += 8 - (uint32_t)__builtin_popcount(bm->bits[i]);
    bm->free = lay_put32(free_bits);
    lay_seal(bm, 0);
}

static uint8_t hint_of(uint64_t blocks)
{
    return (uint8_t)(blocks == 0 ? 1 : 65 - __builtin_clzll(blocks));
}

/* Free blocks of each section are added to `sections`. */
static int fill_bitmaps(struct bench *b, enum where where, uint64_t *sections)
{
    const struct lay_geometry *geo = &b->plan.geo;
    struct lay_bitmap *buf = aligned_alloc(LAY_BLOCK_SIZE, CHUNK * sizeof(*buf));
    int err = buf ? 0 : -ENOMEM;

    for (uint64_t g = 0; g < lay_groups(geo) && !err; g += CHUNK) {
        uint64_t left = lay_groups(geo) - g, n = left < CHUNK ? left : CHUNK;
        uint64_t at = (geo->bitmap_start + g) << LAY_BLOCK_SHIFT;
        err = bd_read(b->dev, at, buf, n << LAY_BLOCK_SHIFT);
        for (uint64_t i = 0; i < n && !err; i++) {
            lay_bitmap_complete(geo, &buf[i], g + i);
            fill(b, &buf[i], g + i, where);
            sections[(g + i) / lay_section_groups(geo)] += lay_get32(buf[i].free);
        }
        if (!err)
            err = bd_write(b->dev, at, buf, n << LAY_BLOCK_SHIFT, 0);
    }
    free(buf);
    return err;
}

static int fill_super(struct bench *b, enum where where, const uint64_t *sections)
{
    const uint64_t places[] = {0, b->plan.geo.copies[0], b->plan.geo.copies[1]};
    struct lay_super sb;
    uint64_t sum = 0;
    int err = bd_read(b->dev, 0, &sb, sizeof(sb));

    for (unsigned i = 0; i < LAY_BITMAP_SECTIONS; i++) {
        sum += sections[i];
        sb.section_free[i] = where == WITHOUT_HINTS ? 0 : hint_of(sections[i]);
    }
    sb.free_blocks = lay_put64(sum);
    sb.compat = lay_put64(lay_get64(sb.compat) | LAY_COMPAT_SECTION_FREE);
    for (unsigned i = 0; i < 3 && !err; i++) {
        sb.head.block = lay_put64(places[i]);
        lay_seal(&sb, 0);
        err = bd_write(b->dev, places[i] << LAY_BLOCK_SHIFT, &sb, sizeof(sb), 0);
    }
    return err;
}

static int make(struct bench *b, enum where where)
{
    struct mkfs_params params = {.uuid = "space-bench-vol", .time_sec = 1700000000};
    uint64_t sections[LAY_BITMAP_SECTIONS] = {0};
    double start = bench_seconds();
    int err = mkfs_format(b->dev, &params, &b->plan);
    double took = bench_seconds() - start;

    if (err)
        return fail("format", err);
    if (where == SPREAD)
        bench_report_values(b->report, "mkfs", "s", &took, 1, NULL);
    err = fill_bitmaps(b, where, sections);
    if (!err)
        err = fill_super(b, where, sections);
    return err ? fail("fill", err) : 0;
}

/* --- What users see --------------------------------------------------------------------------- */

static void *ask(void *arg)
{
    struct bench *b = arg;

    while (!atomic_load(&b->stop)) {
        struct ffs_attr attr;
        double start = bench_seconds();
        ffs_getattr(b->root, &attr);
        double took = bench_seconds() - start;
        b->slowest_stat = took > b->slowest_stat ? took : b->slowest_stat;
        usleep(200);
    }
    return NULL;
}

static int write_file(struct bench *b, unsigned number)
{
    char name[32];
    struct ffs_inode *inode;

    snprintf(name, sizeof(name), "file-%u", number);
    int err = ffs_mknod(b->root, name, S_IFREG | 0644, 0, &root_user, &inode);
    if (err)
        return err;
    ssize_t n = ffs_write(inode, 0, name, sizeof(name));
    ffs_iput(inode, 1);
    return n == sizeof(name) ? 0 : n < 0 ? (int)n : -EIO;
}

static void put(struct bench *b, enum where where, const char *what, double seconds)
{
    char name[96];
    double ms = seconds * 1e3;

    snprintf(name, sizeof(name), "%s, free blocks %s", what, names[where]);
    bench_report_values(b->report, name, "ms", &ms, 1, NULL);
}

static int work(struct bench *b, enum where where)
{
    double slowest = 0, first = 0;
    pthread_t thread;
    int err = -pthread_create(&thread, NULL, ask, b);

    if (err)
        return err;
    for (unsigned i = 0; i < FILES && !err; i++) {
        double start = bench_seconds();
        err = write_file(b, i);
        double took = bench_seconds() - start;
        if (i == 0)
            first = took;
        else if (took > slowest)
            slowest = took;
    }
    atomic_store(&b->stop, true);
    pthread_join(thread, NULL);
    if (err)
        return fail("write", err);
    put(b, where, "first file", first);
    put(b, where, "slowest of the next files", slowest);
    put(b, where, "slowest stat meanwhile", b->slowest_stat);
    return 0;
}

static int run(struct bench *b, enum where where)
{
    struct ffs_mount_opts opts = {.commit_ms = 0};
    char why[256] = "";
    double start = bench_seconds();
    int err = ffs_mount(b->dev, &opts, &b->fs, why, sizeof(why));

    if (err)
        return fail(why, err);
    put(b, where, "mount", bench_seconds() - start);
    b->stop = false;
    b->slowest_stat = 0;
    err = ffs_iget(b->fs, LAY_INO_ROOT, &b->root);
    if (!err)
        err = work(b, where);
    ffs_iput(b->root, 1);
    start = bench_seconds();
    int end = ffs_unmount(b->fs);
    put(b, where, "unmount", bench_seconds() - start);
    return err ? err : end ? fail("unmount", end) : 0;
}

static int parse(int argc, char **argv, struct bench *b)
{
    unsigned long tib = 64;
    int opt;

    while ((opt = getopt(argc, argv, "s:d:o:h")) != -1) {
        if (opt == 's')
            tib = strtoul(optarg, NULL, 10);
        else if (opt == 'd')
            b->dir = optarg;
        else if (opt == 'o' && strcmp(optarg, "json") == 0)
            b->json = true;
        else
            return 1;
    }
    b->bytes = (uint64_t)tib << 40;
    return optind != argc || tib < 1 || tib > MOST;
}

int main(int argc, char **argv)
{
    struct bench b = {.dir = "/dev/shm", .fd = -1};

    if (parse(argc, argv, &b)) {
        fputs("usage: " PROGRAM " [-s TIB] [-d DIRECTORY] [-o json]\n", stderr);
        return 2;
    }
    b.report = bench_report_new(PROGRAM, b.json, NULL);
    int err = b.report ? open_image(&b) : fail("memory", -ENOMEM);
    if (!err)
        bench_report_number(b.report, "TiB", (double)(b.bytes >> 40));
    for (enum where where = SPREAD; where <= WITHOUT_HINTS && !err; where++) {
        err = make(&b, where);
        if (!err)
            err = run(&b, where);
    }
    if (b.dev)
        bd_close(b.dev);
    if (b.fd >= 0)
        close(b.fd);
    if (b.report && err)
        bench_report_drop(b.report);
    else if (b.report)
        bench_report_end(b.report);
    return err ? 1 : 0;
}
