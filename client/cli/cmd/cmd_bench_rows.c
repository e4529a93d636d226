/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The command `gpunvme bench --rows` reads rows at random places of a file in
 * several ways, and reports the fastest run of each. It compares every run with
 * rows that read(2) has returned before, so these rows are in the page cache.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cmd/cmd_bench_rows.h"
#include "gpunvme/gpunvme.h"
#include "support/minmax.h"

#define TURNS   3
#define THREADS 16
#define PAGE    4096u /* alignment of reads with O_DIRECT */
#define SEED    0x726f7773u

/* A cache has at most this size. It has two lines for each row, so that few share a set. */
#define MOST_CACHE ((size_t)256 << 20)

static const uint32_t counts[] = {48, 384, 3072, 12288};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))
#define MOST   12288u

enum { TABLE, LINES, READV, CACHED, DIRECT, WAYS };
static const char *const way_names[WAYS] = {"table", "table, again through a cache",
                                            "READV of each row", "16 threads, page cache",
                                            "16 threads, O_DIRECT"};

/* Describes rows of a file, and the memory into which each method reads the rows. */
struct rows {
    const char *file;
    size_t row;
    uint64_t size; /* rows of the file */
    int fd, direct_fd;
    struct gpunvme *g;
    struct gpunvme_file *f;
    struct gpunvme_table *table;
    struct gpunvme_table *lines_table; /* reads through the cache; NULL: there is none */
    struct gpunvme_cache *cache;
    char *memory; /* memory of the mount: out, ids, status */
    int64_t *ids; /* host copies */
    char *expected, *host;
    struct gpunvme_piece *pieces;
    struct gpunvme_table_status status; /* result of the last gather */
    char why[WAYS][200];                /* reason why a way has failed */
};

static size_t rows_ids_at(const struct rows *r)
{
    return (MOST * r->row + PAGE - 1) / PAGE * PAGE;
}

static size_t rows_status_at(const struct rows *r)
{
    return rows_ids_at(r) + MOST * sizeof(*r->ids);
}

static int rows_fail(struct rows *r, int way, const char *why)
{
    snprintf(r->why[way], sizeof(r->why[way]), "%s", why);
    return -EIO;
}

/* --- Ways ------------------------------------------------------------------------------------ */

/* The copy of the status waits for the kernels of the gather. */
static int rows_gather(struct rows *r, int way, uint32_t n)
{
    struct gpunvme_table *table = way == LINES ? r->lines_table : r->table;
    struct gpunvme_table_status status;
    const struct gpunvme_gather a = {
        .ids = r->memory + rows_ids_at(r),
        .id_bytes = sizeof(*r->ids),
        .n = n,
        .out = r->memory,
        .status = (struct gpunvme_table_status *)(r->memory + rows_status_at(r)),
    };

    if (gpunvme_table_gather(table, &a, NULL) ||
        gpunvme_copy_out(r->g, a.status, &status, sizeof(status)))
        return rows_fail(r, way, gpunvme_error());
    if (way == TABLE)
        r->status = status;
    return status.error ? rows_fail(r, way, strerror(-status.error)) : 0;
}

static int rows_readv(struct rows *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        r->pieces[i] = (struct gpunvme_piece){.file_offset = (uint64_t)r->ids[i] * r->row,
                                              .buffer_offset = i * r->row,
                                              .len = (uint32_t)r->row};
    if (gpunvme_readv(r->f, r->memory, MOST * r->row, r->pieces, n, NULL))
        return rows_fail(r, READV, gpunvme_error());
    return 0;
}

/* Describes a thread that reads every THREADS-th row. */
struct rows_thread {
    pthread_t id;
    struct rows *r;
    uint32_t first, n;
    bool direct, failed;
};

/*
 * Reads a row to `to`, through `pages` in whole pages if the descriptor
 * requires that.
 */
static bool rows_read_one(const struct rows_thread *t, int64_t id, char *to, char *pages)
{
    size_t row = t->r->row;
    uint64_t at = (uint64_t)id * row, head = at % PAGE;

    if (!t->direct)
        return pread(t->r->fd, to, row, (off_t)at) == (ssize_t)row;
    size_t len = (head + row + PAGE - 1) / PAGE * PAGE;
    ssize_t got = pread(t->r->direct_fd, pages, len, (off_t)(at - head));
    if (got < (ssize_t)(head + row))
        return false;
    memcpy(to, pages + head, row);
    return true;
}

static void *rows_thread_run(void *arg)
{
    struct rows_thread *t = arg;
    size_t room = (t->r->row / PAGE + 2) * PAGE;
    char *pages = aligned_alloc(PAGE, room);

    t->failed = !pages;
    for (uint32_t i = t->first; i < t->n && !t->failed; i += THREADS)
        t->failed = !rows_read_one(t, t->r->ids[i], t->r->host + i * t->r->row, pages);
    free(pages);
    return NULL;
}

