/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures how long one small read takes from end to end.
 *
 * On a mount it makes one call after another: an ioctl that does nothing (INFO), an empty kernel
 * with its synchronisation, READ of small pieces, the bounce pipeline and reads of the host with
 * and without page cache, and the direct path if the mount lends it. Every piece is verified.
 * Latencies are in microseconds. bare_bench shows what the controller takes. With -c calls of the
 * host run beside computing (bench/lib/computer.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/computer.h"
#ifdef GPUNVME_HAVE_CUDA
#include "bench/lib/direct_kernels.h"
#include "bench/lib/kernels.h"
#endif

#define PROGRAM     "latency_bench"
#define SEED        0x6c6174656e63u
#define UNIT        ((uint64_t)1 << 20) /* file sizes are multiples of it */
#define SMALL       4096u
#define MAX_KIB     1024u
#define WARM_UP     32u
#define REST_US     3000u /* after this time everything that waits for work has parked itself */
#define MAX_SAMPLES 100000ul
#define THREADS     16u
#define ROUNDS      200u

static struct {
    size_t samples;
    bool computing;
    struct bench_computer computer;
    unsigned long_kib; /* of a long piece */
    unsigned rest_us;  /* pause before each call */
    int uncached;      /* the file with O_DIRECT, or -1 */
    int fd;            /* of latency_read(), which takes this path */
    uint32_t path;
    void *host;                    /* long_bytes(), pinned where there is a GPU */
    const struct bench_memory *to; /* of a registered buffer, where calls read to */
    double *values;
} calls = {.samples = 2000, .long_kib = 64, .uncached = -1};

static uint64_t long_bytes(void)
{
    return (uint64_t)calls.long_kib << 10;
}

/* Makes the i-th call. Returns 0 or -errno. */
typedef int (*call_fn)(struct bench *b, size_t i);

static int info(struct bench *b, size_t i)
{
    struct gpunvme_ioc_info answer;

    (void)i;
    return gpunvme_info(connection_fd(b->mount.g), &answer) ? bench_fail("INFO", gpunvme_error())
                                                            : 0;
}

#ifdef GPUNVME_HAVE_CUDA
static int latency_launch(struct bench *b, size_t i)
{
    (void)b;
    (void)i;
    return kernel_empty();
}
#endif

static int latency_read(struct bench *b, size_t i)
{
    uint64_t bytes = b->pieces.bytes;

    return bench_mount_read(&b->mount, calls.fd, i * bytes, b->pieces.places[i], bytes, calls.path,
                            NULL);
}

static int latency_read_direct(struct bench *b, size_t i)
{
    uint64_t bytes = b->pieces.bytes;
    char *to = (char *)calls.to->addr + i * bytes;

    return bench_direct_read(&b->direct, to, bytes, b->pieces.places[i]);
}

static int latency_read_by_block(struct bench *b, size_t i)
{
    uint64_t bytes = b->pieces.bytes;
    char *to = (char *)calls.to->addr + i * bytes;

    return bench_direct_read_wait(&b->direct, to, bytes, b->pieces.places[i]);
}

static int host_read(struct bench *b, int fd, size_t i)
{
    struct pattern_pieces one = b->pieces;

    if (pread(fd, calls.host, one.bytes, (off_t)one.places[i]) != (ssize_t)one.bytes)
        return bench_fail_with("pread", -errno);
    one.places += i;
    one.n = 1;
    return pattern_host_count_wrong(calls.host, &one) ? bench_fail("pread", "WRONG bytes") : 0;
}

static int pread_cached(struct bench *b, size_t i)
{
    return host_read(b, b->file.fd, i);
}

static int pread_direct(struct bench *b, size_t i)
{
    return host_read(b, calls.uncached, i);
}

static int pread_and_copy(struct bench *b, size_t i)
{
    int err = host_read(b, calls.uncached >= 0 ? calls.uncached : b->file.fd, i);

    return err ? err
               : bench_copy_to(&b->mount.memory, i * b->pieces.bytes, calls.host, b->pieces.bytes);
}

static int time_calls(struct bench *b, call_fn call)
{
    int err = 0;

    for (size_t i = 0; i < calls.samples && !err; i++) {
        double start;

        if (calls.rest_us)
            usleep(calls.rest_us);
        start = bench_seconds();
        err = call(b, i);
        calls.values[i] = (bench_seconds() - start) * 1e6;
    }
    return err;
}

static int latency_measure(struct bench *b, const char *name, call_fn call)
{
    struct bench_samples shares = {.n = 0};
    int err = 0, end;

    for (size_t i = 0; i < WARM_UP && !err; i++)
        err = call(b, i % calls.samples);
    if (!err)
        err = bench_computer_start(&calls.computer);
    if (err)
        return err;
    err = time_calls(b, call);
    end = bench_computer_stop(&calls.computer, &shares);
    if (err || end)
        return err ? err : end;
    bench_report_values(b->report, name, "us", calls.values, calls.samples, NULL);
    bench_computer_report(b->report, name, &shares);
    return 0;
}

/* Called by a thread of THREADS. Reads each piece of its share in ROUNDS turns. */
static int read_share(void *of, unsigned thread)
{
    int err = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        for (size_t i = thread; i < calls.samples && !err; i += THREADS)
            err = latency_read_by_block(of, i);
    }
    return err;
}

