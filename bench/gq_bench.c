/*
 * How close do reads by the queue code come to a plain copy of the same size?
 *
 * Media in memory behind the simulator, read by gq_transfer, in turn with a pinned cudaMemcpy (CPU
 * executor: memcpy) in the same run. Every byte is checked after every read, over zeros.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifdef GPUNVME_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#include "bench/pattern.h"
#include "cuda/gq.h"
#include "sim/sim.h"

#define SEED        0x67712d62656e6368u
#define LBA         4096u
#define CHECK       ((size_t)16 << 20) /* bytes written or checked at a time */
#define MAX_PIN     ((size_t)1 << 30)
#define MAX_REPEATS 99

struct bench {
    uint64_t size;  /* bytes, a multiple of CHECK */
    uint64_t piece; /* bytes of an extent, at random places; 0: one extent for all */
    int repeats;
    unsigned sim_threads;
    bool json;
    struct gq_options opts;

    struct sim *sim;
    struct nvme_ctrlr *ctrlr;
    struct gq_engine *engine;
    struct gq_info info;
    bool is_cuda;
    void *memory; /* the buffer's */
    void *source; /* of plain copies: pinned for CUDA */
    struct gq_buffer *buffer;
    uint64_t *words; /* CHECK bytes */
    struct gq_extent *extents;
    size_t n_extents;
    uint64_t commands;
};

static int fail(const char *object, int err, const char *advice)
{
    fprintf(stderr, "gq_bench: %s: %s, %s\n", object, strerror(-err), advice);
    return err;
}

