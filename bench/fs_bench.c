/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures what the CPU's part of a read and of a new file costs as the file system grows. The core
 * library runs in this process, without FUSE, over a file in memory.
 *
 * At each number of files it creates a file, looks up a name, allocates space, and maps a piece of
 * a file for a transfer. Times are in microseconds. Numbers of inodes, lengths of maps and the
 * count of files are checked. growth_bench measures extents through a mount.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bench_report.h"
#include "bench/lib/pattern.h"
#include "fusefs/core/ffs.h"
#include "mkfs/mkfs_core.h"
#include "support/page.h"

#define PROGRAM     "fs_bench"
#define SEED        0x6673u
#define PER_DIR     10000u /* files */
#define MAX_FILES   10000000ul
#define SAMPLES     1000u /* samples of a row, at most as many as files were created */
#define PIECE       (1u << 20)
#define FIRST_COUNT 1000u
#define GROWTH      10u

struct bench {
    unsigned long files; /* at most this many */
    bool json, copies;   /* copies: metadata has two places */
    int fd;
    struct bd_dev *dev;
    struct ffs *fs;
    struct ffs_inode *root;
    struct ffs_inode **dirs;
    size_t n_dirs;
    uint64_t *inos; /* of the files, by number */
    unsigned long made;
    uint64_t random;
    double micros[SAMPLES];
    struct bench_report *report;
};

static unsigned long fs_draw(struct bench *b, unsigned long below)
{
    b->random = pattern_word(b->random, 1);
    return b->random % below;
}

static const struct ffs_cred root_user = {0, 0, 0};

static void fs_name_of(unsigned long number, char *name, size_t len)
{
    snprintf(name, len, "file-%08lu.safetensors", number);
}

static int next_dir(struct bench *b)
{
    char name[48];
    int err;

    snprintf(name, sizeof(name), "dir-%05zu", b->n_dirs);
    err = ffs_mkdir(b->root, name, 0755, &root_user, &b->dirs[b->n_dirs]);
    if (!err)
        b->n_dirs++;
    return err;
}

/* Creates a file with one block, like a written file. */
static int create(struct bench *b)
{
    struct ffs_inode *inode;
    char name[48];
    int err = b->made % PER_DIR == 0 ? next_dir(b) : 0;

    if (err)
        return err;
    fs_name_of(b->made, name, sizeof(name));
    err = ffs_mknod(b->dirs[b->n_dirs - 1], name, S_IFREG | 0644, 0, &root_user, &inode);
    if (err)
        return err;
    err = ffs_fallocate(inode, 0, 0, PAGE_BYTES);
    b->inos[b->made++] = ffs_ino(inode);
    ffs_iput(inode, 1);
    return err;
}

static int fs_look_up(struct bench *b, unsigned long number, struct ffs_inode **out)
{
    char name[48];
    int err;

    fs_name_of(number, name, sizeof(name));
    err = ffs_lookup(b->dirs[number / PER_DIR], name, out);
    if (!err && ffs_ino(*out) != b->inos[number]) {
        ffs_iput(*out, 1);
        return -EUCLEAN;
    }
    return err;
}

static int time_lookup(struct bench *b)
{
    struct ffs_inode *inode;
    int err = fs_look_up(b, fs_draw(b, b->made), &inode);

    if (!err)
        ffs_iput(inode, 1);
    return err;
}

/* Maps a file by its number, as the daemon does for a READ. */
static int time_map(struct bench *b)
{
    struct ffs_inode *inode;
    struct ffs_map map;
    int err = ffs_iget(b->fs, b->inos[fs_draw(b, b->made)], &inode);

    if (err)
        return err;
    err = ffs_map_read(inode, 0, PAGE_BYTES, &map);
    if (!err) {
        err = map.len == PAGE_BYTES && map.count == 1 ? 0 : -EUCLEAN;
        ffs_map_release(&map);
    }
    ffs_iput(inode, 1);
    return err;
}

/* Allocates one MiB in a file without a name, which frees it again. */
static int time_allocate(struct bench *b)
{
    struct ffs_inode *inode;
    int err = ffs_tmpfile(b->root, 0600, &root_user, &inode);

    if (err)
        return err;
    err = ffs_fallocate(inode, 0, 0, PIECE);
    ffs_iput(inode, 1);
    return err;
}

static int fs_measure(struct bench *b, const char *what, unsigned long files,
                      int (*call)(struct bench *))
{
    size_t n = 0;
    char name[96];
    int err = 0;

    while (n < SAMPLES && !err) {
        double start = bench_seconds();

        err = call(b);
        b->micros[n++] = (bench_seconds() - start) * 1e6;
    }
    if (err)
        return bench_fail_with(what, err);
    snprintf(name, sizeof(name), "%s, %lu files", what, files);
    bench_report_values(b->report, name, "us", b->micros, n, NULL);
    bench_report_point(b->report, "files", what, (double)files);
    return 0;
}

