/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Hooks of a drive whose data reaches GPU memory by copies: the simulated one
 * (sim/gpu). A controller of hardware reaches GPU memory by DMA and has none.
 *
 * Peers are processes whose own copy kernel makes copies into their buffers.
 */
#ifndef CUDA_GQ_COPIES_H
#define CUDA_GQ_COPIES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GQ_COPIES_PEERS 8u /* open at once */

struct gq_copies;
struct gq_copies_peer; /* belongs to the implementation */

/* Memory for a peer. The peer owns the descriptor fd, and the hooks own media_fd. */
struct gq_copies_shared {
    int fd;                        /* its mailboxes */
    int media_fd;                  /* the drive's media, read-only */
    uint64_t len, media_len;       /* bytes of each */
    uint32_t layout, sets, blocks; /* version and number of mailboxes, blocks of each kernel */
};

/*
 * A buffer of a peer: addresses of its first page and of the first byte of the
 * media.
 */
struct gq_copies_window {
    const void *owner;           /* the buffer, for forget() */
    uint64_t device, len;        /* in this process */
    uint64_t there, media_there; /* in the peer */
};

struct gq_copies_ops {
    /*
     * Called with the device selected, before GPU memory is mapped for the
     * controller. Returns 0, or -errno if GPU memory is not reachable.
     */
    int (*open)(struct gq_copies *c, int cuda_device);
    /* Precondition: no GPU memory is mapped, and no peer is open. */
    void (*close)(struct gq_copies *c);
    /* Removes the windows of a buffer. Called before its memory is freed. */
    void (*forget)(struct gq_copies *c, const void *owner);
    /*
     * Opens a peer. dropped is called once, from any thread, if the peer does not
     * respond; its copies are then made here. Returns -ENOTSUP if open() was not
     * called or the media cannot be shared, -EBUSY for too many peers, or another
     * -errno.
     */
    int (*peer_open)(struct gq_copies *c, void (*dropped)(void *ctx), void *ctx,
                     struct gq_copies_peer **out);
    void (*peer_close)(struct gq_copies_peer *p);
    void (*peer_shared)(const struct gq_copies_peer *p, struct gq_copies_shared *out);
    /* Replaces the peer's window of the same owner. Returns 0, -ENOSPC or -EINVAL. */
    int (*peer_window)(struct gq_copies_peer *p, const struct gq_copies_window *w);
};

struct gq_copies {
    const struct gq_copies_ops *ops;
};

#ifdef __cplusplus
}
#endif

#endif
