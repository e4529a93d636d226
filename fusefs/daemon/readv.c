#include "fusefs/daemon/readv.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/*
 * Pieces of one call of the engine. A batch of more is read by two threads, so that one prepares
 * its pieces while those of the other are under way.
 */
#define CHUNK 16384u

enum state { OPEN, DONE, FAILED }; /* FAILED: the drive has refused it */

struct batch {
    struct readv *r;
    volatile struct gpunvme_piece *pieces; /* the client's memory */
    uint64_t count;
    uint64_t buffer_len;
    uint8_t *states; /* enum state; a piece belongs to one thread at a time */

    /* The part of the file that is mapped now. */
    struct gq_file_extent *extents;
    size_t n_extents;
    uint64_t start, end; /* file bytes */
    uint64_t size;       /* of the file */
    _Atomic uint64_t next;

    pthread_mutex_t lock; /* protects the rest while there are two threads */
    int error;            /* the first of the engine's */
    bool stuck;           /* commands may be under way for ever */
    uint64_t bytes;
};

/* What one thread has at the engine; lies in a bounce buffer. */
struct chunk {
    struct gq_read reads[CHUNK];
    uint32_t results[CHUNK];
    uint32_t places[CHUNK]; /* of the reads' pieces in the batch */
    size_t n;
    uint64_t bytes; /* of pieces that are done */
};
static_assert(sizeof(struct chunk) <= MAX_IO, "fits a bounce buffer");

/* --- Pieces ---------------------------------------------------------------------------------- */

static struct gpunvme_piece copy_out(const volatile struct gpunvme_piece *p)
{
    return (struct gpunvme_piece){
        .file_offset = p->file_offset, .buffer_offset = p->buffer_offset, .len = p->len};
}

static int check(const struct batch *b, const struct gpunvme_piece *p)
{
    if (p->len > INT32_MAX)
        return -EINVAL;
    if (p->file_offset > INT64_MAX - (uint64_t)p->len)
        return -EOVERFLOW;
    return p->buffer_offset > b->buffer_len || p->len > b->buffer_len - p->buffer_offset ? -ERANGE
                                                                                         : 0;
}

static void finish(struct batch *b, uint64_t i, int32_t result)
{
    b->pieces[i].result = result;
    b->states[i] = DONE;
}

/*
 * Makes reads of those of [first, end) that lie in the part of the file that is mapped; the others
 * stay as they are. What needs no reading is done.
 */
static void prepare(struct batch *b, uint64_t first, uint64_t end, struct chunk *c)
{
    c->n = 0;
    for (uint64_t i = first; i < end; i++) {
        if (b->states[i] != OPEN)
            continue;
        struct gpunvme_piece p = copy_out(&b->pieces[i]);
        int err = check(b, &p);
        uint64_t len = p.len;
        if (p.file_offset >= b->size)
            len = 0;
        else if (len > b->size - p.file_offset)
            len = b->size - p.file_offset;
        if (err || len == 0) {
            finish(b, i, err);
            continue;
        }
        if (p.file_offset < b->start || p.file_offset + len > b->end)
            continue;
        c->reads[c->n] =
            (struct gq_read){.file_offset = p.file_offset, .at = p.buffer_offset, .len = len};
        c->places[c->n] = (uint32_t)i;
        c->results[c->n++] = GQ_READ_LOST;
    }
}

/* Results of the engine become those of pieces; the NVMe status of one that failed, or 0. */
static uint16_t take_results(struct batch *b, struct chunk *c)
{
    uint16_t status = 0;
    for (size_t k = 0; k < c->n; k++) {
        if (c->results[k] == GQ_READ_OK) {
            finish(b, c->places[k], (int32_t)c->reads[k].len);
            c->bytes += c->reads[k].len;
        } else if (c->results[k] & GQ_ENDED) {
            b->states[c->places[k]] = FAILED;
            status = (uint16_t)c->results[k];
        }
    }
    return status;
}

/* --- By the engine --------------------------------------------------------------------------- */

static void account(struct batch *b, const struct gq_result *result, uint16_t status, int err)
{
    struct transfer *t = &b->r->t;
    bool stuck = result->unsettled && !transfer_settle(t->daemon);
    pthread_mutex_lock(&b->lock);
    t->rw.commands += result->commands;
    if (!t->rw.nvme_status)
        t->rw.nvme_status = status ? status : result->nvme_status;
    t->needs_recovery |= err == -ENODEV;
    b->stuck |= stuck;
    pthread_mutex_unlock(&b->lock);
}

