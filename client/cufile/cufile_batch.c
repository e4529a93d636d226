/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements batches: threads of the library make the transfers, and results
 * are returned in the order of completion. A batch belongs to the process that
 * set it up. A child of fork(2) has no thread that could complete the entries
 * in flight.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "client/cufile/cufile_config.h"
#include "client/cufile/cufile_log.h"
#include "client/cufile/cufile_stats.h"
#include "support/clock.h"

#define AT_ONCE 128u /* requests started by one call */

struct entry {
    struct gpunvme_transfer request; /* must be the first member */
    struct batch *batch;
    STAILQ_ENTRY(entry) link; /* in the list of free or of completed entries */
    struct cufile_transfer transfer;
    void *cookie;
    int32_t status;
    ssize_t ret;
};

struct batch {
    unsigned forks;       /* cufile_forks() when it was set up */
    pthread_mutex_t lock; /* protects the rest */
    pthread_cond_t changed;
    STAILQ_HEAD(, entry) free, ended;
    unsigned n_free, n_ended, under_way;
    struct entry entries[];
};

/*
 * Returns 0, or the error for a missing batch or one that the parent process
 * has set up.
 */
static int batch_check(const struct batch *b)
{
    if (!b)
        return CU_FILE_INVALID_VALUE;
    if (b->forks == cufile_forks())
        return CU_FILE_SUCCESS;
    cufile_log(CUFILE_LOG_ERROR, "the batch belongs to the process that called fork(2): a child "
                                 "sets up its own");
    return CU_FILE_PERMISSION_DENIED;
}

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t *out, unsigned nr)
{
    bool ok = out && nr && nr <= cufile_config()->sizes[CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE];
    struct batch *b = ok ? calloc(1, sizeof(*b) + nr * sizeof(b->entries[0])) : NULL;

    cufile_stats_count(CUFILE_STAT(batch_setup), !b);
    if (!b)
        return cufile_status(ok ? CU_FILE_NOMEM_ERROR : CU_FILE_INVALID_VALUE);
    b->forks = cufile_forks();
    pthread_cond_init(&b->changed, NULL);
    pthread_mutex_init(&b->lock, NULL);
    STAILQ_INIT(&b->free);
    STAILQ_INIT(&b->ended);
    b->n_free = nr;
    for (unsigned i = 0; i < nr; i++) {
        b->entries[i].batch = b;
        STAILQ_INSERT_HEAD(&b->free, &b->entries[i], link);
    }
    *out = b;
    return cufile_status(CU_FILE_SUCCESS);
}

/* The caller holds the lock. */
static void end_entry(struct entry *e, int32_t status, ssize_t ret)
{
    struct batch *b = e->batch;

    e->status = status;
    e->ret = ret;
    STAILQ_INSERT_TAIL(&b->ended, e, link);
    b->n_ended++;
    pthread_cond_broadcast(&b->changed);
}

static void request_done(struct gpunvme_transfer *r)
{
    struct entry *e = (struct entry *)r;
    struct batch *b = e->batch;
    ssize_t ret = cufile_transfer_end(&e->transfer, r->bytes, &r->result);

    if (ret == -1) /* batches report no errno, so events carry it */
        ret = r->bytes;
    cufile_stats_count(CUFILE_STAT(batch_complete), ret < 0);
    cufile_handle_put_inside(e->transfer.handle);
    pthread_mutex_lock(&b->lock);
    b->under_way--;
    end_entry(e, ret < 0 ? CUFILE_FAILED : CUFILE_COMPLETE, ret);
    pthread_mutex_unlock(&b->lock);
}

static int check_params(const CUfileIOParams_t *p)
{
    if (p->mode != CUFILE_BATCH || !p->batch.devPtr_base || p->batch.file_offset < 0 ||
        (p->opcode != CUFILE_READ && p->opcode != CUFILE_WRITE))
        return CU_FILE_INVALID_VALUE;
    struct cufile_handle *h = cufile_handle_get(p->fh);
    if (h)
        cufile_handle_put(h);
    return h ? CU_FILE_SUCCESS : CU_FILE_HANDLE_NOT_REGISTERED;
}

/* Returns false if the handle was deregistered after the check. */
static bool batch_fill(struct entry *e, const CUfileIOParams_t *p)
{
    bool write = p->opcode == CUFILE_WRITE;
    uint64_t offset = (uint64_t)p->batch.file_offset;
    struct cufile_handle *h = cufile_handle_get(p->fh);

    e->cookie = p->cookie;
    if (!h)
        return false;
    e->transfer = (struct cufile_transfer){h, write, offset, p->batch.size, now_ns()};
    e->request = (struct gpunvme_transfer){
        .file = h->file,
        .write = write,
        .addr = (char *)p->batch.devPtr_base + p->batch.devPtr_offset,
        .len = p->batch.size,
        .file_offset = offset,
        .done = request_done,
    };
    return true;
}

static struct entry *take_entry(struct batch *b)
{
    pthread_mutex_lock(&b->lock);
    struct entry *e = STAILQ_FIRST(&b->free);
    STAILQ_REMOVE_HEAD(&b->free, link);
    b->under_way++;
    pthread_mutex_unlock(&b->lock);
    return e;
}

