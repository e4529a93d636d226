/*
 * One file, one application thread: how fast do its bytes reach GPU memory?
 *
 * Ways, in one run and in turn: a pinned cudaMemcpy of the same size (the PCIe limit), the READ
 * ioctl, and pread into a pinned buffer followed by cudaMemcpy. Every byte that reached the GPU is
 * checked there after each run, over memory poisoned before it.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <json-c/json.h>

#include "bench/pattern.h"
#include "client/gpunvme.h"

#define SEED        0x6770756e766d65u
#define CHUNK       ((size_t)16 << 20)
#define MAX_REPEATS 99

struct bench {
    uint64_t size; /* bytes, a multiple of CHUNK */
    int repeats;
    bool json;
    char file[4096];
    int fd;
    struct gpunvme *mount;
    struct gpunvme_ioc_info info;
    struct gpunvme_buffer *buffer;
    void *device, *pinned;
    struct gpunvme_result last;
};

struct way {
    const char *name;
    int (*run)(struct bench *b);
    bool verified; /* its bytes are the file's */
    double gb_per_s[MAX_REPEATS];
};

static int fail(const char *object, const char *what)
{
    fprintf(stderr, "ioctl_bench: %s: %s\n", object, what);
    return 1;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int memcpy_pinned(struct bench *b)
{
    for (uint64_t at = 0; at < b->size; at += CHUNK) {
        if (cudaMemcpyAsync((char *)b->device + at, b->pinned, CHUNK, cudaMemcpyHostToDevice, 0))
            return fail("cudaMemcpy", "failed");
    }
    return cudaDeviceSynchronize() ? fail("cudaMemcpy", "failed") : 0;
}

static int read_ioctl(struct bench *b)
{
    ssize_t n = gpunvme_read(b->buffer, b->fd, 0, 0, b->size, &b->last);
    return n == (ssize_t)b->size ? 0 : fail("READ", n < 0 ? gpunvme_error() : "short");
}

static int read_and_memcpy(struct bench *b)
{
    for (uint64_t at = 0; at < b->size; at += CHUNK) {
        if (pread(b->fd, b->pinned, CHUNK, (off_t)at) != (ssize_t)CHUNK)
            return fail("pread", strerror(errno));
        if (cudaMemcpy((char *)b->device + at, b->pinned, CHUNK, cudaMemcpyHostToDevice))
            return fail("cudaMemcpy", "failed");
    }
    return 0;
}

static int run_once(struct bench *b, struct way *w, int i)
{
    uint64_t wrong = 0;
    if (w->verified && pattern_poison(b->device, b->size / 8, SEED))
        return fail(w->name, "the GPU failed");
    double start = seconds();
    if (w->run(b))
        return 1;
    w->gb_per_s[i] = (double)b->size / 1e9 / (seconds() - start);
    if (w->verified && pattern_count_wrong(b->device, b->size / 8, SEED, &wrong))
        return fail(w->name, "the GPU failed");
    return wrong ? fail(w->name, "WRONG BYTES reached the GPU") : 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(struct way *w, int n)
{
    qsort(w->gb_per_s, (size_t)n, sizeof(double), compare);
    return w->gb_per_s[n / 2];
}

static int write_file(struct bench *b)
{
    uint64_t *words = b->pinned;
    b->fd = open(b->file, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    if (b->fd < 0)
        return fail(b->file, strerror(errno));
    for (uint64_t at = 0; at < b->size; at += CHUNK) {
        for (uint64_t i = 0; i < CHUNK / 8; i++)
            words[i] = pattern_word(SEED, at / 8 + i);
        if (pwrite(b->fd, words, CHUNK, (off_t)at) != (ssize_t)CHUNK)
            return fail(b->file, strerror(errno));
    }
    return fsync(b->fd) ? fail(b->file, strerror(errno)) : 0;
}

static int set_up(struct bench *b, const char *dir)
{
    snprintf(b->file, sizeof(b->file), "%s/ioctl-bench.%ld", dir, (long)getpid());
    if (cudaMalloc(&b->device, b->size) || cudaHostAlloc(&b->pinned, CHUNK, cudaHostAllocDefault))
        return fail("CUDA", "no device, or not enough memory");
    if (gpunvme_connect(dir, &b->mount) || gpunvme_info(b->mount, &b->info) ||
        gpunvme_register(b->mount, b->device, b->size, &b->buffer))
        return fail(dir, gpunvme_error());
    return write_file(b);
}

static void tear_down(struct bench *b)
{
    gpunvme_disconnect(b->mount);
    if (b->fd >= 0) {
        close(b->fd);
        unlink(b->file);
    }
    cudaFreeHost(b->pinned);
    cudaFree(b->device);
}

static void print_text(struct bench *b, struct way *ways, int n)
{
    printf("%" PRIu64 " MiB, %s, tier %u, %u queues x %u, %" PRIu64
           " commands a read, median of %d\n",
           b->size >> 20, b->info.executor_name, b->info.tier, b->info.queues, b->info.depth,
           b->last.commands, b->repeats);
    double limit = median(&ways[0], b->repeats);
    for (int i = 0; i < n; i++)
        printf("%-24s %8.2f GB/s %6.3f of pinned cudaMemcpy%s\n", ways[i].name,
               median(&ways[i], b->repeats), median(&ways[i], b->repeats) / limit,
               ways[i].verified ? ", every byte verified" : "");
}

static void print_json(struct bench *b, struct way *ways, int n)
{
    struct json_object *root = json_object_new_object(), *rows = json_object_new_array();
    double limit = median(&ways[0], b->repeats);
    json_object_object_add(root, "schema_version", json_object_new_int(1));
    json_object_object_add(root, "bytes", json_object_new_uint64(b->size));
    json_object_object_add(root, "executor", json_object_new_string(b->info.executor_name));
    json_object_object_add(root, "commands", json_object_new_uint64(b->last.commands));
    json_object_object_add(root, "repeats", json_object_new_int(b->repeats));
    for (int i = 0; i < n; i++) {
        struct json_object *row = json_object_new_object();
        double rate = median(&ways[i], b->repeats);
        json_object_object_add(row, "way", json_object_new_string(ways[i].name));
        json_object_object_add(row, "gb_per_s", json_object_new_double(rate));
        json_object_object_add(row, "ratio", json_object_new_double(rate / limit));
        json_object_object_add(row, "verified", json_object_new_boolean(ways[i].verified));
        json_object_array_add(rows, row);
    }
    json_object_object_add(root, "rows", rows);
    puts(json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY));
    json_object_put(root);
}

static int measure(struct bench *b)
{
    struct way ways[] = {{.name = "pinned cudaMemcpy", .run = memcpy_pinned},
                         {.name = "READ ioctl", .run = read_ioctl, .verified = true},
                         {.name = "pread + cudaMemcpy", .run = read_and_memcpy, .verified = true}};
    const int n = sizeof(ways) / sizeof(ways[0]);
    for (int i = -1; i < b->repeats; i++) { /* run -1 warms up: its slot is written again */
        for (int w = 0; w < n; w++) {
            if (run_once(b, &ways[w], i < 0 ? 0 : i))
                return 1;
        }
    }
    if (b->last.path != GPUNVME_PATH_GPU)
        return fail("READ", "was not served by the GPU path");
    if (b->json)
        print_json(b, ways, n);
    else
        print_text(b, ways, n);
    return 0;
}

static int parse(int argc, char **argv, struct bench *b)
{
    int opt;
    while ((opt = getopt(argc, argv, "s:r:o:h")) != -1) {
        if (opt == 's')
            b->size = strtoull(optarg, NULL, 10) << 20;
        else if (opt == 'r')
            b->repeats = (int)strtol(optarg, NULL, 10);
        else if (opt == 'o' && strcmp(optarg, "json") == 0)
            b->json = true;
        else
            return 1;
    }
    return optind + 1 != argc || b->repeats < 1 || b->repeats > MAX_REPEATS || b->size < CHUNK ||
           b->size % CHUNK;
}

int main(int argc, char **argv)
{
    struct bench b = {.size = (uint64_t)4 << 30, .repeats = 5, .fd = -1};
    if (parse(argc, argv, &b)) {
        fputs("usage: ioctl_bench [-s MiB, a multiple of 16] [-r repeats] [-o json] DIRECTORY\n",
              stderr);
        return 2;
    }
    int failed = set_up(&b, argv[optind]) || measure(&b);
    tear_down(&b);
    return failed;
}