static int read_chunk(struct batch *b, struct chunk *c)
{
    struct transfer *t = &b->r->t;
    struct gq_result result = {0};
    unsigned left;
    int err = transfer_time_left(t, &left);
    if (err || c->n == 0)
        return err;
    struct gq_readv req = {.buffer = buffer_gq(t->use.buffer),
                           .extents = b->extents,
                           .n_extents = b->n_extents,
                           .end = b->end < b->size ? b->end : b->size,
                           .reads = c->reads,
                           .results = c->results,
                           .n = c->n,
                           .deadline_ms = left,
                           .cancel = (const volatile uint32_t *)&t->cancel};
    err = gq_readv(t->daemon->stack.engine, &req, &result);
    account(b, &result, take_results(b, c), err);
    return err;
}

static bool has_failed(struct batch *b)
{
    pthread_mutex_lock(&b->lock);
    bool failed = b->error != 0;
    pthread_mutex_unlock(&b->lock);
    return failed || transfer_is_cancelled(&b->r->t);
}

static void end_work(struct batch *b, const struct chunk *c, int err)
{
    pthread_mutex_lock(&b->lock);
    if (!b->error)
        b->error = err;
    if (c)
        b->bytes += c->bytes;
    pthread_mutex_unlock(&b->lock);
}

/* Chunk after chunk, until there are no more. */
static void *work(void *arg)
{
    struct batch *b = arg;
    struct bounce_pool *pool = &b->r->t.daemon->bounces;
    struct bounce *memory = bounce_get(pool);
    struct chunk *c = memory ? memory->data : NULL;
    int err = c ? 0 : -ENOMEM;
    if (c)
        c->bytes = 0;
    while (!err && !has_failed(b)) {
        uint64_t first = atomic_fetch_add_explicit(&b->next, CHUNK, memory_order_relaxed);
        if (first >= b->count)
            break;
        prepare(b, first, b->count - first < CHUNK ? b->count : first + CHUNK, c);
        err = read_chunk(b, c);
    }
    end_work(b, c, err);
    if (memory)
        bounce_put(pool, memory);
    return NULL;
}

static void work_all(struct batch *b)
{
    pthread_t second;
    bool helped = b->count > CHUNK && pthread_create(&second, NULL, work, b) == 0;
    work(b);
    if (helped)
        pthread_join(second, NULL);
}

/* --- The map --------------------------------------------------------------------------------- */

/*
 * What the pieces span, as far as that can be said of pieces that may change. Nothing relies on it:
 * what lies elsewhere later is read by itself.
 */
static void span(const struct batch *b, uint64_t *start, uint64_t *end)
{
    *start = UINT64_MAX;
    *end = 0;
    for (uint64_t i = 0; i < b->count; i++) {
        uint64_t first = b->pieces[i].file_offset;
        uint64_t len = b->pieces[i].len;
        if (first > INT64_MAX - len)
            continue;
        *start = first < *start ? first : *start;
        *end = first + len > *end ? first + len : *end;
    }
}

/* The map in the executor's terms; extents that touch become one. */
static int translate(struct batch *b, const struct ffs_map *map)
{
    unsigned shift = (unsigned)__builtin_ctz(b->r->t.daemon->stack.engine_info.lba_size);
    uint64_t expected = 0; /* on the device, if the segment goes on where the last one ended */
    b->n_extents = 0;
    b->extents = malloc((map->count + 1) * sizeof(b->extents[0]));
    if (!b->extents)
        return -ENOMEM;
    for (size_t i = 0; i < map->count; i++) {
        const struct ffs_segment *s = &map->segments[i];
        uint64_t device = s->unwritten ? FFS_HOLE : s->device;
        if (i == 0 || device != expected)
            b->extents[b->n_extents++] = (struct gq_file_extent){
                .offset = s->offset, .lba = device == FFS_HOLE ? GQ_LBA_ZERO : device >> shift};
        expected = device == FFS_HOLE ? FFS_HOLE : device + s->len;
    }
    return 0;
}

/* All pieces in the part of [start, end) that one map can hold; *start goes to its end. */
static int read_part(struct batch *b, uint64_t *start, uint64_t *end)
{
    struct ffs_map map;
    int err = ffs_map_read_some(b->r->t.inode, *start, *end - *start, GQ_READV_EXTENTS, &map);
    if (err)
        return err;
    b->start = map.start;
    b->end = *start + map.len;
    b->size = map.size;
    atomic_store_explicit(&b->next, 0, memory_order_relaxed);
    err = translate(b, &map);
    if (!err)
        work_all(b);
    free(b->extents);
    if (b->stuck)
        ffs_map_abandon(&map);
    else
        ffs_map_release(&map);
    *start = b->end;
    *end = *end < b->size ? *end : b->size;
    return err ? err : b->error;
}