/* Measures the rate of threads that wait for one read each, in thousands per second. */
static int latency_measure_threads(struct bench *b, const char *name)
{
    int err = bench_poison(calls.to, SEED);
    double start = bench_seconds(), rate;

    if (!err)
        err = bench_run_threads(THREADS, read_share, b);
    rate = (double)(ROUNDS * calls.samples) / (bench_seconds() - start) / 1e3;
    if (!err)
        bench_report_values(b->report, name, "K/s", &rate, 1, NULL);
    return err ? err : bench_verify(calls.to, &b->pieces, PROGRAM);
}

/* Measures reads into the buffer, and verifies its contents afterwards. */
static int measure_to_buffer(struct bench *b, const char *name, call_fn call)
{
    int err = bench_poison(calls.to, SEED);

    if (!err)
        err = latency_measure(b, name, call);
    return err ? err : bench_verify(calls.to, &b->pieces, PROGRAM);
}

#ifdef GPUNVME_HAVE_CUDA
static int measure_in_kernel(struct bench *b, const char *name)
{
    const struct gpunvme_device_file *file = leased_file_device(b->direct.file);
    int err = 0;

    /* The first run warms up. */
    for (unsigned i = 0; i < 2 && !err; i++) {
        err = bench_poison(calls.to, SEED);
        if (!err)
            err = kernel_direct_reads(file, &b->pieces, calls.to->addr, calls.values);
    }
    if (err)
        return bench_fail(name, "a read or the GPU failed");
    bench_report_values(b->report, name, "us", calls.values, b->pieces.n, NULL);
    return bench_verify(calls.to, &b->pieces, PROGRAM);
}

/* Measures reads into host memory of the library. */
static int measure_pinned(struct bench *b)
{
    struct bench_memory to = {.len = calls.samples * SMALL};
    struct gpunvme_buffer *buffer;
    int err = buffer_alloc_host(b->mount.g, to.len, &buffer);

    if (err)
        return bench_fail("pinned memory", gpunvme_error());
    to.addr = buffer_addr(buffer);
    calls.to = &to;
    err = measure_in_kernel(b, "direct path, 4 KiB, inside a kernel, into pinned memory");
    if (!err)
        err = measure_to_buffer(b, "direct path, 4 KiB, by a persistent kernel, into pinned memory",
                                latency_read_by_block);
    calls.to = &b->mount.memory;
    buffer_unregister(buffer);
    return err;
}

#endif

/* Creates pieces at random places of the file. */
static int latency_new_pieces(struct bench *b, uint64_t bytes)
{
    return bench_pieces_make(&b->pieces, b->mount.memory.on_gpu, SEED, calls.samples * bytes, bytes,
                             0, b->size, true);
}

static int measure_host_reads(struct bench *b)
{
    int err = 0;

    if (calls.uncached >= 0)
        err = latency_measure(b, "pread O_DIRECT, 4 KiB, host", pread_direct);
    if (!err)
        err = measure_to_buffer(b, "pread and copy, 4 KiB", pread_and_copy);
    return err ? err : latency_measure(b, "pread from page cache, 4 KiB, host", pread_cached);
}

/* Measures reads by one path of the library. */
static int measure_path(struct bench *b, const char *way, uint32_t path, int fd)
{
    char name[64];
    int err = bench_mount_take_path(&b->mount, path), back;

    calls.path = path;
    calls.fd = fd;
    snprintf(name, sizeof(name), "%s, %llu KiB", way, (unsigned long long)b->pieces.bytes >> 10);
    if (!err)
        err = measure_to_buffer(b, name, latency_read);
    back = bench_mount_take_path(&b->mount, GPUNVME_PATH_GPU);
    return err ? err : back;
}

static int measure_paths(struct bench *b, uint64_t bytes)
{
    int err = latency_new_pieces(b, bytes);

    if (!err)
        err = measure_path(b, "READ ioctl", GPUNVME_PATH_GPU, b->file.fd);
    if (!err)
        err = measure_path(b, "bounce pipeline", GPUNVME_PATH_BOUNCE, b->file.fd);
    if (!err && calls.uncached >= 0)
        err = measure_path(b, "bounce pipeline, O_DIRECT", GPUNVME_PATH_BOUNCE, calls.uncached);
    return err;
}

