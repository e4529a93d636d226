/* SPDX-License-Identifier: BSD-2-Clause */
/* Peers and their windows. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/gpu/sim_peer_internal.h"

int sim_peer_windows_open(unsigned channels, struct sim_peer_windows **out)
{
    struct sim_peer_windows *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->n_channels = channels;
    r->channels = aligned_alloc(_Alignof(struct sim_peer_channel), channels * sizeof(*r->channels));
    if (!r->channels) {
        free(r);
        return -ENOMEM;
    }
    memset(r->channels, 0, channels * sizeof(*r->channels));
    for (unsigned i = 0; i < channels; i++)
        pthread_mutex_init(&r->channels[i].lock, NULL);
    *out = r;
    return 0;
}

void sim_peer_windows_close(struct sim_peer_windows *r)
{
    if (!r)
        return;
    for (unsigned i = 0; i < SIM_PEERS; i++)
        assert(r->peers[i].state == SIM_PEER_FREE);
    for (unsigned i = 0; i < r->n_channels; i++)
        pthread_mutex_destroy(&r->channels[i].lock);
    free(r->channels);
    free(r);
}

void sim_peer_windows_lock(struct sim_peer_windows *r, unsigned channel)
{
    pthread_mutex_lock(&r->channels[channel].lock);
}

void sim_peer_windows_unlock(struct sim_peer_windows *r, unsigned channel)
{
    pthread_mutex_unlock(&r->channels[channel].lock);
}

static void lock_all(struct sim_peer_windows *r)
{
    for (unsigned i = 0; i < r->n_channels; i++)
        sim_peer_windows_lock(r, i);
}

static void unlock_all(struct sim_peer_windows *r)
{
    for (unsigned i = 0; i < r->n_channels; i++)
        sim_peer_windows_unlock(r, i);
}

/* A sealed memfd: a truncation by the peer would raise SIGBUS here. */
static int make_memory(struct sim_peer *m, size_t len)
{
    void *at;
    int err;

    m->fd = memfd_create("gq-mailboxes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (m->fd < 0)
        return -errno;
    if (ftruncate(m->fd, (off_t)len) ||
        fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        err = -errno;
        goto close_fd;
    }
    at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (at == MAP_FAILED) {
        err = -errno;
        goto close_fd;
    }
    m->head = at;
    return 0;

close_fd:
    close(m->fd);
    return err;
}

static int fill_in(struct sim_peer *m, const struct sim_peer_options *o)
{
    struct sim_peer_windows *r = m->windows;
    int err;

    m->opts = *o;
    m->posters = aligned_alloc(_Alignof(struct sim_poster), r->n_channels * sizeof(*m->posters));
    if (!m->posters)
        return -ENOMEM;
    err = make_memory(m, sim_peer_len(m));
    if (err) {
        free(m->posters);
        return err;
    }
    for (unsigned i = 0; i < r->n_channels; i++) {
        r->channels[i].standing[m - r->peers] = (struct sim_peer_standing){0};
        m->posters[i] = (struct sim_poster){.m = sim_mailbox_set(m->head, i), .blocks = o->blocks};
    }
    return 0;
}

int sim_peer_open(struct sim_peer_windows *r, const struct sim_peer_options *o,
                  struct sim_peer **out)
{
    struct sim_peer *m = NULL;
    int err = -EMFILE;

    lock_all(r);
    for (unsigned i = 0; i < SIM_PEERS && !m; i++)
        m = r->peers[i].state == SIM_PEER_FREE ? &r->peers[i] : NULL;
    if (m) {
        m->windows = r;
        err = fill_in(m, o);
    }
    if (!err) {
        m->generation++;
        m->state = SIM_PEER_LIVE;
        *out = m;
    }
    unlock_all(r);
    return err;
}

/* Under all locks. */
static void remove_window(struct sim_peer_windows *r, unsigned i)
{
    unsigned last = r->n_windows - 1;

    r->windows[i] = r->windows[last];
    __atomic_store_n(&r->n_windows, last, __ATOMIC_RELAXED);
}

void sim_peer_close(struct sim_peer *m)
{
    struct sim_peer_windows *r = m->windows;

    lock_all(r);
    for (unsigned i = r->n_windows; i-- > 0;) {
        if (r->windows[i].peer == sim_peer_index(m))
            remove_window(r, i);
    }
    for (unsigned i = 0; i < r->n_channels; i++)
        sim_poster_take_back(&m->posters[i]);
    munmap(m->head, sim_peer_len(m));
    close(m->fd);
    free(m->posters);
    m->state = SIM_PEER_FREE;
    unlock_all(r);
}

int sim_peer_fd(const struct sim_peer *m)
{
    return m->fd;
}

size_t sim_peer_len(const struct sim_peer *m)
{
    return SIM_MAILBOX_BYTES(m->windows->n_channels);
}

unsigned sim_peer_sets(const struct sim_peer *m)
{
    return m->windows->n_channels;
}

unsigned sim_peer_blocks(const struct sim_peer *m)
{
    return m->opts.blocks;
}

/* Addresses must fit below the tag bits of a slot. */
static bool can_be(uint64_t at, uint64_t len)
{
    return at <= SIM_COPY_KERNEL_VALUE && len <= SIM_COPY_KERNEL_VALUE - at;
}

/* Index of the peer's window of this buffer, or a new one. Under all locks. */
static unsigned place_of(const struct sim_peer *m, const struct sim_peer_window *window)
{
    const struct sim_peer_windows *r = m->windows;
    unsigned i = 0;

    while (i < r->n_windows &&
           (r->windows[i].peer != sim_peer_index(m) || r->windows[i].window.owner != window->owner))
        i++;
    return i;
}

int sim_peer_window_add(struct sim_peer *m, const struct sim_peer_window *window)
{
    struct sim_peer_windows *r = m->windows;
    int err = -ENOSPC;
    unsigned at;

    if (!can_be(window->there, window->len) || !can_be(window->media_there, m->opts.media_len))
        return -EINVAL;
    lock_all(r);
    at = place_of(m, window);
    if (at < SIM_PEER_WINDOWS) {
        r->windows[at] =
            (struct sim_peer_window_entry){.window = *window, .peer = (uint8_t)sim_peer_index(m)};
        if (at == r->n_windows)
            __atomic_store_n(&r->n_windows, at + 1, __ATOMIC_RELAXED);
        err = 0;
    }
    unlock_all(r);
    return err;
}

void sim_peer_window_remove(struct sim_peer_windows *r, const void *owner)
{
    if (!sim_peer_windows_exist(r))
        return;
    lock_all(r);
    for (unsigned i = r->n_windows; i-- > 0;) {
        if (r->windows[i].window.owner == owner)
            remove_window(r, i);
    }
    for (unsigned i = 0; i < r->n_channels; i++) {
        for (unsigned k = 0; k < SIM_PEERS; k++)
            r->channels[i].standing[k].full_since = 0; /* they may not be submitted again */
    }
    unlock_all(r);
}
