/* SPDX-License-Identifier: BSD-2-Clause */
/* Charges users with session threads, and queues their requests. */
#include "fusefs/daemon/session/session_share.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "fusefs/daemon/base/ledger.h"

struct share_request {
    STAILQ_ENTRY(share_request) entry;
    size_t len;
    char bytes[];
};

/* Each user with queued requests has such a queue. */
struct share_queue {
    TAILQ_ENTRY(share_queue) entry;
    uid_t uid;
    STAILQ_HEAD(, share_request) requests; /* oldest first */
};

struct session_share {
    pthread_mutex_t lock; /* protects all members */
    struct ledger threads, bytes;
    TAILQ_HEAD(, share_queue) queues; /* the user that was served last is last */
};

struct session_share *session_share_new(unsigned threads, unsigned for_root, size_t bytes)
{
    struct session_share *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->threads = (struct ledger){.total = threads, .for_root = for_root};
    s->bytes = (struct ledger){.total = bytes};
    pthread_mutex_init(&s->lock, NULL);
    TAILQ_INIT(&s->queues);
    return s;
}

/*
 * Removes the oldest request of a queue, and frees the queue if it is empty
 * after that. The caller frees the request.
 */
static struct share_request *share_pop(struct session_share *s, struct share_queue *q)
{
    struct share_request *r = STAILQ_FIRST(&q->requests);

    STAILQ_REMOVE_HEAD(&q->requests, entry);
    ledger_give(&s->bytes, q->uid, r->len);
    TAILQ_REMOVE(&s->queues, q, entry);
    if (STAILQ_EMPTY(&q->requests))
        free(q);
    else
        TAILQ_INSERT_TAIL(&s->queues, q, entry);
    return r;
}

void session_share_free(struct session_share *s)
{
    if (!s)
        return;
    while (!TAILQ_EMPTY(&s->queues))
        free(share_pop(s, TAILQ_FIRST(&s->queues)));
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static bool share_is_writeback(const struct fuse_in_header *in, const void *request, size_t len)
{
    struct fuse_write_in write;

    if (in->opcode != FUSE_WRITE || len < sizeof(*in) + sizeof(write))
        return false;
    memcpy(&write, (const char *)request + sizeof(*in), sizeof(write));
    return write.write_flags & FUSE_WRITE_CACHE;
}

static bool share_is_charged(const struct fuse_in_header *in, const void *request, size_t len)
{
    switch (in->opcode) {
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_NOTIFY_REPLY:
    case FUSE_INIT:
    case FUSE_DESTROY:
        return false;
    default:
        return !share_is_writeback(in, request, len);
    }
}

static void share_drop_empty(struct session_share *s, struct share_queue *q)
{
    if (!q || !STAILQ_EMPTY(&q->requests))
        return;
    TAILQ_REMOVE(&s->queues, q, entry);
    free(q);
}

static struct share_queue *share_queue_of(struct session_share *s, uid_t uid)
{
    struct share_queue *q;

    TAILQ_FOREACH(q, &s->queues, entry)
    {
        if (q->uid == uid)
            return q;
    }
    q = malloc(sizeof(*q));
    if (!q)
        return NULL;
    q->uid = uid;
    STAILQ_INIT(&q->requests);
    TAILQ_INSERT_TAIL(&s->queues, q, entry);
    return q;
}

/* Returns false if there is no room for the copy. The caller holds the lock. */
static bool share_push(struct session_share *s, uid_t uid, const void *request, size_t len)
{
    struct share_request *r = NULL;

    if (!ledger_take(&s->bytes, uid, len))
        return false;
    struct share_queue *q = share_queue_of(s, uid);
    if (q)
        r = malloc(sizeof(*r) + len);
    if (!r) {
        ledger_give(&s->bytes, uid, len);
        share_drop_empty(s, q);
        return false;
    }
    r->len = len;
    memcpy(r->bytes, request, len);
    STAILQ_INSERT_TAIL(&q->requests, r, entry);
    return true;
}

bool session_share_begin(struct session_share *s, const void *request, size_t len,
                         struct session_charge *charge)
{
    struct fuse_in_header in;
    bool queued = false;

    *charge = (struct session_charge){0};
    if (len < sizeof(in))
        return true;
    memcpy(&in, request, sizeof(in));
    if (!share_is_charged(&in, request, len))
        return true;
    charge->uid = in.uid;
    pthread_mutex_lock(&s->lock);
    charge->charged = ledger_take(&s->threads, in.uid, 1);
    if (!charge->charged)
        queued = share_push(s, in.uid, request, len);
    pthread_mutex_unlock(&s->lock);
    return !queued;
}

/* Returns the oldest request of the first user that may have a thread, or NULL. */
static struct share_request *share_next(struct session_share *s, struct session_charge *charge)
{
    struct share_queue *q;

    TAILQ_FOREACH(q, &s->queues, entry)
    {
        if (!ledger_take(&s->threads, q->uid, 1))
            continue;
        *charge = (struct session_charge){.charged = true, .uid = q->uid};
        return share_pop(s, q);
    }
    return NULL;
}

size_t session_share_end(struct session_share *s, struct session_charge *charge, void *buf)
{
    size_t len = 0;

    if (!charge->charged)
        return 0;
    pthread_mutex_lock(&s->lock);
    ledger_give(&s->threads, charge->uid, 1);
    charge->charged = false;
    struct share_request *r = share_next(s, charge);
    pthread_mutex_unlock(&s->lock);
    if (r) {
        len = r->len;
        memcpy(buf, r->bytes, len);
        free(r);
    }
    return len;
}
