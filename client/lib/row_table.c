/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Gathers rows of files by number. On the direct path of a GPU a gather launches
 * the kernel of gd_table.h, and the kernel of lists once for each file. A gather
 * of few rows launches only the kernel of gd_table_few.h. Without a GPU the
 * calling thread executes these kernels. Without leases it executes the passes
 * and reads by READV.
 */
#include "client/lib/row_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/device/device_image.h"
#include "client/lib/call_stats.h"
#include "support/minmax.h"

#define KERNEL       "gpunvme_table"
#define FEW_KERNEL   "gpunvme_table_few"
#define WARP         32u
#define MOST_STAGING ((size_t)256 << 20)
#define MOST_UNIT    65536u
#define UNKNOWN_UNIT 4096u /* the block size of most file systems */
#define LEAST_UNIT   256u
#define MOST_OFFSET  (LEAST_UNIT * ((uint64_t)1 << GD_TABLE_UNIT_BITS)) /* limit of keys */

static_assert(sizeof(struct gpunvme_table_status) == sizeof(struct gd_table_status) &&
                  offsetof(struct gpunvme_table_status, first_id) ==
                      offsetof(struct gd_table_status, first_id) &&
                  offsetof(struct gpunvme_table_status, error) ==
                      offsetof(struct gd_table_status, error) &&
                  offsetof(struct gpunvme_table_status, reads) ==
                      offsetof(struct gd_table_status, reads),
              "stored by the kernel");
static_assert(GPUNVME_SEGMENTS_MAX <= 1u << GD_TABLE_FILE_BITS &&
                  4 * GPUNVME_TABLE_ROWS_MAX <= GD_TABLE_SLOTS,
              "numbers fit into keys and places");

/* --- Files ----------------------------------------------------------------------------------- */

/* Checks a segment; no sum overflows. */
static int table_check_segment(const struct gpunvme_segment *s, const struct gd_row_table *table)
{
    int64_t size = s->file->regular ? gpunvme_file_size(s->file) : (int64_t)MOST_OFFSET;

    if (size < 0)
        return (int)size;
    uint64_t room = min_u64((uint64_t)size, MOST_OFFSET), row = table->row_bytes;
    if (s->rows && row <= room && s->offset <= room - row &&
        s->rows - 1 <= (room - row - s->offset) / table->stride)
        return 0;
    return gpunvme_fail(
        -EINVAL, "%llu rows of %llu bytes from byte %llu on: not inside a file of %lld bytes",
        (unsigned long long)s->rows, (unsigned long long)row, (unsigned long long)s->offset,
        (long long)size);
}

/* Adds a file to the table unless it has the file, and returns its number. */
static uint32_t table_add_file(struct gpunvme_table *t, struct gpunvme_file *f)
{
    uint32_t i = 0;

    while (i < t->table.n_files && t->files[i] != f)
        i++;
    if (i == t->table.n_files) {
        file_get(f);
        t->files[t->table.n_files++] = f;
    }
    return i;
}

/* Checks the segments, and stores them as the kernel expects them. */
static int table_add_segments(struct gpunvme_table *t, const struct gpunvme_segment *segments,
                              size_t n, struct gd_table_segment *out)
{
    for (size_t i = 0; i < n; i++) {
        const struct gpunvme_segment *s = &segments[i];

        if (!s->file || s->file->g != t->g)
            return gpunvme_fail(-EINVAL, "segment %zu: no file, or one of another handle", i);
        int err = table_check_segment(s, &t->table);
        if (err)
            return err;
        if (s->rows > INT64_MAX - t->table.rows)
            return gpunvme_fail(-EINVAL, "more rows than an id can name");
        out[i] = (struct gd_table_segment){
            .first_row = t->table.rows, .offset = s->offset, .file = table_add_file(t, s->file)};
        t->table.rows += s->rows;
    }
    return 0;
}

/* --- The path -------------------------------------------------------------------------------- */

/*
 * Returns the reason why the leases of a file do not serve the table, or NULL
 * if they do.
 */
