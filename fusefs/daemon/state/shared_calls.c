/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counters that programs share. They are read by pread(2), because a mapping
 * would raise SIGBUS once the program has truncated the memory.
 */
#include "fusefs/daemon/state/shared_calls.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "fusefs/daemon/state/daemon.h"

struct shared_calls {
    int fd; /* memfd */
    uid_t uid;
    struct gpunvme_calls last; /* values of the last reading */
    struct shared_calls *next, **link;
};

/* If the memfd has become too short, the values stay unchanged. */
static const struct gpunvme_calls *shared_calls_refresh(struct shared_calls *c)
{
    struct gpunvme_calls now;

    if (pread(c->fd, &now, sizeof(now), 0) == (ssize_t)sizeof(now))
        c->last = now;
    return &c->last;
}

static void add_calls(struct gpunvme_calls *sum, const struct gpunvme_calls *c)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)c;

    for (size_t i = 0; i < sizeof(*c) / sizeof(*from); i++)
        to[i] += from[i];
}

/* Called with the lock held. */
static int state_shared_calls_add(struct shared_calls_log *log, struct open_file *file,
                                  struct shared_calls *new)
{
    unsigned all = 0, of_user = 0;

    for (const struct shared_calls *c = log->first; c; c = c->next) {
        all++;
        of_user += c->uid == new->uid;
    }
    if (file->shared_calls)
        return -EALREADY;
    if (all >= SHARED_CALLS_MAX || (new->uid != 0 && of_user >= SHARED_CALLS_OF_USER))
        return -EMFILE;
    new->next = log->first;
    new->link = &log->first;
    if (new->next)
        new->next->link = &new->next;
    log->first = new;
    file->shared_calls = new;
    return 0;
}

int shared_calls_add(struct daemon *d, struct open_file *file, uid_t uid, int fd)
{
    struct shared_calls *new = calloc(1, sizeof(*new));
    int err = -ENOMEM;

    if (new) {
        *new = (struct shared_calls){.fd = fd, .uid = uid};
        pthread_mutex_lock(&d->files_lock);
        err = state_shared_calls_add(&d->shared_calls, file, new);
        pthread_mutex_unlock(&d->files_lock);
    }
    if (err) {
        close(fd);
        free(new);
    }
    return err;
}

void shared_calls_end(struct shared_calls_log *log, struct open_file *file)
{
    struct shared_calls *c = file->shared_calls;

    add_calls(&log->ended, shared_calls_refresh(c));
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    file->shared_calls = NULL;
    close(c->fd);
    free(c);
}

static uint64_t shared_calls_count_of(const struct gpunvme_calls *c)
{
    uint64_t n = c->enqueued;

    for (unsigned i = 0; i < 3 * GPUNVME_CALLS_PATHS; i++) {
        const struct gpunvme_calls_of *one =
            &c->by[i / GPUNVME_CALLS_PATHS][i % GPUNVME_CALLS_PATHS];
        for (unsigned k = 0; k < GPUNVME_LATENCY_BUCKETS; k++)
            n += one->latency.buckets[k];
    }
    return n;
}

void shared_calls_describe(struct shared_calls *c, struct gpunvme_open_file *out)
{
    const struct gpunvme_calls *now = shared_calls_refresh(c);
    const struct gpunvme_calls_of *direct = &now->by[GPUNVME_OP_READ][GPUNVME_CALLS_DIRECT - 1];

    out->shared_calls = 1;
    out->calls = shared_calls_count_of(now);
    out->gpu_read_bytes = direct->bytes + now->enqueued_bytes;
    out->bounce_read_bytes = now->pipeline_read_bytes;
    out->bounce_written_bytes = now->pipeline_written_bytes;
}

void shared_calls_sum(struct daemon *d, struct gpunvme_calls *out)
{
    pthread_mutex_lock(&d->files_lock);
    *out = d->shared_calls.ended;
    for (struct shared_calls *c = d->shared_calls.first; c; c = c->next)
        add_calls(out, shared_calls_refresh(c));
    pthread_mutex_unlock(&d->files_lock);
}