/* Creates files up to this number. The last creations are measured. */
static int grow_to(struct bench *b, unsigned long files)
{
    int err = 0;

    while (b->made < files - SAMPLES && !err)
        err = create(b);
    return err ? bench_fail_with("create", err)
               : fs_measure(b, "create with a block", files, create);
}

static int check_count(struct bench *b)
{
    struct ffs_statfs st;

    ffs_statfs(b->fs, &st);
    return st.inodes >= b->made + b->n_dirs + 1 ? 0 : bench_fail_with("count of inodes", -EUCLEAN);
}

static int fs_measure_files(struct bench *b)
{
    int err = 0;

    for (unsigned long files = FIRST_COUNT; files <= b->files && !err; files *= GROWTH) {
        err = grow_to(b, files);
        if (!err)
            err = fs_measure(b, "look up", files, time_lookup);
        if (!err)
            err = fs_measure(b, "map 4 KiB", files, time_map);
        if (!err)
            err = fs_measure(b, "allocate and free 1 MiB", files, time_allocate);
        if (!err)
            err = check_count(b);
    }
    return err;
}

/* Opens a sparse file in memory without a name. */
static int open_device(struct bench *b)
{
    char path[] = "/dev/shm/gpunvme-fs-bench-XXXXXX";
    off_t bytes = (off_t)((b->files + (1ul << 18)) * 4 * PAGE_BYTES);
    int err = 0;

    b->fd = mkstemp(path);
    if (b->fd < 0)
        return bench_fail_with(path, -errno);
    if (ftruncate(b->fd, bytes))
        err = -errno;
    if (!err)
        err = bd_file_open(path, BD_OPEN_EXCLUSIVE, PAGE_BYTES, &b->dev);
    unlink(path);
    return err ? bench_fail_with(path, err) : 0;
}

static int fs_set_up(struct bench *b)
{
    struct mkfs_params params = {
        .uuid = "fs-bench-volume", .time_sec = 1700000000, .meta_copies = b->copies};
    struct ffs_mount_opts opts = {.commit_ms = 0};
    struct mkfs_plan plan;
    char why[256] = "";
    int err = open_device(b);

    if (err)
        return err;
    b->inos = calloc(b->files, sizeof(*b->inos));
    b->dirs = calloc(b->files / PER_DIR + 1, sizeof(struct ffs_inode *));
    b->report = bench_report_new(b->json, NULL);
    if (!b->inos || !b->dirs || !b->report)
        return bench_fail_with("memory", -ENOMEM);
    bench_report_number(b->report, "files", (double)b->files);
    bench_report_number(b->report, "files_in_a_directory", PER_DIR);
    bench_report_number(b->report, "seed", SEED);
    err = mkfs_format(b->dev, &params, &plan);
    if (err)
        return bench_fail_with("format", err);
    err = ffs_mount(b->dev, &opts, &b->fs, why, sizeof(why));
    if (!err)
        err = ffs_iget(b->fs, 1, &b->root);
    return err ? bench_fail_with(why[0] ? why : "mount", err) : 0;
}

static int fs_tear_down(struct bench *b)
{
    int err = 0;

    for (size_t i = 0; i < b->n_dirs; i++)
        ffs_iput(b->dirs[i], 1);
    if (b->root)
        ffs_iput(b->root, 1);
    if (b->fs)
        err = ffs_unmount(b->fs);
    if (b->dev)
        bd_close(b->dev);
    if (b->fd >= 0)
        close(b->fd);
    free(b->dirs);
    free(b->inos);
    return err ? bench_fail_with("unmount", err) : 0;
}

int main(int argc, char **argv)
{
    static struct bench b = {.files = 1000000, .fd = -1, .random = SEED};
    const struct bench_option options[] = {{'n', BENCH_LONG, &b.files, FIRST_COUNT, MAX_FILES},
                                           {'c', BENCH_FLAG, &b.copies, 0, 0},
                                           {'o', BENCH_JSON, &b.json, 0, 0},
                                           {0}};
    int err, end;

    if (!bench_parse(argc, argv, options, NULL))
        return bench_usage("[-c] [-n FILES, 1000 to 10000000] [-o json]\n");
    err = fs_set_up(&b);
    if (!err)
        err = fs_measure_files(&b);
    end = fs_tear_down(&b);
    return bench_report_close(b.report, err ? err : end);
}