static const char *table_why_not(const struct gpunvme_table *t, const struct gpunvme_file *f)
{
    if (f->why[0])
        return f->why;
    if (!f->leased)
        return "a file has no leases: open it with GPUNVME_FILE_DIRECT";
    if (f->leased->d != t->files[0]->leased->d)
        return "the files are on several mounts, or a lease has ended between their opens";
    if (f->leased->d->space.cuda && !table_image())
        return "this libgpunvme was built without CUDA: it has no kernels";
    return NULL;
}

static void table_choose_path(struct gpunvme_table *t)
{
    const char *why = NULL;

    for (uint32_t i = 0; i < t->table.n_files && !why; i++)
        why = table_why_not(t, t->files[i]);
    if (why) {
        snprintf(t->why, sizeof(t->why), "%s", why);
        return;
    }
    t->direct = t->files[0]->leased->d;
    t->space = t->direct->space;
}

/* Returns the smallest unit in which a file can be read. */
static uint32_t table_least_unit(const struct gpunvme_table *t, const struct gpunvme_file *f)
{
    if (f->why[0])
        return UNKNOWN_UNIT;
    if (t->direct && f->leased->device.sums.words)
        return GQ_SUM_BLOCK;
    return f->mount->info.lba_size;
}

static int table_set_unit(struct gpunvme_table *t, uint32_t want)
{
    uint32_t unit = want > LEAST_UNIT ? want : LEAST_UNIT;

    if (want > MOST_UNIT || (want & (want - 1)))
        return gpunvme_fail(-EINVAL, "units of %u bytes: not a power of two up to %u", want,
                            MOST_UNIT);
    for (uint32_t i = 0; i < t->table.n_files; i++) {
        uint32_t least = table_least_unit(t, t->files[i]);
        if (least > MOST_UNIT || (least & (least - 1)))
            return gpunvme_fail(-EINVAL, "a mount with LBAs of %u bytes", least);
        unit = unit > least ? unit : least;
    }
    while (1u << t->table.unit_shift < unit)
        t->table.unit_shift++;
    return 0;
}

/* --- Memory ---------------------------------------------------------------------------------- */

/*
 * Returns the maximum length of a piece. All rows begin at a multiple of the
 * greatest power of two that divides the unit, the stride and the offsets.
 */
static uint64_t table_piece_len(const struct gd_row_table *table, const struct gd_table_segment *s)
{
    uint64_t unit = (uint64_t)1 << table->unit_shift, all = unit | table->stride;

    for (uint32_t i = 0; i < table->n_segments; i++)
        all |= s[i].offset;
    uint64_t worst = unit - (all & -all);
    return (worst + table->row_bytes + unit - 1) / unit * unit;
}

/*
 * Allocates memory that the mount reaches, or ordinary memory in a process that
 * cannot use CUDA, such as a child of one that did.
 */
static int table_alloc_host(struct gpunvme_table *t, size_t len)
{
    int err = gpunvme_alloc_host(t->files[0], len, &t->staging);

    if (err != -ENODEV)
        return err;
    t->staging = malloc(len);
    t->staging_is_ordinary = t->staging != NULL;
    return t->staging ? 0 : gpunvme_fail(-ENOMEM, "out of memory");
}

static int table_alloc_staging(struct gpunvme_table *t, const struct gd_table_segment *s,
                               size_t want)
{
    struct gd_row_table *table = &t->table;
    uint64_t piece = table_piece_len(table, s), most = want ? want : MOST_STAGING;

    if (piece > INT32_MAX || (want && want < piece))
        return gpunvme_fail(-EINVAL, "staging of %zu bytes: a range may have %llu bytes", want,
                            (unsigned long long)piece);
    uint64_t pieces = min_u64(t->max_rows, most / piece);
    table->slot_bytes = (uint32_t)piece;
    table->turn = pieces ? (uint32_t)pieces : 1;
    size_t len = (size_t)table->turn * table->slot_bytes;
    int err = t->direct ? gpunvme_alloc(t->files[0], len, &t->staging) : table_alloc_host(t, len);
    table->staging = (uintptr_t)t->staging;
    return err;
}