static int rows_by_threads(struct rows *r, uint32_t n, int way)
{
    struct rows_thread threads[THREADS];
    uint32_t started = 0;
    bool failed = false;

    if (way == DIRECT && r->direct_fd < 0)
        return rows_fail(r, way, "the file system has no O_DIRECT");
    for (; started < THREADS; started++) {
        threads[started] =
            (struct rows_thread){.r = r, .first = started, .n = n, .direct = way == DIRECT};
        if (pthread_create(&threads[started].id, NULL, rows_thread_run, &threads[started]))
            break;
    }
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(threads[i].id, NULL);
        failed |= threads[i].failed;
    }
    if (failed || started < THREADS)
        return rows_fail(r, way, "a thread could not read its rows");
    if (gpunvme_copy_in(r->g, r->memory, r->host, n * r->row))
        return rows_fail(r, way, gpunvme_error());
    return 0;
}

static int rows_run(struct rows *r, int way, uint32_t n)
{
    switch (way) {
    case TABLE:
    case LINES:
        return rows_gather(r, way, n);
    case READV:
        return rows_readv(r, n);
    default:
        return rows_by_threads(r, n, way);
    }
}

/* --- Measuring ------------------------------------------------------------------------------- */

/* Overwrites the rows that the previous way has read. */
static int rows_poison(struct rows *r, uint32_t n)
{
    memset(r->host, 0x5a, n * r->row);
    return gpunvme_copy_in(r->g, r->memory, r->host, n * r->row);
}

static int rows_verify(struct rows *r, int way, uint32_t n)
{
    if (gpunvme_copy_out(r->g, r->memory, r->host, n * r->row))
        return rows_fail(r, way, gpunvme_error());
    if (memcmp(r->host, r->expected, n * r->row) != 0)
        return rows_fail(r, way, "the rows are not those of read(2)");
    return 0;
}

/* Keeps the shortest time of all runs. */
static void rows_measure(struct rows *r, int way, uint32_t n, double *best)
{
    if (r->why[way][0] || (way == LINES && !r->lines_table))
        return;
    if (rows_poison(r, n)) {
        rows_fail(r, way, gpunvme_error());
        return;
    }
    double start = now_seconds();
    int err = rows_run(r, way, n);
    double seconds = now_seconds() - start;
    if (!err && rows_verify(r, way, n) == 0 && (*best == 0 || seconds < *best))
        *best = seconds;
}

/* Chooses random ids and reads their rows by read(2). */
static int rows_draw(struct rows *r, uint32_t n)
{
    uint64_t seed = SEED + n;

    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        r->ids[i] = (int64_t)((seed >> 11) % r->size);
        off_t at = (off_t)((uint64_t)r->ids[i] * r->row);
        ssize_t got = pread(r->fd, r->expected + i * r->row, r->row, at);
        if (got != (ssize_t)r->row)
            return cli_error(r->file, "%s", got < 0 ? strerror(errno) : "the file has shrunk");
    }
    if (gpunvme_copy_in(r->g, r->memory + rows_ids_at(r), r->ids, n * sizeof(*r->ids)))
        return cli_error(r->file, "%s", gpunvme_error());
    return 0;
}

static void rows_add(struct cli_table *t, const struct rows *r, int way, uint32_t n, double best)
{
    if (best <= 0)
        return;
    struct json_object *cells[] = {json_object_new_uint64(n), cli_text(way_names[way]),
                                   json_object_new_uint64((uint64_t)(best * 1e6 + 0.5)),
                                   json_object_new_uint64((uint64_t)((double)n / best + 0.5)),
                                   way == TABLE ? json_object_new_uint64(r->status.reads) : NULL};
    cli_table_add(t, cells);
}

/* All ways run in every turn, so that other load disturbs each of them. */
static int rows_measure_all(struct rows *r, struct cli_table *t)
{
    for (size_t k = 0; k < COUNTS; k++) {
        double best[WAYS] = {0};

        if (rows_draw(r, counts[k]))
            return 1;
        for (int i = 0; i < TURNS * WAYS; i++)
            rows_measure(r, i % WAYS, counts[k], &best[i % WAYS]);
        for (int way = 0; way < WAYS; way++)
            rows_add(t, r, way, counts[k], best[way]);
    }
    return 0;
}

/* --- The file -------------------------------------------------------------------------------- */

/*
 * Opens the table that reads through a cache, if the leases of the file serve
 * tables and there is memory for both.
 */
