/* SPDX-License-Identifier: BSD-2-Clause */
/* Hooks of a simulated drive: its DMA engine on a GPU, and its peers. */
#include "sim/gpu/sim_gpu.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sim/gpu/sim_copy_ioctl.h"
#include "sim/gpu/sim_cuda_dma.h"
#include "sim/gpu/sim_peer_window.h"

struct sim_gpu {
    struct gq_copies hooks;
    struct sim *sim;
    uint32_t nsid;
    struct sim_media media;   /* as long as it is when a GPU makes the copies */
    int media_fd;             /* -1: the media cannot be shared */
    struct sim_cuda_dma *dma; /* NULL: not open */
};

struct gq_copies_peer {
    struct sim_gpu *gpu;
    struct sim_peer *peer;
};

static_assert(SIM_PEERS == GQ_COPIES_PEERS, "as many as the hooks promise");

static struct sim_gpu *gpu_of(struct gq_copies *c)
{
    return (struct sim_gpu *)c;
}

static int copies_open(struct gq_copies *c, int cuda_device)
{
    struct sim_gpu *g = gpu_of(c);
    int err = sim_cuda_dma_open(cuda_device, &g->dma);

    if (err)
        return err;
    sim_fix_media(g->sim, g->nsid);
    sim_get_media(g->sim, g->nsid, &g->media);
    err = sim_set_dma_engine(g->sim, sim_cuda_dma_table(g->dma));
    if (err) {
        sim_cuda_dma_close(g->dma);
        g->dma = NULL;
    }
    return err;
}

static void copies_close(struct gq_copies *c)
{
    struct sim_gpu *g = gpu_of(c);
    int err = sim_set_dma_engine(g->sim, NULL);

    assert(!err);
    (void)err;
    sim_cuda_dma_close(g->dma);
    g->dma = NULL;
}

static struct sim_peer_windows *windows_of(const struct sim_gpu *g)
{
    unsigned blocks;

    return sim_cuda_dma_peer_windows(g->dma, &blocks);
}

static void copies_forget(struct gq_copies *c, const void *owner)
{
    struct sim_gpu *g = gpu_of(c);

    if (g->dma)
        sim_peer_window_remove(windows_of(g), owner);
}

static int peer_open(struct gq_copies *c, void (*dropped)(void *ctx), void *ctx,
                     struct gq_copies_peer **out)
{
    struct sim_gpu *g = gpu_of(c);
    struct sim_peer_options opts = {.media = g->media.base,
                                    .media_len = g->media.len,
                                    .pause_ms = SIM_PEER_PAUSE_MS,
                                    .dropped = dropped,
                                    .ctx = ctx};
    struct sim_peer_windows *windows;
    struct gq_copies_peer *p;
    int err;

    if (!g->dma || g->media_fd < 0)
        return -ENOTSUP;
    p = malloc(sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->gpu = g;
    windows = sim_cuda_dma_peer_windows(g->dma, &opts.blocks);
    err = sim_peer_open(windows, &opts, &p->peer);
    if (err) {
        free(p);
        return err == -EMFILE ? -EBUSY : err;
    }
    *out = p;
    return 0;
}

static void peer_close(struct gq_copies_peer *p)
{
    sim_peer_close(p->peer);
    free(p);
}

static void peer_shared(const struct gq_copies_peer *p, struct gq_copies_shared *out)
{
    *out = (struct gq_copies_shared){.fd = sim_peer_fd(p->peer),
                                     .media_fd = p->gpu->media_fd,
                                     .len = sim_peer_len(p->peer),
                                     .media_len = p->gpu->media.len,
                                     .layout = GPUNVME_COPY_KERNEL_LAYOUT,
                                     .sets = sim_peer_sets(p->peer),
                                     .blocks = sim_peer_blocks(p->peer)};
}

static int peer_window(struct gq_copies_peer *p, const struct gq_copies_window *w)
{
    const struct sim_peer_window window = {.owner = w->owner,
                                           .device = w->device,
                                           .len = w->len,
                                           .there = w->there,
                                           .media_there = w->media_there};

    return sim_peer_window_add(p->peer, &window);
}

static const struct gq_copies_ops copies_ops = {
    .open = copies_open,
    .close = copies_close,
    .forget = copies_forget,
    .peer_open = peer_open,
    .peer_close = peer_close,
    .peer_shared = peer_shared,
    .peer_window = peer_window,
};

/*
 * A second descriptor of the image, read-only and without the lock, which would
 * otherwise outlive this process in a peer. -1: not an image.
 */
static int open_media(const struct sim_media *media)
{
    char path[64];

    if (media->fd < 0)
        return -1;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", media->fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

int sim_gpu_new(struct sim *s, uint32_t nsid, struct sim_gpu **out)
{
    struct sim_gpu *g = calloc(1, sizeof(*g));

    if (!g)
        return -ENOMEM;
    g->hooks.ops = &copies_ops;
    g->sim = s;
    g->nsid = nsid;
    sim_get_media(s, nsid, &g->media);
    g->media_fd = open_media(&g->media);
    *out = g;
    return 0;
}

void sim_gpu_free(struct sim_gpu *g)
{
    if (!g)
        return;
    if (g->media_fd >= 0)
        close(g->media_fd);
    free(g);
}

struct gq_copies *sim_gpu_hooks(struct sim_gpu *g)
{
    return &g->hooks;
}