static int latency_measure_reads(struct bench *b)
{
    int err = measure_paths(b, long_bytes());

    if (!err)
        err = measure_paths(b, SMALL);
    return err ? err : measure_host_reads(b);
}

/* Measures calls one after the other, and calls after host and GPU were idle. */
static int measure_direct_calls(struct bench *b)
{
    int err = measure_to_buffer(b, "direct path, 4 KiB", latency_read_direct);

    if (!err)
        err = measure_to_buffer(b, "direct path, 4 KiB, by a persistent kernel",
                                latency_read_by_block);
    if (!err)
        err = latency_measure_threads(b, "direct path, 4 KiB, by 16 threads");
    calls.rest_us = REST_US;
    if (!err)
        err = measure_to_buffer(b, "direct path, 4 KiB, after a rest", latency_read_direct);
    calls.rest_us = 0;
    return err;
}

static int measure_direct(struct bench *b)
{
    int err = bench_direct_open(&b->direct, &b->mount, b->file.fd, NULL);

    if (!err)
        err = latency_new_pieces(b, SMALL);
    /*
     * The kernels of the daemon stay for up to 1 ms after the last READ, and take turns with
     * others.
     */
    usleep(REST_US);
    if (!err)
        err = measure_direct_calls(b);
#ifdef GPUNVME_HAVE_CUDA
    if (!err && b->mount.memory.on_gpu)
        err = measure_in_kernel(b, "direct path, 4 KiB, inside a kernel");
    if (!err && b->mount.memory.on_gpu)
        err = measure_pinned(b);
#endif
    return err;
}

/*
 * Measures all ways. The direct path comes last, because without MPS the kernels of the daemon and
 * those of the direct path take turns of milliseconds.
 */
static int latency_measure_all(struct bench *b)
{
    int err = latency_measure(b, "INFO ioctl", info);

#ifdef GPUNVME_HAVE_CUDA
    if (!err && b->mount.memory.on_gpu)
        err = latency_measure(b, "empty kernel and synchronise", latency_launch);
#endif
    if (!err)
        err = latency_measure_reads(b);
    if (!err && b->mount.info.direct)
        err = measure_direct(b);
    return err;
}

static int latency_set_up(struct bench *b)
{
    int err = bench_begin_mounted(b, calls.samples * long_bytes());

    if (err)
        return err;
    calls.to = &b->mount.memory;
    calls.host = bench_host_alloc(b->mount.memory.on_gpu, long_bytes());
    calls.values = calloc(calls.samples, sizeof(*calls.values));
    if (!calls.host || !calls.values)
        return bench_fail("memory", "not enough of it");
    bench_report_number(b->report, "calls", (double)calls.samples);
    bench_report_number(b->report, "file", (double)b->size);
    err = bench_file_make(&b->file, b->dir, b->size, SEED);
    if (err)
        return err;
    calls.uncached = open(b->file.path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (calls.uncached < 0)
        fprintf(stderr, PROGRAM ": %s: no O_DIRECT: %s\n", b->file.path, strerror(errno));
    if (!calls.computing)
        return 0;
    bench_report_text(b->report, "beside computing",
                      bench_computer_sharing(b->mount.memory.on_gpu));
    return bench_computer_open(&calls.computer, b->mount.memory.on_gpu);
}

static void latency_tear_down(struct bench *b)
{
    bench_computer_close(&calls.computer);
    bench_host_free(b->mount.memory.on_gpu, calls.host);
    free(calls.values);
    if (calls.uncached >= 0)
        close(calls.uncached);
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)256 << 20, .seed = SEED};
    const struct bench_option options[] = {{'s', BENCH_MIB, &b.size, UNIT, BENCH_SIZE_MOST},
                                           {'n', BENCH_LONG, &calls.samples, 1, MAX_SAMPLES},
                                           {'k', BENCH_UNSIGNED, &calls.long_kib, 4, MAX_KIB},
                                           {'c', BENCH_FLAG, &calls.computing, 0, 0},
                                           {'o', BENCH_JSON, &b.json, 0, 0},
                                           {0}};

    if (!bench_parse(argc, argv, options, &b.dir))
        return bench_usage("[-s FILE_MIB] [-n CALLS] [-k KIB of long pieces] [-c] [-o json]"
                           " DIRECTORY\n");
    int err = latency_set_up(&b);
    if (!err)
        err = latency_measure_all(&b);
    latency_tear_down(&b);
    return bench_end(&b, err);
}