/*
 * What the engine can read. 0 when the rest can be read otherwise. A signal, and the end of the
 * caller's time, end the batch.
 */
static int read_by_engine(struct batch *b)
{
    struct transfer *t = &b->r->t;
    uint64_t start, end;
    int err = 0;
    span(b, &start, &end);
    while (!err && start < end && !transfer_is_cancelled(t))
        err = read_part(b, &start, &end);
    if (b->bytes)
        t->rw.path |= GPUNVME_PATH_GPU;
    if (!err || err == -E2BIG)
        return 0;
    return transfer_fall_back(t, err);
}

/* --- One by one ------------------------------------------------------------------------------ */

/* As READ does it; but what the drive has refused is not asked of it by the executor again. */
static int read_piece(struct batch *b, uint64_t i)
{
    struct transfer *t = &b->r->t;
    struct gpunvme_piece p = copy_out(&b->pieces[i]);
    bool gpu = t->gpu;
    t->done = 0;
    t->rw.file_offset = p.file_offset;
    t->rw.buffer_offset = p.buffer_offset;
    t->rw.len = p.len;
    int err = check(b, &p);
    if (!err && b->states[i] == FAILED)
        err = transfer_fall_back(t, -EIO);
    if (!err)
        err = transfer_read(t);
    if (b->states[i] == FAILED)
        t->gpu = gpu;
    if (err == -ECANCELED || (err == -ETIMEDOUT && t->deadline))
        return err;
    b->bytes += err ? 0 : t->done;
    finish(b, i, err ? err : (int32_t)t->done);
    return 0;
}

static int read_rest(struct batch *b)
{
    for (uint64_t i = 0; i < b->count; i++) {
        int err = b->states[i] == DONE ? 0 : read_piece(b, i);
        if (err)
            return err;
    }
    return 0;
}

static void give_rest(struct batch *b, int result)
{
    for (uint64_t i = 0; i < b->count; i++) {
        if (b->states[i] != DONE)
            finish(b, i, result);
    }
}

/* --- The call -------------------------------------------------------------------------------- */

static int read_all(struct batch *b)
{
    struct transfer *t = &b->r->t;
    int err = t->gpu ? read_by_engine(b) : 0;
    if (err && err != -ECANCELED && !(err == -ETIMEDOUT && t->deadline)) {
        give_rest(b, err); /* no fallback: that is the result of all pieces that are left */
        return 0;
    }
    if (!err)
        err = read_rest(b);
    if (err)
        give_rest(b, -ECANCELED);
    return err == -ECANCELED ? -EINTR : err;
}

static int run_with_list(struct readv *r, const struct buffer *list)
{
    const struct gpunvme_ioc_readv *v = &r->v;
    struct batch b = {.r = r, .count = v->count, .buffer_len = buffer_len(r->t.use.buffer)};
    uint64_t room = buffer_len(list) / sizeof(struct gpunvme_piece);
    if (v->first > room || v->count > room - v->first)
        return -ERANGE;
    if (!r->t.gpu && r->t.no_fallback)
        return -EREMOTEIO;
    b.pieces = (volatile struct gpunvme_piece *)buffer_list(list) + v->first;
    b.states = calloc(v->count, 1);
    if (!b.states)
        return -ENOMEM;
    pthread_mutex_init(&b.lock, NULL);
    int err = read_all(&b);
    pthread_mutex_destroy(&b.lock);
    free(b.states);
    r->v.bytes = b.bytes;
    return err;
}

static int run(struct readv *r)
{
    struct transfer *t = &r->t;
    struct buffers *buffers = t->daemon->buffers;
    struct buffer_use list;
    int err = buffer_use_begin(buffers, r->v.list_id, r->v.list_key, t->uid, BUFFER_LIST,
                               &t->cancel, &list);
    if (err)
        return err;
    err = run_with_list(r, list.buffer);
    buffer_use_end(buffers, &list);
    return err;
}

void readv_run(struct readv *r)
{
    struct transfer *t = &r->t;
    struct gpunvme_ioc_readv *v = &r->v;
    v->bytes = v->commands = v->path = v->nvme_status = 0;
    t->error = -EINVAL;
    if (v->count == 0 || v->count > GPUNVME_PIECES_MAX)
        return;
    t->rw = (struct gpunvme_ioc_rw){
        .flags = v->flags, .deadline_ms = v->deadline_ms, .id = v->id, .key = v->key};
    t->error = transfer_begin(t);
    if (t->error)
        return;
    t->error = run(r);
    transfer_end(t);
    v->commands = t->rw.commands;
    v->path = t->rw.path;
    v->nvme_status = t->rw.nvme_status;
}
