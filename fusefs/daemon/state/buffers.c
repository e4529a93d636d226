/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the table of registered buffers, with limits, lookup by id and
 * key, uses, and removal.
 */
#include "fusefs/daemon/state/buffers.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "fusefs/daemon/base/ledger.h"

#define BUCKETS 1024u
/*
 * Limit of registered bytes, as a multiple of the machine's memory. Each byte
 * costs the executor 1/512 byte of pinned memory for PRP lists, also in holes
 * of a sparse file. All buffers together therefore pin at most 1/16 of the
 * memory for lists.
 */
#define MEMORY_TIMES 32u
/*
 * A page of host memory that was never touched is allocated by this process: at
 * registration if a GPU pins it, otherwise when a READ stores into it. It
 * counts against this process's cgroup, even if the client touches it later.
 * The limit is 1/HOST_PART of the machine's memory, the default size of a
 * tmpfs.
 */
#define HOST_PART 2u
/*
 * 1/ROOT_PART of each limit is reserved for root; users share the rest by the
 * rules of ledger.h.
 */
#define ROOT_PART 8u

struct buffer {
    uint64_t id, key, len;
    uint64_t places; /* of max_buffers: one for each segment, which holds descriptors */
    uint64_t host;   /* len if the memory is in the host, otherwise 0 */
    uid_t uid;
    const void *owner;
    enum buffer_kind kind;
    bool bounces;             /* on the bounce path, also with an engine */
    struct gq_engine *engine; /* of the GPU, or the bounce engine if it reaches the memory */
    struct gpu *gpu;          /* in use by this buffer; NULL without one */
    struct gq_buffer *gq;     /* NULL without a GPU and without a bounce engine */
    struct copies *copies;    /* of a list, for the other GPUs; NULL if there are none */
    unsigned char *start;     /* first byte; used without gq */
    void *map;                /* first page of its mapping; used without gq */
    size_t map_len;
    LIST_ENTRY(buffer) entry;     /* in its bucket */
    LIST_HEAD(, buffer_use) uses; /* protected by the table's lock */
};

/* Holds registrations of a list with the executors of further GPUs. */
struct copies {
    struct gq_mem mem;    /* with a descriptor of its own */
    pthread_mutex_t lock; /* held during a registration; protects stores to the following */
    struct {
        struct gpu *gpu; /* in use by the list */
        _Atomic(struct gq_buffer *) gq;
    } at[GPUS_MAX]; /* by gpus_index() */
};

struct buffers {
    struct gpus *gpus;
    struct bounce_engine *bounce;
    pthread_mutex_t lock;             /* protects the fields below and all lists of uses */
    pthread_cond_t unused;            /* signalled when a use ends */
    bool cancelled;                   /* buffers_cancel_all() was called */
    struct ledger count, bytes, host; /* including buffers in registration */
    uint64_t further;                 /* places of buffers beyond their first ones */
    LIST_HEAD(, buffer) buckets[BUCKETS];
};

static uint64_t memory_of_machine(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long size = sysconf(_SC_PAGESIZE);

    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 1u << 30;
}

static struct ledger buffers_limit(uint64_t total)
{
    return (struct ledger){.total = total, .for_root = total / ROOT_PART};
}

int buffers_open(unsigned max, struct gpus *gpus, struct bounce_engine *bounce,
                 struct buffers **out)
{
    struct buffers *t = calloc(1, sizeof(*t));

    if (!t)
        return -ENOMEM;
    t->gpus = gpus;
    t->bounce = bounce;
    t->count = buffers_limit(max);
    t->bytes = buffers_limit(memory_of_machine() * MEMORY_TIMES);
    t->host = buffers_limit(memory_of_machine() / HOST_PART);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->unused, NULL);
    *out = t;
    return 0;
}

static int buffers_map_host(struct buffer *b, const struct gq_mem *mem)
{
    if (mem->kind != GQ_MEM_FD)
        return -EOPNOTSUPP;
    uint64_t first = mem->offset & ~(uint64_t)4095;
    b->map_len = (size_t)(mem->offset - first + mem->len);
    b->map = mmap(NULL, b->map_len, PROT_READ | PROT_WRITE, MAP_SHARED, mem->fd, (off_t)first);
    if (b->map == MAP_FAILED)
        return -errno;
    b->start = (unsigned char *)b->map + (mem->offset - first);
    return 0;
}

