/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copy kernels on a machine without a GPU: hooks whose peers are real and whose
 * DMA engine is missing. These kernels copy nothing.
 */
#include "tests/fusefs/daemon/lease/lease_copy_fake.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/gpu/sim_copy_ioctl.h"
#include "sim/gpu/sim_peer_window.h"

#define MEDIA_BYTES 4096u

static char media[MEDIA_BYTES];
static struct sim_peer_windows *windows; /* of the process; calls are serialised */
static int media_fd = -1;

static int peer_open(struct gq_copies *c, void (*dropped)(void *ctx), void *ctx,
                     struct gq_copies_peer **out)
{
    const struct sim_peer_options opts = {
        .media = media, .media_len = MEDIA_BYTES, .blocks = 1, .dropped = dropped, .ctx = ctx};

    (void)c;
    if (media_fd < 0)
        media_fd = memfd_create("media", MFD_CLOEXEC);
    int err = windows ? 0 : sim_peer_windows_open(1, &windows);
    if (!err)
        err = sim_peer_open(windows, &opts, (struct sim_peer **)out);
    return err == -EMFILE ? -EBUSY : err;
}

static void peer_close(struct gq_copies_peer *p)
{
    sim_peer_close((struct sim_peer *)p);
}

static void peer_shared(const struct gq_copies_peer *p, struct gq_copies_shared *out)
{
    const struct sim_peer *peer = (const struct sim_peer *)p;

    *out = (struct gq_copies_shared){.fd = sim_peer_fd(peer),
                                     .media_fd = media_fd,
                                     .len = sim_peer_len(peer),
                                     .media_len = MEDIA_BYTES,
                                     .layout = GPUNVME_COPY_KERNEL_LAYOUT,
                                     .sets = sim_peer_sets(peer),
                                     .blocks = sim_peer_blocks(peer)};
}

static void forget(struct gq_copies *c, const void *owner)
{
    (void)c;
    if (windows)
        sim_peer_window_remove(windows, owner);
}

struct gq_copies *lease_copy_fake(void)
{
    static const struct gq_copies_ops ops = {.forget = forget,
                                             .peer_open = peer_open,
                                             .peer_close = peer_close,
                                             .peer_shared = peer_shared};
    static struct gq_copies copies = {.ops = &ops};

    return &copies;
}