/* Lets gathers notice lost commands if commands write to the staging itself. */
static int table_watch_staging(struct gpunvme_table *t)
{
    struct gd_buffer b;
    int err = t->direct ? direct_buffer_find(t->direct, t->table.staging, 1, &b) : 0;

    if (!err && t->direct && !GD_STAGES(&b))
        t->table.file = leased_file_device(t->files[0]->leased);
    return err;
}

/* Places the arrays from `at` on, and returns their end. */
static uint64_t table_place_all(struct gpunvme_table *t, uint64_t at)
{
    struct gd_row_table *table = &t->table;

    table->segments = memory_space_place(&at, table->n_segments, sizeof(*table->segments));
    table->slots = memory_space_place(&at, gd_table_slots(t->max_rows), sizeof(*table->slots));
    table->places = memory_space_place(&at, t->max_rows, sizeof(*table->places));
    table->pieces = memory_space_place(&at, t->max_rows, sizeof(*table->pieces));
    table->counts = memory_space_place(&at, table->n_files, sizeof(*table->counts));
    table->bounds = memory_space_place(&at, table->n_files + 1, sizeof(*table->bounds));
    table->words = memory_space_place(&at, 1, sizeof(*table->words));
    table->files = memory_space_place(&at, table->n_files, sizeof(*table->files));
    t->caches_at = (uintptr_t)memory_space_place(&at, table->n_files, sizeof(*table->caches));
    return at;
}

/* Stores the addresses of the files for kernels. */
static int table_put_files(struct gpunvme_table *t)
{
    uint64_t to = (uintptr_t)t->table.files;
    int err = 0;

    for (uint32_t i = 0; t->direct && i < t->table.n_files && !err; i++) {
        const struct gpunvme_device_file *f = leased_file_device(t->files[i]->leased);

        err = memory_space_put(&t->space, to + i * sizeof(f), &f, sizeof(f));
    }
    t->table.first_file = t->direct ? leased_file_device(t->files[0]->leased) : NULL;
    return err;
}

static int row_table_alloc(struct gpunvme_table *t, const struct gd_table_segment *segments)
{
    const struct gd_table_words words = {.first = UINT64_MAX};
    int err = memory_space_alloc(&t->space, table_place_all(t, 0), &t->workspace);

    t->table.only = segments[0];
    if (err)
        return err;
    table_place_all(t, t->workspace);
    err = memory_space_put(&t->space, (uintptr_t)t->table.words, &words, sizeof(words));
    if (!err)
        err = table_put_files(t);
    return err ? err
               : memory_space_put(&t->space, (uintptr_t)t->table.segments, segments,
                                  t->table.n_segments * sizeof(*segments));
}

/* --- Open and close -------------------------------------------------------------------------- */

static int table_load(struct gpunvme_table *t)
{
    struct cuda_driver *cu = t->space.cuda;

    if (!cu)
        return 0;
    int err = cuda_driver_load(cu, t->space.device, table_image(), KERNEL, &t->kernel);
    return err ? err
               : cuda_driver_load(cu, t->space.device, table_image(), FEW_KERNEL, &t->few_kernel);
}

static int table_fill(struct gpunvme_table *t, const struct gpunvme_segment *segments,
                      const struct gpunvme_table_options *o, struct gd_table_segment *out)
{
    int err = table_add_segments(t, segments, t->table.n_segments, out);

    if (err)
        return err;
    table_choose_path(t);
    err = table_set_unit(t, o->unit);
    if (!err)
        err = table_load(t);
    if (!err)
        err = table_alloc_staging(t, out, o->staging);
    if (!err)
        err = table_watch_staging(t);
    return err ? err : row_table_alloc(t, out);
}