static int buffers_map_gpu(struct buffers *t, struct buffer *b, const struct gq_mem *mem,
                           const uint8_t gpu[16])
{
    int err = gpus_take(t->gpus, gpu, &b->gpu);

    if (err)
        return err;
    b->engine = gpus_engine(b->gpu);
    err = gq_buffer_register(b->engine, mem, &b->gq);
    if (err)
        gpus_give(b->gpu);
    return err;
}

/*
 * Registers memory with the bounce engine. Host memory that it cannot take is
 * copied to and from.
 */
static int buffers_map_bounced(struct buffers *t, struct buffer *b, const struct gq_mem *mem)
{
    struct gq_engine *engine = mem->kind == GQ_MEM_FD ? bounce_engine_get(t->bounce) : NULL;

    if (!engine || gq_buffer_register(engine, mem, &b->gq))
        return buffers_map_host(b, mem);
    b->engine = engine;
    return 0;
}

/*
 * Releases the memory. With an engine, no command can reach the memory
 * afterwards.
 */
static void buffers_unmap(struct buffer *b)
{
    if (!b->gq) {
        munmap(b->map, b->map_len);
        return;
    }
    gq_buffer_unregister(b->gq);
    if (b->gpu)
        gpus_give(b->gpu);
}

/* A list may be used with buffers of every GPU. */
static int copies_new(const struct buffers *t, const struct gq_mem *mem, struct buffer *b)
{
    if (!mem->is_list || !t->gpus || gpus_count(t->gpus) == 1)
        return 0;
    b->copies = calloc(1, sizeof(*b->copies));
    if (!b->copies)
        return -ENOMEM;
    b->copies->mem = *mem;
    b->copies->mem.fd = fcntl(mem->fd, F_DUPFD_CLOEXEC, 0);
    if (b->copies->mem.fd >= 0) {
        pthread_mutex_init(&b->copies->lock, NULL);
        return 0;
    }
    free(b->copies);
    b->copies = NULL;
    return -errno;
}

/* Precondition: the list has no users. */
static void copies_free(struct buffer *b)
{
    struct copies *c = b->copies;

    for (unsigned i = 0; c && i < GPUS_MAX; i++) {
        struct gq_buffer *gq = atomic_load_explicit(&c->at[i].gq, memory_order_relaxed);
        if (!gq)
            continue;
        gq_buffer_unregister(gq);
        gpus_give(c->at[i].gpu);
    }
    if (c) {
        close(c->mem.fd);
        pthread_mutex_destroy(&c->lock);
    }
    free(c);
    b->copies = NULL;
}

static struct buffer *buffers_find(const struct buffers *t, uint64_t id)
{
    struct buffer *b = LIST_FIRST(&t->buckets[id % BUCKETS]);

    while (b && b->id != id)
        b = LIST_NEXT(b, entry);
    return b;
}

static int buffers_draw(uint64_t *value)
{
    ssize_t n = getrandom(value, sizeof(*value), 0);

    return n == (ssize_t)sizeof(*value) ? 0 : -EIO;
}

/* The caller holds the lock. */
static uint64_t buffers_held(const struct buffers *t)
{
    return t->count.of_root + t->count.of_users - t->further;
}

/* The caller holds the lock. Returns 0, -EMFILE or -ENOMEM. */
static int buffers_charge(struct buffers *t, const struct buffer *b)
{
    if (ledger_left(&t->count, b->uid) < b->places)
        return -EMFILE;
    if (b->len > ledger_left(&t->bytes, b->uid) || b->host > ledger_left(&t->host, b->uid))
        return -ENOMEM;
    ledger_take(&t->count, b->uid, b->places);
    t->further += b->places - 1;
    ledger_take(&t->bytes, b->uid, b->len);
    ledger_take(&t->host, b->uid, b->host);
    return 0;
}

/* The caller holds the lock. */
static void buffers_uncharge(struct buffers *t, const struct buffer *b)
{
    ledger_give(&t->count, b->uid, b->places);
    t->further -= b->places - 1;
    ledger_give(&t->bytes, b->uid, b->len);
    ledger_give(&t->host, b->uid, b->host);
}

