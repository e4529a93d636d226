/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs the threads of a session, charges users for the threads, and queues the
 * requests of users who already have their share.
 */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/session/session_loop.h"

#include <assert.h>
#include <errno.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/base/ledger.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/session/session_share.h"
#include "fusefs/daemon/state/buffers.h"
#include "fusefs/daemon/state/daemon.h"
#include "support/clock.h"
#include "support/thread.h"
#include "support/trace.h"

struct share_request {
    STAILQ_ENTRY(share_request) entry;
    size_t len;
    char bytes[];
};

/* Holds the queued requests of one user. */
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
 * Removes the oldest request of a queue, and frees the queue if it is then
 * empty. The caller frees the request.
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

/*
 * Number of threads that wait for requests at a time. The kernel wakes the one
 * that has waited longest, whose buffer has left the cache and whose processor
 * sleeps. More threads are therefore slower, even with eight readers.
 */
#define RECEIVERS 4u
/*
 * At most SHARED_THREADS requests of users are in session threads at a time.
 * ROOT_THREADS of these places are reserved for root. The other threads receive
 * requests, and copy those that must wait.
 */
#define SHARED_THREADS (SESSION_THREADS_MAX - RECEIVERS)
#define ROOT_THREADS   8u
#define QUEUED_BYTES   (256u << 20)
/* Interval between signals to threads in read(2), at the end of the session. */
#define WAKE_MS 50
/*
 * Length of a WRITE request before its data, which begins at a page, as the
 * data of a bounce buffer does.
 */
#define HEAD (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
static_assert(HEAD <= BOUNCE_HEAD, "the head of a request lies before the data");

struct session_thread {
    struct session_loop *loop;
    pthread_t thread;
    atomic_bool reading;         /* in read(2), or about to call it */
    struct session_thread *next; /* next resting thread; protected by the lock */
    pthread_cond_t wake;
    bool called; /* to receive requests; protected by the lock */
};

struct session_loop {
    struct daemon *d;
    struct session_share *share;
    pthread_mutex_t lock; /* protects the fields below except threads */
    unsigned waiting;     /* number of threads that wait for requests */
    unsigned count;       /* number of running threads; constant after the end */
    struct session_thread *resting;
    bool ended;
    pthread_cond_t over; /* ended was set */
    struct session_thread threads[SESSION_THREADS_MAX];
};

static void *session_loop_thread_main(void *arg);

/* The caller holds the lock. Returns 0 or -errno. */
static int session_loop_add_thread(struct session_loop *loop)
{
    struct session_thread *t = &loop->threads[loop->count];
    int err = -pthread_create(&t->thread, NULL, session_loop_thread_main, t);

    loop->count += !err;
    return err;
}

static void session_loop_call(struct session_thread *t)
{
    t->called = true;
    pthread_cond_signal(&t->wake);
}

/*
 * The caller holds the lock. Wakes the thread that has rested for the shortest
 * time, since its data is still cached. If none rests, adds a thread; if that
 * fails, requests wait until a thread is free.
 */
static void call_one(struct session_loop *loop)
{
    struct session_thread *t = loop->resting;

    if (!t) {
        if (!loop->ended && loop->count < SESSION_THREADS_MAX)
            (void)session_loop_add_thread(loop);
        return;
    }
    loop->resting = t->next;
    loop->waiting++;
    session_loop_call(t);
}

void session_loop_end(struct session_loop *loop)
{
    fuse_session_exit(loop->d->session);
    pthread_mutex_lock(&loop->lock);
    loop->ended = true;
    pthread_cond_signal(&loop->over);
    for (struct session_thread *t = loop->resting; t; t = t->next)
        session_loop_call(t);
    loop->resting = NULL;
    pthread_mutex_unlock(&loop->lock);
}

/*
 * Rests while enough threads wait for requests. Returns false if the session
 * has ended.
 */
static bool begin_to_wait(struct session_thread *t)
{
    struct session_loop *loop = t->loop;

    pthread_mutex_lock(&loop->lock);
    if (loop->waiting < RECEIVERS) {
        loop->waiting++;
    } else if (!loop->ended) {
        t->called = false;
        t->next = loop->resting;
        loop->resting = t;
        while (!t->called)
            pthread_cond_wait(&t->wake, &loop->lock);
    }
    bool go_on = !loop->ended;
    pthread_mutex_unlock(&loop->lock);
    return go_on;
}

/*
 * If all receivers may be about to block, another thread receives the next
 * request.
 */
static void end_to_wait(struct session_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    if (--loop->waiting == 0)
        call_one(loop);
    pthread_mutex_unlock(&loop->lock);
}

/* Receives a request. Returns its length or -errno. */
static ssize_t session_loop_receive(struct session_thread *t, void *buf)
{
    struct fuse_session *session = t->loop->d->session;
    ssize_t n = -EINTR;

    /*
     * This store precedes the load of the session's state. wake() accesses both
     * in the reverse order.
     */
    atomic_store(&t->reading, true);
    if (!fuse_session_exited(session)) {
        n = read(fuse_session_fd(session), buf, HEAD + MAX_IO);
        n = n < 0 ? -errno : n;
    }
    atomic_store(&t->reading, false);
    return n;
}

/*
 * -ENOENT means that the requesting process was killed meanwhile. umount(2)
 * aborts the connection: a read(2) in progress then fails with ECONNABORTED,
 * and a later one with ENODEV.
 */
