/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Syncs image files by fdatasync(2) in a separate thread. On a slow disk a sync
 * takes a minute, during which a drive executes other commands. Commands that
 * wait for a sync are held without a due time, so they can be aborted and
 * dropped like other held commands. One sync serves all commands that were held
 * before it began.
 */
#include <unistd.h>

#include "sim/sim_internal.h"

/*
 * Syncs the images. A failure is permanent: the kernel drops pages that it
 * could not write, and reports that once.
 */
static void sync_images(struct sim *s)
{
    for (unsigned i = 0; i < s->cfg.namespaces; i++) {
        if (!s->ns[i].syncs)
            continue;
        pthread_mutex_lock(&s->flusher.syncing);
        if (fdatasync(s->ns[i].fd) != 0)
            atomic_store(&s->flusher.failed, true);
        pthread_mutex_unlock(&s->flusher.syncing);
    }
}

static uint16_t verdict(struct sim *s)
{
    return atomic_load(&s->flusher.failed) ? NVME_ERR_WRITE_FAULT : NVME_OK;
}

uint16_t sim_flush_now(struct sim *s)
{
    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        if (s->ns[i].track)
            sim_cache_flush(&s->ns[i]);
    sync_images(s);
    return verdict(s);
}

/* Serves all requests made before. Releases the lock during the sync. */
static void flush_serve(struct sim *s)
{
    struct sim_flusher *f = &s->flusher;
    uint64_t asked = f->asked;

    pthread_mutex_unlock(&f->lock);
    sync_images(s);
    atomic_store(&f->done, asked);
    atomic_fetch_add(&s->kicks, 1); /* see sim_expect() */
    sim_wake_all(s);
    pthread_mutex_lock(&f->lock);
}

static void *flusher_main(void *arg)
{
    struct sim *s = arg;
    struct sim_flusher *f = &s->flusher;

    pthread_setname_np(pthread_self(), "sim-flush");
    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        if (f->asked != atomic_load(&f->done))
            flush_serve(s);
        else
            pthread_cond_wait(&f->wake, &f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

int sim_flusher_start(struct sim *s)
{
    struct sim_flusher *f = &s->flusher;
    int rc;

    if (!sim_syncs(s))
        return 0;
    pthread_mutex_init(&f->syncing, NULL);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->wake, NULL);
    rc = pthread_create(&f->thread, NULL, flusher_main, s);
    f->started = rc == 0;
    return -rc;
}

void sim_flusher_stop(struct sim *s)
{
    struct sim_flusher *f = &s->flusher;

    if (!f->started)
        return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->syncing);
}

uint16_t sim_flush_wait(struct sim_thread *th, struct sim_cmd *cmd)
{
    struct sim_flusher *f = &th->s->flusher;

    pthread_mutex_lock(&f->lock);
    cmd->flush = ++f->asked;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
    cmd->state = SIM_CMD_HELD;
    sim_hold(th, cmd, SIM_NEVER);
    return SIM_MOVING;
}

uint16_t sim_flush_write(struct sim_thread *th, struct sim_cmd *cmd, struct sim_ns *ns)
{
    bool fua = cmd->sqe.cdw12 & NVME_RW_FUA;

    if (fua && sim_is_cached(th, ns))
        sim_cache_durable(ns, sim_slba(&cmd->sqe), sim_nlb(&cmd->sqe));
    return ns->syncs && (fua || !th->s->wce) ? sim_flush_wait(th, cmd) : NVME_OK;
}

bool sim_flush_news(struct sim_thread *th)
{
    return atomic_load_explicit(&th->s->flusher.done, memory_order_relaxed) != th->flushed;
}

bool sim_flush_run(struct sim_thread *th)
{
    struct sim_flusher *f = &th->s->flusher;

    if (!sim_flush_news(th))
        return false;
    th->flushed = atomic_load(&f->done); /* loaded before failed, which is stored before it */
    assert(f->started);
    return sim_held_flushed(th, th->flushed, verdict(th->s));
}