/* Ids are never 0, so that a zeroed struct names no buffer. */
static int buffers_publish(struct buffers *t, struct buffer *b)
{
    int err = buffers_draw(&b->key);

    pthread_mutex_lock(&t->lock);
    do {
        if (!err)
            err = buffers_draw(&b->id);
    } while (!err && (b->id == 0 || buffers_find(t, b->id)));
    if (!err)
        LIST_INSERT_HEAD(&t->buckets[b->id % BUCKETS], b, entry);
    pthread_mutex_unlock(&t->lock);
    return err;
}

static int take_in(struct buffers *t, const struct gq_mem *mem, const uint8_t gpu[16],
                   struct buffer *b)
{
    int err = b->bounces ? 0 : copies_new(t, mem, b);

    if (!err)
        err = b->bounces ? buffers_map_bounced(t, b, mem) : buffers_map_gpu(t, b, mem, gpu);
    if (err)
        goto free_copies;
    err = buffers_publish(t, b);
    if (!err)
        return 0;
    buffers_unmap(b);
free_copies:
    copies_free(b);
    return err;
}

int buffers_add(struct buffers *t, const struct gq_mem *mem, const uint8_t gpu[16], uid_t uid,
                const void *owner, uint64_t *id, uint64_t *key)
{
    struct buffer *b = calloc(1, sizeof(*b));

    if (!b)
        return -ENOMEM;
    *b = (struct buffer){.len = mem->len,
                         .places = mem->n_segments ? mem->n_segments : 1,
                         .host = mem->kind == GQ_MEM_FD ? mem->len : 0,
                         .uid = uid,
                         .owner = owner,
                         .bounces = !gpu || !t->gpus,
                         .kind = mem->is_list ? BUFFER_LIST : BUFFER_DATA};
    /* The charge precedes the registration, so that concurrent calls cannot exceed a limit. */
    pthread_mutex_lock(&t->lock);
    int err = buffers_charge(t, b);
    pthread_mutex_unlock(&t->lock);
    if (err)
        goto free_buffer;
    err = take_in(t, mem, gpu, b);
    if (err)
        goto uncharge;
    *id = b->id;
    *key = b->key;
    return 0;
uncharge:
    pthread_mutex_lock(&t->lock);
    buffers_uncharge(t, b);
    pthread_mutex_unlock(&t->lock);
free_buffer:
    free(b);
    return err;
}

/*
 * The comparison need not take constant time: a key is 64 random bits and each
 * guess costs a system call.
 */
static int buffers_check(const struct buffer *b, uint64_t key, uid_t uid)
{
    if (!b)
        return -ENOENT;
    return b->key == key && b->uid == uid ? 0 : -EACCES;
}

/* Called under the lock. */
static void cancel_uses(struct buffer *b)
{
    for (struct buffer_use *u = LIST_FIRST(&b->uses); u; u = LIST_NEXT(u, entry))
        atomic_store_explicit(u->cancel, 1, memory_order_relaxed);
}

/*
 * Removes b from the table, so that no new use can begin. Each use ends within
 * its transfer's deadline. The caller holds the lock, which is released
 * meanwhile.
 */
static void buffers_end(struct buffers *t, struct buffer *b)
{
    LIST_REMOVE(b, entry);
    cancel_uses(b);
    while (!LIST_EMPTY(&b->uses))
        pthread_cond_wait(&t->unused, &t->lock);
    pthread_mutex_unlock(&t->lock);
    copies_free(b);
    buffers_unmap(b);
    pthread_mutex_lock(&t->lock);
    buffers_uncharge(t, b);
    free(b);
}

int buffers_remove(struct buffers *t, uint64_t id, uint64_t key, uid_t uid)
{
    pthread_mutex_lock(&t->lock);
    struct buffer *b = buffers_find(t, id);
    int err = buffers_check(b, key, uid);
    if (!err)
        buffers_end(t, b);
    pthread_mutex_unlock(&t->lock);
    return err;
}

/* Returns the first buffer of owner in the bucket, or of any owner for NULL. */
static struct buffer *buffers_of(const struct buffers *t, size_t bucket, const void *owner)
{
    struct buffer *b = LIST_FIRST(&t->buckets[bucket]);

    while (b && owner && b->owner != owner)
        b = LIST_NEXT(b, entry);
    return b;
}

/* Ends the buffers of owner, or all buffers if owner is NULL. */
static void buffers_end_of(struct buffers *t, const void *owner)
{
    struct buffer *b;

    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < BUCKETS && buffers_held(t) > 0; i++) {
        while ((b = buffers_of(t, i, owner)))
            buffers_end(t, b);
    }
    pthread_mutex_unlock(&t->lock);
}