static void rows_open_lines(struct rows *r, const struct gpunvme_segment *all)
{
    size_t unit = gpunvme_table_unit(r->table);
    size_t len = min_u64(2 * MOST * ((r->row - 1) / unit + 2) * unit, MOST_CACHE);

    if (gpunvme_table_why(r->table) ||
        gpunvme_table_open(all, 1, (uint32_t)r->row, MOST, NULL, &r->lines_table))
        return;
    if (gpunvme_cache_open(r->f, len, (uint32_t)unit, &r->cache) == 0 &&
        gpunvme_table_use_cache(r->lines_table, r->cache) == 0)
        return;
    gpunvme_table_close(r->lines_table);
    r->lines_table = NULL;
}

/* Opens the file on leased queues if its mount lends them. */
static int rows_open_file(struct rows *r)
{
    r->fd = open(r->file, O_RDONLY | O_CLOEXEC);
    r->direct_fd = open(r->file, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (r->fd < 0)
        return cli_error(r->file, "%s", strerror(errno));
    if (gpunvme_open(NULL, &r->g) || (gpunvme_file_open(r->g, r->fd, GPUNVME_FILE_DIRECT, &r->f) &&
                                      gpunvme_file_open(r->g, r->fd, 0, &r->f)))
        return cli_error(r->file, "%s", gpunvme_error());
    int64_t size = gpunvme_file_size(r->f);
    r->size = size > 0 ? (uint64_t)size / r->row : 0;
    if (!r->size)
        return cli_error(r->file, "no regular file that has a row of %zu bytes", r->row);
    return 0;
}

static int rows_open(struct rows *r)
{
    void *memory;
    int failed = rows_open_file(r);

    if (failed)
        return failed;
    const struct gpunvme_segment all = {r->f, 0, r->size};
    if (gpunvme_table_open(&all, 1, (uint32_t)r->row, MOST, NULL, &r->table) ||
        gpunvme_alloc(r->f, rows_status_at(r) + sizeof(r->status), &memory))
        return cli_error(r->file, "%s", gpunvme_error());
    rows_open_lines(r, &all);
    r->memory = memory;
    r->ids = calloc(MOST, sizeof(*r->ids));
    r->pieces = calloc(MOST, sizeof(*r->pieces));
    r->expected = malloc(MOST * r->row);
    r->host = malloc(MOST * r->row);
    if (!r->ids || !r->pieces || !r->expected || !r->host)
        return cli_error(r->file, "out of memory for %u rows of %zu bytes", MOST, r->row);
    return 0;
}

static void rows_close(struct rows *r)
{
    gpunvme_table_close(r->table);
    gpunvme_table_close(r->lines_table);
    gpunvme_cache_close(r->cache);
    gpunvme_close(r->g);
    free(r->ids);
    free(r->pieces);
    free(r->expected);
    free(r->host);
    if (r->fd >= 0)
        close(r->fd);
    if (r->direct_fd >= 0)
        close(r->direct_fd);
}

static int rows_report(const struct rows *r, const struct cli_table *t, struct cli_out *out)
{
    const char *why = gpunvme_table_why(r->table);
    int failed = 0;

    cli_out_open(out, NULL, r->file);
    if (out->json)
        cli_out_string(out, "file", "File:", r->file);
    cli_out_bytes(out, "row_bytes", "Row:", r->row);
    cli_out_string(out, "table", "Table:", why ? "READV" : "direct path");
    if (why)
        cli_out_string(out, "why", "Why:", why);
    cli_table_print(t, out, "runs");
    cli_out_close(out);
    for (int way = 0; way < WAYS; way++) {
        if (r->why[way][0])
            failed = cli_error(r->file, "%s: %s", way_names[way], r->why[way]);
    }
    return failed;
}

int cli_bench_rows(size_t row, struct cli_out *out, const char *file)
{
    static const struct cli_column columns[] = {{"rows", "ROWS", CLI_CELL_NUMBER},
                                                {"way", "WAY", CLI_CELL_TEXT},
                                                {"us", "US", CLI_CELL_NUMBER},
                                                {"rows_per_s", "ROWS/S", CLI_CELL_NUMBER},
                                                {"ranges_read", "RANGES", CLI_CELL_NUMBER}};
    struct cli_table t = {.columns = columns, .n_columns = sizeof(columns) / sizeof(columns[0])};
    struct rows r = {.file = file, .row = row, .fd = -1, .direct_fd = -1};
    int failed = rows_open(&r);

    if (!failed)
        failed = rows_measure_all(&r, &t);
    if (!failed)
        failed = rows_report(&r, &t, out);
    cli_table_free(&t);
    rows_close(&r);
    return failed;
}