static void note_error(struct session_loop *loop, int err)
{
    if (err == -EINTR || err == -ENOENT || err == -EAGAIN)
        return;
    if (err != -ENODEV && err != -ECONNABORTED)
        log_line(LOG_ERR, "%s: requests cannot be received: %s", loop->d->opts->mountpoint,
                 strerror(-err));
    session_loop_end(loop);
}

/*
 * Ends the session. DESTROY is the last request of a fuseblk mount. It is not
 * answered: umount(2) waits until the connection is closed, which follows the
 * last write to the drive.
 */
static void end_by_destroy(struct session_loop *loop)
{
    atomic_store(&loop->d->destroyed, true);
    session_loop_end(loop);
}

static void session_loop_serve(struct session_loop *loop, char *request, size_t len)
{
    struct fuse_buf buf = {.mem = request, .size = len};
    struct fuse_in_header in = {0};

    memcpy(&in, request, len < sizeof(in) ? len : sizeof(in));
    trace(TRACE_REQUEST, in.opcode, in.unique, in.nodeid, len, 0);
    if (len >= sizeof(in) && in.opcode == FUSE_DESTROY)
        end_by_destroy(loop);
    else if (!raw_request(loop->d, fuse_session_fd(loop->d->session), request, len))
        fuse_session_process_buf(loop->d->session, &buf);
    trace(TRACE_REQUEST_DONE, in.opcode, in.unique, in.nodeid, 0, 0);
}

/* Serves a request unless it must wait, then the queued requests that may be served. */
static void session_loop_serve_shared(struct session_loop *loop, char *request, size_t len)
{
    struct session_charge charge;

    if (!session_share_begin(loop->share, request, len, &charge))
        return;
    do {
        session_loop_serve(loop, request, len);
        len = session_share_end(loop->share, &charge, request);
    } while (len > 0 && !fuse_session_exited(loop->d->session));
}

/*
 * A new thread serves its first request in heap memory. It requests memory of
 * the device after that, when other threads receive the next requests.
 */
static void receive_and_serve(struct session_thread *t, struct bounce *b)
{
    struct session_loop *loop = t->loop;
    char *request = (char *)b->data - HEAD;
    ssize_t n = session_loop_receive(t, request);

    end_to_wait(loop);
    if (n > 0)
        session_loop_serve_shared(loop, request, (size_t)n);
    else
        note_error(loop, (int)n);
    if (!fuse_session_exited(loop->d->session))
        bounce_improve(&loop->d->bounces, b);
}

static void *session_loop_thread_main(void *arg)
{
    struct session_thread *t = arg;
    struct bounce_pool *pool = &t->loop->d->bounces;
    struct bounce *b = NULL;

    while (begin_to_wait(t)) {
        b = b ? b : bounce_get_now(pool);
        bounce_bind(b);
        if (b)
            receive_and_serve(t, b);
        else
            note_error(t->loop, -ENOMEM);
    }
    if (b)
        bounce_put(pool, b);
    return NULL;
}

int session_loop_new(struct daemon *d, struct session_loop **out)
{
    struct session_loop *loop = calloc(1, sizeof(*loop));

    if (!loop)
        return -ENOMEM;
    loop->share = session_share_new(SHARED_THREADS, ROOT_THREADS, QUEUED_BYTES);
    if (!loop->share) {
        free(loop);
        return -ENOMEM;
    }
    loop->d = d;
    pthread_mutex_init(&loop->lock, NULL);
    pthread_cond_init(&loop->over, NULL);
    for (unsigned i = 0; i < SESSION_THREADS_MAX; i++) {
        loop->threads[i].loop = loop;
        pthread_cond_init(&loop->threads[i].wake, NULL);
    }
    *out = loop;
    return 0;
}

static void wake(int sig)
{
    (void)sig; /* interrupts read(2) */
}

/*
 * Joins the threads. A thread that was about to call read(2) needs another
 * signal.
 */
static void join_all(struct session_loop *loop)
{
    unsigned n = loop->count;

    for (unsigned i = 0; i < n;) {
        for (unsigned k = i; k < n; k++) {
            if (atomic_load(&loop->threads[k].reading))
                pthread_kill(loop->threads[k].thread, SIGUSR1);
        }
        if (join_until(loop->threads[i].thread, deadline_after_ms(WAKE_MS)) == 0)
            i++;
    }
}

int session_loop_run(struct session_loop *loop)
{
    struct sigaction action = {.sa_handler = wake};
    int err = 0;

    sigaction(SIGUSR1, &action, NULL);
    pthread_mutex_lock(&loop->lock);
    while (loop->count < SESSION_THREADS && !err)
        err = session_loop_add_thread(loop);
    while (!loop->ended && !err)
        pthread_cond_wait(&loop->over, &loop->lock);
    pthread_mutex_unlock(&loop->lock);
    if (err)
        session_loop_end(loop);
    return err;
}

void session_loop_join(struct session_loop *loop)
{
    buffers_cancel_all(loop->d->buffers);
    join_all(loop);
}

void session_loop_free(struct session_loop *loop)
{
    for (unsigned i = 0; i < SESSION_THREADS_MAX; i++)
        pthread_cond_destroy(&loop->threads[i].wake);
    pthread_cond_destroy(&loop->over);
    pthread_mutex_destroy(&loop->lock);
    session_share_free(loop->share);
    free(loop);
}