static double seconds(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static size_t source_len(const struct bench *b)
{
    return b->size < MAX_PIN ? b->size : MAX_PIN;
}

static int alloc_memory(struct bench *b)
{
#ifdef GPUNVME_HAVE_CUDA
    if (b->is_cuda) {
        if (cudaMalloc(&b->memory, b->size) != cudaSuccess ||
            cudaHostAlloc(&b->source, source_len(b), cudaHostAllocDefault) != cudaSuccess)
            return -ENOMEM;
        memset(b->source, 1, source_len(b));
        return 0;
    }
#endif
    b->memory = mmap(NULL, b->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b->memory == MAP_FAILED) {
        b->memory = NULL;
        return -ENOMEM;
    }
    b->source = malloc(source_len(b));
    if (!b->source)
        return -ENOMEM;
    memset(b->source, 1, source_len(b));
    return 0;
}

static void free_memory(struct bench *b)
{
#ifdef GPUNVME_HAVE_CUDA
    if (b->is_cuda) {
        cudaFree(b->memory);
        cudaFreeHost(b->source);
        return;
    }
#endif
    if (b->memory)
        munmap(b->memory, b->size);
    free(b->source);
}

static int plain_copy(struct bench *b)
{
    for (uint64_t done = 0; done < b->size;) {
        uint64_t n = b->size - done < source_len(b) ? b->size - done : source_len(b);
        char *to = (char *)b->memory + done;

#ifdef GPUNVME_HAVE_CUDA
        if (b->is_cuda && cudaMemcpy(to, b->source, n, cudaMemcpyHostToDevice) != cudaSuccess)
            return -EIO;
#endif
        if (!b->is_cuda)
            memcpy(to, b->source, n);
        done += n;
    }
    return 0;
}

static int transfer(struct bench *b, enum gq_op op, uint64_t offset, uint64_t len,
                    const struct gq_extent *extents, size_t n)
{
    struct gq_request req = {.op = op,
                             .buffer = b->buffer,
                             .buffer_offset = offset,
                             .len = len,
                             .extents = extents,
                             .n_extents = n};
    struct gq_result result;
    int err = gq_transfer(b->engine, &req, &result);

    b->commands = result.commands;
    if (err)
        fprintf(stderr, "gq_bench: NVMe status %#x (%s) after %" PRIu64 " bytes\n",
                result.nvme_status, nvme_status_text(result.nvme_status), result.bytes);
    return err;
}

/* Puts the pattern on the media, through the buffer and by writes of the queue code. */
static int fill_media(struct bench *b)
{
    for (uint64_t at = 0; at < b->size; at += CHECK) {
        struct gq_extent x = {at / LBA, CHECK};
        int err;

        for (size_t i = 0; i < CHECK / 8; i++)
            b->words[i] = pattern_word(SEED, at / 8 + i);
        err = gq_buffer_put(b->buffer, at, b->words, CHECK);
        if (!err)
            err = transfer(b, GQ_WRITE, at, CHECK, &x, 1);
        if (err)
            return err;
    }
    return 0;
}

/* Which part of the media is wanted at byte `at` of the buffer? */
static uint64_t media_offset(const struct bench *b, uint64_t at)
{
    uint64_t bytes = b->extents[0].bytes;

    return b->extents[at / bytes].lba * LBA + at % bytes;
}

static int check(struct bench *b)
{
    uint64_t wrong = 0;

    for (uint64_t at = 0; at < b->size; at += CHECK) {
        int err = gq_buffer_get(b->buffer, at, b->words, CHECK);

        if (err)
            return err;
        for (size_t i = 0; i < CHECK; i += LBA) {
            uint64_t index = media_offset(b, at + i) / 8;

            for (size_t w = 0; w < LBA / 8; w++)
                wrong += b->words[i / 8 + w] != pattern_word(SEED, index + w);
        }
    }
    if (wrong)
        fprintf(stderr, "gq_bench: %" PRIu64 " words of 8 bytes are wrong\n", wrong);
    return wrong ? -EIO : 0;
}

static int make_extents(struct bench *b)
{
    uint64_t bytes = b->piece ? b->piece : b->size, state = SEED;

    b->n_extents = b->size / bytes;
    b->extents = calloc(b->n_extents, sizeof(*b->extents));
    if (!b->extents)
        return -ENOMEM;
    for (size_t i = 0; i < b->n_extents; i++) {
        state = pattern_word(state, i);
        b->extents[i] = (struct gq_extent){state % b->n_extents * (bytes / LBA), bytes};
    }
    return 0;
}

static int open_engine(struct bench *b)
{
    struct sim_config cfg = {.ns[0] = {.bytes = b->size, .lba_size = LBA},
                             .namespaces = 1,
                             .threads = b->sim_threads,
                             .mdts = 4u << 20};
    struct nvme_transport *t;
    int err = sim_create(&cfg, &b->sim, &t);

    if (err)
        return fail("simulator", err, "try a smaller size");
    err = nvme_ctrlr_open(t, NULL, &b->ctrlr);
    if (err) {
        t->ops->close(t);
        return fail("controller", err, "the simulator did not start");
    }
    err = gq_engine_open(b->ctrlr, 1, &b->opts, &b->engine);
    if (err)
        return fail("engine", err, "try -x cpu");
    gq_engine_info(b->engine, &b->info);
    b->is_cuda = b->info.executor == GQ_EXECUTOR_CUDA;
    return 0;
}

static int open_buffer(struct bench *b)
{
    struct gq_mem mem = {.fd = -1, .len = b->size};
    int err = alloc_memory(b);

    if (err)
        return fail("memory", err, "try a smaller size");
    b->words = malloc(CHECK);
    if (!b->words)
        return fail("memory", -ENOMEM, "try a smaller size");
    mem.kind = b->is_cuda ? GQ_MEM_CUDA : GQ_MEM_HOST;
    mem.addr = b->memory;
    err = gq_buffer_register(b->engine, &mem, &b->buffer);
    return err ? fail("buffer", err, "it could not be registered") : make_extents(b);
}

static void close_all(struct bench *b)
{
    if (b->buffer)
        gq_buffer_unregister(b->buffer);
    if (b->engine)
        gq_engine_close(b->engine);
    if (b->ctrlr)
        nvme_ctrlr_close(b->ctrlr);
    if (b->sim)
        sim_free(b->sim);
    free_memory(b);
    free(b->words);
    free(b->extents);
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, c = *(const double *)y;

    return (a > c) - (a < c);
}

/* GB/s of both ways, the median of the repeats; they take turns. */
static int measure(struct bench *b, double *read_rate, double *copy_rate)
{
    double reads[MAX_REPEATS + 1], copies[MAX_REPEATS + 1];

    for (int i = 0; i < b->repeats + 1; i++) {
        double start = seconds();
        int err = plain_copy(b);

        copies[i] = (double)b->size / (seconds() - start) / 1e9;
        if (!err)
            err = gq_buffer_zero(b->buffer, 0, b->size);
        start = seconds();
        if (!err)
            err = transfer(b, GQ_READ, 0, b->size, b->extents, b->n_extents);
        reads[i] = (double)b->size / (seconds() - start) / 1e9;
        if (!err)
            err = check(b);
        if (err)
            return fail("read", err, "nothing was measured");
    }
    /* The first of each warms up. */
    qsort(reads + 1, (size_t)b->repeats, sizeof(double), compare);
    qsort(copies + 1, (size_t)b->repeats, sizeof(double), compare);
    *read_rate = reads[1 + b->repeats / 2];
    *copy_rate = copies[1 + b->repeats / 2];
    return 0;
}

static void report(const struct bench *b, double rate, double copy)
{
    const char *format =
        b->json ? "{\"device\": \"%s\", \"bytes\": %" PRIu64 ", \"piece\": %" PRIu64
                  ", \"queues\": %u, \"depth\": %u, \"max_command\": %u, \"commands\": %" PRIu64
                  ", \"gq_gbps\": %.3f, \"mops\": %.4f, \"copy_gbps\": %.3f, \"ratio\": %.4f}\n"
                : "device       %s\nbytes        %" PRIu64 "\npiece        %" PRIu64
                  "\nqueues       %u x %u\nmax command  %u\ncommands     %" PRIu64
                  "\ngq_transfer  %.3f GB/s, %.4f M commands/s\nplain copy   %.3f GB/s\n"
                  "ratio        %.4f (every byte checked)\n";

    printf(format, b->info.device, b->size, b->piece, b->info.queues, b->info.depth,
           b->info.max_command, b->commands, rate,
           rate * 1e3 * (double)b->commands / (double)b->size, copy, rate / copy);
}

static int usage(FILE *to)
{
    fprintf(to, "usage: gq_bench [-x cpu|cuda|auto] [-s MIB] [-p PIECE_KIB] [-n REPEATS]\n"
                "                [-c MAX_COMMAND_KIB] [-q QUEUES] [-d DEPTH] [-t SIM_THREADS]\n"
                "                [-l CPU_LANES] [-o json]\n"
                "  -p  reads pieces of this size at random places, instead of all in order\n");
    return to == stdout ? 0 : 2;
}

static int set_executor(struct bench *b, const char *name)
{
    const char *names[] = {"auto", "cuda", "cpu"};

    for (unsigned i = 0; i < 3; i++) {
        if (!strcmp(name, names[i])) {
            b->opts.executor = (enum gq_executor_kind)i;
            return 0;
        }
    }
    return -EINVAL;
}

/* -EINVAL for what makes no sense. */
static int set_option(struct bench *b, int option, const char *arg)
{
    char *end = NULL;
    unsigned long n = option == 'x' || option == 'o' ? 1 : strtoul(arg, &end, 10);

    if ((end && *end) || n == 0 || n > 1ul << 24)
        return -EINVAL;
    switch (option) {
    case 'x':
        return set_executor(b, arg);
    case 'o':
        b->json = true;
        return strcmp(arg, "json") ? -EINVAL : 0;
    case 's':
        b->size = (uint64_t)n << 20;
        return b->size % CHECK ? -EINVAL : 0;
    case 'p':
        b->piece = (uint64_t)n << 10;
        return b->piece % LBA ? -EINVAL : 0;
    case 'n':
        b->repeats = (int)n;
        return n <= MAX_REPEATS ? 0 : -EINVAL;
    case 'c':
        b->opts.max_command = (uint32_t)n << 10;
        return 0;
    case 'q':
        b->opts.queues = (unsigned)n;
        return 0;
    case 'd':
        b->opts.depth = (unsigned)n;
        return 0;
    case 't':
        b->sim_threads = (unsigned)n;
        return 0;
    case 'l':
        b->opts.cpu_lanes = (unsigned)n;
        return 0;
    default:
        return -EINVAL;
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.repeats = 5, .sim_threads = 1};
    double rate = 0, copy = 0;
    char why[128];
    int option, err;

    while ((option = getopt(argc, argv, "hx:s:p:n:c:q:d:t:l:o:")) != -1) {
        if (option == 'h')
            return usage(stdout);
        if (set_option(&b, option, optarg ? optarg : ""))
            return usage(stderr);
    }
    if (!b.size)
        b.size = gq_probe(0, why, sizeof(why)) ? (uint64_t)256 << 20 : (uint64_t)4 << 30;
    if (b.piece && b.size % b.piece)
        return usage(stderr);
    err = open_engine(&b);
    if (!err)
        err = open_buffer(&b);
    if (!err)
        err = fill_media(&b);
    if (!err)
        err = measure(&b, &rate, &copy);
    if (!err)
        report(&b, rate, copy);
    close_all(&b);
    return err ? 1 : 0;
}