static void submit_failed(struct entry *e, int err)
{
    pthread_mutex_lock(&e->batch->lock);
    e->batch->under_way--;
    end_entry(e, CUFILE_FAILED, -err);
    pthread_mutex_unlock(&e->batch->lock);
}

/* n is at most AT_ONCE. */
static void batch_submit(struct batch *b, const CUfileIOParams_t *params, unsigned n)
{
    struct gpunvme_transfer *requests[AT_ONCE] = {0};
    size_t filled = 0;

    for (unsigned i = 0; i < n; i++) {
        struct entry *e = take_entry(b);
        if (batch_fill(e, &params[i]))
            requests[filled++] = &e->request;
        else
            submit_failed(e, CU_FILE_HANDLE_NOT_REGISTERED);
    }
    ssize_t started = gpunvme_submit(requests, filled);
    for (size_t i = started < 0 ? 0 : (size_t)started; i < filled; i++) {
        struct entry *e = (struct entry *)requests[i];
        cufile_handle_put(e->transfer.handle);
        submit_failed(e, CU_FILE_BATCH_SUBMIT_FAILED);
    }
}

/* Reserves room for all of the requests or for none. */
static int check_batch(struct batch *b, unsigned nr, const CUfileIOParams_t *params)
{
    for (unsigned i = 0; i < nr; i++) {
        int err = check_params(&params[i]);
        if (err)
            return err;
    }
    pthread_mutex_lock(&b->lock);
    bool room = nr <= b->n_free;
    b->n_free -= room ? nr : 0;
    pthread_mutex_unlock(&b->lock);
    return room ? CU_FILE_SUCCESS : CU_FILE_BATCH_FULL;
}

CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t batch, unsigned nr, CUfileIOParams_t *params,
                                  unsigned flags)
{
    struct batch *b = batch;
    int err = batch_check(b);

    if (!err)
        err = (!params && nr) || flags ? CU_FILE_INVALID_VALUE : check_batch(b, nr, params);

    cufile_stats_count(CUFILE_STAT(batch_submit), err);
    if (err)
        cufile_log(CUFILE_LOG_ERROR, "batch of %u: error %d", nr, err);
    for (unsigned i = 0; i < nr && !err; i += AT_ONCE)
        batch_submit(b, &params[i], nr - i < AT_ONCE ? nr - i : AT_ONCE);
    return cufile_status(err);
}

#define LONGEST_S ((time_t)1 << 30) /* a longer timeout would overflow the clock */

/*
 * The caller holds the lock. Waits until `enough` transfers have ended, none is
 * in flight, or the timeout expires; a negative one expires at once.
 */
static void await_ended(struct batch *b, unsigned enough, const struct timespec *timeout)
{
    uint64_t until = now_ns();
    int err = 0;

    if (timeout && timeout->tv_sec >= 0) {
        time_t s = timeout->tv_sec < LONGEST_S ? timeout->tv_sec : LONGEST_S;
        until += (uint64_t)s * NS_PER_S + (uint64_t)timeout->tv_nsec;
    }
    while (b->n_ended < enough && b->under_way && !err)
        err = timeout ? cond_wait_until(&b->changed, &b->lock, until)
                      : pthread_cond_wait(&b->changed, &b->lock);
}

static unsigned take_events(struct batch *b, unsigned room, CUfileIOEvents_t *events)
{
    unsigned n = 0;

    while (n < room && !STAILQ_EMPTY(&b->ended)) {
        struct entry *e = STAILQ_FIRST(&b->ended);
        STAILQ_REMOVE_HEAD(&b->ended, link);
        b->n_ended--;
        events[n++] = (CUfileIOEvents_t){e->cookie, e->status, (size_t)e->ret};
        STAILQ_INSERT_HEAD(&b->free, e, link);
        b->n_free++;
    }
    return n;
}

CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t batch, unsigned min_nr, unsigned *nr,
                                     CUfileIOEvents_t *events, struct timespec *timeout)
{
    struct batch *b = batch;
    int err = batch_check(b);

    if (err || !nr || !events || min_nr > *nr)
        return cufile_status(err ? err : CU_FILE_INVALID_VALUE);
    pthread_mutex_lock(&b->lock);
    await_ended(b, min_nr, timeout);
    *nr = take_events(b, *nr, events);
    pthread_mutex_unlock(&b->lock);
    return cufile_status(CU_FILE_SUCCESS);
}

/* Transfers of threads cannot be cancelled, and end soon. */
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t batch)
{
    struct batch *b = batch;
    int err = batch_check(b);

    cufile_stats_count(CUFILE_STAT(batch_cancel), err);
    if (err)
        return cufile_status(err);
    pthread_mutex_lock(&b->lock);
    await_ended(b, UINT32_MAX, NULL);
    pthread_mutex_unlock(&b->lock);
    return cufile_status(CU_FILE_SUCCESS);
}

void cuFileBatchIODestroy(CUfileBatchHandle_t batch)
{
    struct batch *b = batch;

    if (batch_check(b)) /* memory of a batch of the parent process is not freed */
        return;
    pthread_mutex_lock(&b->lock);
    await_ended(b, UINT32_MAX, NULL);
    pthread_mutex_unlock(&b->lock);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    cufile_stats_count(CUFILE_STAT(batch_destroy), 0);
    free(b);
}