void buffers_release(struct buffers *t, const void *owner)
{
    assert(owner);
    buffers_end_of(t, owner);
}

void buffers_cancel_all(struct buffers *t)
{
    pthread_mutex_lock(&t->lock);
    t->cancelled = true;
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct buffer *b = LIST_FIRST(&t->buckets[i]); b; b = LIST_NEXT(b, entry))
            cancel_uses(b);
    }
    pthread_mutex_unlock(&t->lock);
}

void buffers_close(struct buffers *t)
{
    buffers_end_of(t, NULL);
    pthread_cond_destroy(&t->unused);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

unsigned buffers_count(struct buffers *t)
{
    pthread_mutex_lock(&t->lock);
    unsigned count = (unsigned)buffers_held(t);
    pthread_mutex_unlock(&t->lock);
    return count;
}

int buffer_use_begin(struct buffers *t, uint64_t id, uint64_t key, uid_t uid, enum buffer_kind kind,
                     _Atomic uint32_t *cancel, struct buffer_use *use)
{
    pthread_mutex_lock(&t->lock);
    struct buffer *b = buffers_find(t, id);
    int err = buffers_check(b, key, uid);
    if (!err && b->kind != kind)
        err = -EINVAL;
    if (!err && t->cancelled)
        err = -EINTR;
    if (!err) {
        *use = (struct buffer_use){.buffer = b, .cancel = cancel};
        LIST_INSERT_HEAD(&b->uses, use, entry);
    }
    pthread_mutex_unlock(&t->lock);
    return err;
}

void buffer_use_end(struct buffers *t, struct buffer_use *use)
{
    pthread_mutex_lock(&t->lock);
    LIST_REMOVE(use, entry);
    pthread_cond_broadcast(&t->unused);
    pthread_mutex_unlock(&t->lock);
}

uint64_t buffer_length(const struct buffer *b)
{
    return b->len;
}

bool buffer_bounces(const struct buffer *b)
{
    return b->bounces;
}

struct gq_buffer *buffer_gq(const struct buffer *b)
{
    return b->gq;
}

void *buffer_list(const struct buffer *b)
{
    assert(b->kind == BUFFER_LIST);
    return b->gq ? gq_buffer_list(b->gq) : b->start;
}

struct gq_engine *buffer_engine(const struct buffer *b)
{
    return b->engine;
}

/* The caller holds the copies' lock. */
static int copies_add(struct copies *c, struct gpu *gpu)
{
    unsigned i = gpus_index(gpu);
    struct gq_buffer *gq;
    int err = gq_buffer_register(gpus_engine(gpu), &c->mem, &gq);

    if (err)
        return err;
    gpus_hold(gpu);
    c->at[i].gpu = gpu;
    /* A thread that finds gq sees the registration. */
    atomic_store_explicit(&c->at[i].gq, gq, memory_order_release);
    return 0;
}

int buffer_gq_list(struct buffer *list, const struct buffer *data, struct gq_buffer **out)
{
    struct copies *c = list->copies;
    int err = 0;

    assert(list->kind == BUFFER_LIST);
    *out = list->gq;
    if (data->gpu == list->gpu)
        return 0;
    unsigned i = gpus_index(data->gpu);
    *out = atomic_load_explicit(&c->at[i].gq, memory_order_acquire);
    if (*out)
        return 0;
    pthread_mutex_lock(&c->lock);
    if (!atomic_load_explicit(&c->at[i].gq, memory_order_relaxed))
        err = copies_add(c, data->gpu);
    *out = atomic_load_explicit(&c->at[i].gq, memory_order_relaxed);
    pthread_mutex_unlock(&c->lock);
    return err;
}

int buffer_put(struct buffer *b, uint64_t offset, const void *src, size_t len)
{
    assert(offset <= b->len && len <= b->len - offset);
    if (b->gq)
        return gq_buffer_put(b->gq, offset, src, len);
    memcpy(b->start + offset, src, len);
    return 0;
}

int buffer_get(struct buffer *b, uint64_t offset, void *dst, size_t len)
{
    assert(offset <= b->len && len <= b->len - offset);
    if (b->gq)
        return gq_buffer_get(b->gq, offset, dst, len);
    memcpy(dst, b->start + offset, len);
    return 0;
}