static int table_check_limits(size_t n, uint32_t row_bytes, size_t max_rows,
                              const struct gpunvme_table_options *o)
{
    if (n == 0 || n > GPUNVME_SEGMENTS_MAX)
        return gpunvme_fail(-EINVAL, "%zu segments: not from 1 to %u", n, GPUNVME_SEGMENTS_MAX);
    if (row_bytes == 0 || row_bytes > GPUNVME_ROW_MAX)
        return gpunvme_fail(-EINVAL, "rows of %u bytes: not from 1 to %u", row_bytes,
                            GPUNVME_ROW_MAX);
    if (o->row_stride && o->row_stride < row_bytes)
        return gpunvme_fail(-EINVAL, "row_stride %llu: less than a row of %u bytes",
                            (unsigned long long)o->row_stride, row_bytes);
    if (max_rows == 0 || max_rows > GPUNVME_TABLE_ROWS_MAX)
        return gpunvme_fail(-EINVAL, "max_rows %zu: not from 1 to %u", max_rows,
                            GPUNVME_TABLE_ROWS_MAX);
    return 0;
}

static struct gpunvme_table *table_new(struct gpunvme *g, size_t n, uint32_t row_bytes,
                                       size_t max_rows, const struct gpunvme_table_options *o)
{
    struct gpunvme_table *t = calloc(1, sizeof(*t));
    struct gpunvme_file **files = calloc(n, sizeof(*files));

    if (!t || !files) {
        free(t);
        free(files);
        return NULL;
    }
    t->g = g;
    t->files = files;
    t->max_rows = (uint32_t)max_rows;
    t->table.row_bytes = row_bytes;
    t->table.stride = o->row_stride ? o->row_stride : row_bytes;
    t->table.n_segments = (uint32_t)n;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

int gpunvme_table_open(const struct gpunvme_segment *segments, size_t n, uint32_t row_bytes,
                       size_t max_rows, const struct gpunvme_table_options *options,
                       struct gpunvme_table **out)
{
    const struct gpunvme_table_options none = {0}, *o = options ? options : &none;
    int err = table_check_limits(n, row_bytes, max_rows, o);

    if (err)
        return err;
    if (!segments[0].file)
        return gpunvme_fail(-EINVAL, "segment 0: no file");
    err = handle_check_process(segments[0].file->g);
    if (err)
        return err;
    struct gpunvme_table *t = table_new(segments[0].file->g, n, row_bytes, max_rows, o);
    struct gd_table_segment *of_kernel = calloc(n, sizeof(*of_kernel));
    if (t && of_kernel)
        err = table_fill(t, segments, o, of_kernel);
    else
        err = gpunvme_fail(-ENOMEM, "out of memory");
    free(of_kernel);
    if (err)
        gpunvme_table_close(t);
    else
        *out = t;
    return err;
}

void gpunvme_table_close(struct gpunvme_table *t)
{
    if (!t || handle_check_process(t->g))
        return;
    memory_space_free(&t->space, t->workspace);
    if (t->staging_is_ordinary)
        free(t->staging);
    else if (t->staging)
        (void)gpunvme_unregister(t->g, t->staging); /* the mount may no longer exist */
    if (t->space.cuda) {
        cuda_driver_unload(t->space.cuda, t->space.device, &t->kernel);
        cuda_driver_unload(t->space.cuda, t->space.device, &t->few_kernel);
    }
    for (uint32_t i = 0; i < t->table.n_files; i++)
        file_put(t->files[i]);
    pthread_mutex_destroy(&t->lock);
    free(t->files);
    free(t);
}

const char *gpunvme_table_why(const struct gpunvme_table *t)
{
    return t->direct ? NULL : t->why;
}

uint64_t gpunvme_table_rows(const struct gpunvme_table *t)
{
    return t->table.rows;
}

uint32_t gpunvme_table_unit(const struct gpunvme_table *t)
{
    return 1u << t->table.unit_shift;
}

int gpunvme_table_stats(struct gpunvme_table *t, struct gpunvme_table_stats *out, size_t size)
{
    struct gd_table_words words;
    int err = handle_check_process(t->g);

    if (err)
        return err;
    pthread_mutex_lock(&t->lock);
    err = memory_space_get(&t->space, &words, (uintptr_t)t->table.words, sizeof(words));
    const struct gpunvme_table_stats all = {.gathers = words.gathers,
                                            .rows = words.rows,
                                            .reads = words.reads,
                                            .failed = words.all_failed,
                                            .commands = t->commands,
                                            .hits = words.hits};
    pthread_mutex_unlock(&t->lock);
    if (err)
        return err;
    memset(out, 0, size);
    memcpy(out, &all, size < sizeof(all) ? size : sizeof(all));
    return 0;
}

/* --- Caches ---------------------------------------------------------------------------------- */

/* Checks a cache, and stores the number of its file. */
static int table_check_cache(const struct gpunvme_table *t, const struct gpunvme_cache *c,
                             uint32_t *file)
{
    uint32_t line_shift = c->device.line_shift, i = 0;

    if (!t->direct)
        return gpunvme_fail(-ENOTSUP, "a table without the direct path has no cache: %s", t->why);
    while (i < t->table.n_files && t->files[i] != c->file)
        i++;
    if (i == t->table.n_files)
        return gpunvme_fail(-EINVAL, "the cache is of a file that the table does not have");
    if (line_shift > t->table.unit_shift)
        return gpunvme_fail(-EINVAL, "lines of %u bytes: the table reads units of %u",
                            1u << line_shift, 1u << t->table.unit_shift);
    *file = i;
    return 0;
}

int gpunvme_table_use_cache(struct gpunvme_table *t, const struct gpunvme_cache *c)
{
    const struct gd_table_cache entry = {.cache = gpunvme_cache_device(c)};
    uint32_t file = 0;
    int err = handle_check_process(t->g);

    if (!err)
        err = table_check_cache(t, c, &file);
    if (err)
        return err;
    pthread_mutex_lock(&t->lock);
    err = memory_space_put(&t->space, t->caches_at + file * sizeof(entry), &entry, sizeof(entry));
    if (!err)
        t->table.caches = (struct gd_table_cache *)(uintptr_t)t->caches_at;
    pthread_mutex_unlock(&t->lock);
    return err;
}

/* --- Gathers --------------------------------------------------------------------------------- */

static int table_check_gather(const struct gpunvme_table *t, const struct gpunvme_gather *a)
{
    size_t stride = a->out_stride ? a->out_stride : t->table.row_bytes;

    if (a->id_bytes != 4 && a->id_bytes != 8)
        return gpunvme_fail(-EINVAL, "ids of %u bytes: not 4 or 8", a->id_bytes);
    if (a->flags & ~(GPUNVME_GATHER_PAD | GPUNVME_GATHER_ZEROS))
        return gpunvme_fail(-EINVAL, "unknown flags 0x%x", a->flags);
    if (a->n > t->max_rows)
        return gpunvme_fail(-EINVAL, "a gather of %zu rows: the table was opened for up to %u",
                            a->n, t->max_rows);
    if (stride < t->table.row_bytes || stride > SIZE_MAX / (a->n + 1))
        return gpunvme_fail(-EINVAL, "out_stride %zu: less than a row of %u bytes, or too large",
                            stride, t->table.row_bytes);
    if (!a->status || (uintptr_t)a->status % 8 || (a->n && (!a->ids || !a->out)) ||
        (uintptr_t)a->ids % a->id_bytes)
        return gpunvme_fail(-EINVAL, "ids, out or status: missing, or not aligned");
    return 0;
}

/*
 * Returns the number of blocks that have work in the pass. A lane has one id.
 * In a pass that copies rows, a warp has one row.
 */
static unsigned table_blocks(const struct gd_table_launch *l)
{
    uint32_t slots = l->mask + 1;
    bool copies = l->pass == GD_TABLE_PICK || (l->pass == GD_TABLE_CLAIM && l->table.caches);
    uint64_t work = l->pass == GD_TABLE_CLEAR ? slots / WARP
                    : copies                  ? l->n
                                              : (uint64_t)l->n / WARP + 1;

    return (unsigned)min_u64(work / GD_TABLE_WARPS + 1, GD_TABLE_BLOCKS);
}

static int table_pass(struct gpunvme_table *t, struct gd_table_launch *l, enum gd_table_pass pass,
                      void *stream)
{
    void *args[] = {l};

    l->pass = pass;
    if (t->space.cuda)
        return cuda_driver_launch(t->space.cuda, t->space.device, &t->kernel, table_blocks(l),
                                  GD_TABLE_WARPS * WARP, stream, args);
    table_host_pass(l);
    return 0;
}

static int table_read_direct(struct gpunvme_table *t, const struct gd_table_launch *l, void *stream)
{
    int err = 0;

    for (uint32_t k = 0; k < t->table.n_files && l->n && !err; k++) {
        const struct direct_window win = {.ptr = t->staging,
                                          .pieces = t->table.pieces,
                                          .bounds = t->table.bounds + k,
                                          .from = l->first,
                                          .n = (uint32_t)min_u64(t->table.turn, l->n)};

        err = direct_list_read_window(t->files[k]->leased, &win, stream);
    }
    return err;
}

/* Reads the pieces from number `first` on and picks the rows that lie in them. */
static int table_turn(struct gpunvme_table *t, struct gd_table_launch *l, uint64_t first,
                      void *stream)
{
    int err = 0;

    l->first = (uint32_t)first;
    l->is_last = first + t->table.turn >= l->n;
    if (t->direct)
        err = table_read_direct(t, l, stream);
    else
        table_host_read(t, l);
    return err ? err : table_pass(t, l, GD_TABLE_PICK, stream);
}

/* Returns true if one launch may gather the rows. It does not clear the words of another gather. */
static bool table_takes_few(const struct gpunvme_table *t, const struct gd_table_launch *l)
{
    return t->space.cuda && l->n <= GD_TABLE_FEW && l->n <= l->table.turn && !l->table.caches &&
           !t->has_begun;
}

/*
 * Gathers few rows by a group for each queue of the leases, because a group sends the commands of
 * all of its rows at once.
 */
static int table_few(struct gpunvme_table *t, struct gd_table_launch *l, void *stream)
{
    uint64_t groups = max_u64(l->n / WARP + 1, min_u64(l->n, t->direct->lease.queues));
    void *args[] = {l};

    return cuda_driver_launch(t->space.cuda, t->space.device, &t->few_kernel,
                              (unsigned)(groups + GD_TABLE_FEW_WARPS - 1) / GD_TABLE_FEW_WARPS,
                              GD_TABLE_FEW_WARPS * WARP, stream, args);
}

/*
 * Launches as many turns as n ids may need, because the host does not know how
 * many ranges the rows touch.
 */
static int table_run(struct gpunvme_table *t, struct gd_table_launch *l, void *stream)
{
    int err = 0;

    if (table_takes_few(t, l))
        return table_few(t, l, stream);
    t->has_begun = true;
    for (uint32_t pass = GD_TABLE_CLEAR; pass <= GD_TABLE_PLACE && !err; pass++)
        err = table_pass(t, l, (enum gd_table_pass)pass, stream);
    for (uint64_t first = 0; !err && (first == 0 || first < l->n); first += t->table.turn)
        err = table_turn(t, l, first, stream);
    t->has_begun = err != 0;
    return err;
}

int gpunvme_table_gather(struct gpunvme_table *t, const struct gpunvme_gather *a, void *stream)
{
    int err = handle_check_process(t->g);

    if (!err)
        err = table_check_gather(t, a);
    if (err)
        return err;
    struct gd_table_launch l = {
        .table = t->table,
        .ids = a->ids,
        .n = (uint32_t)a->n,
        .wide = a->id_bytes == 8,
        .pads = a->flags & GPUNVME_GATHER_PAD,
        .zeros = a->flags & GPUNVME_GATHER_ZEROS,
        .mask = gd_table_slots((uint32_t)a->n) - 1,
        .out = (uintptr_t)a->out,
        .out_stride = a->out_stride ? a->out_stride : t->table.row_bytes,
        .status = (struct gd_table_status *)a->status,
    };
    pthread_mutex_lock(&t->lock);
    err = t->space.cuda ? table_run(t, &l, stream) : table_host_gather(t, &l, stream, table_run);
    pthread_mutex_unlock(&t->lock);
    if (!err && t->direct)
        call_stats_enqueued(t->direct->g, 0);
    return err;
}
