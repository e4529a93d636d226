/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Peer windows: buffers mapped in another process, whose copy kernel makes the
 * copies. The contexts of two processes on one GPU take turns of milliseconds.
 * While a kernel of an application waits for copies of a simulated drive, only
 * a kernel of the same context makes them in time. Copies are posted to the
 * copy kernel of that process (the peer) through mailboxes in shared memory, in
 * addresses of the peer.
 *
 * A copy uses a peer window if it is a read into a buffer of the peer and its
 * source lies in media that the peer maps as well.
 *
 * A GPU that is full of the peer's own blocks has no room for its copy kernel.
 * A peer without progress for `pause_ms` is passed over on the channel: its
 * copies are cancelled and returned to the caller once no kernel can make them
 * any more, later ones stay local, and the peer gets copies again when its
 * kernel has counted all that was posted.
 *
 * A peer is not trusted to respond: copies that a running kernel has not made
 * within SIM_PEER_PATIENCE_MS, or before the peer's end, are returned to the
 * caller, and the peer is dropped. It may make such copies later, or report
 * copies that it has not made; both affect buffers of its own process only.
 * Writes therefore have no peer windows: a late write would reach blocks that
 * belong to another file by then.
 *
 * Channels are those of the DMA engine: one thread at a time in each. Any
 * thread opens and closes peers and windows. Plain C: no CUDA is called here.
 */
#ifndef SIM_GPU_SIM_PEER_WINDOW_H
#define SIM_GPU_SIM_PEER_WINDOW_H

#include "sim/gpu/sim_mailbox.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SIM_PEERS              8u    /* at once */
#define SIM_PEER_WINDOWS       1024u /* at once, of all peers */
#define SIM_PEER_WINDOW_COPIES 512u  /* maximum of one submission */
#define SIM_PEER_PATIENCE_MS   1000u
/* Some turns of two contexts on a GPU; a launch on a GPU with room takes 0.1 ms. */
#define SIM_PEER_PAUSE_MS 5u

struct sim_peer_windows;
struct sim_peer;

int sim_peer_windows_open(unsigned channels, struct sim_peer_windows **out);
/* Precondition: no peer is open. */
void sim_peer_windows_close(struct sim_peer_windows *r);

struct sim_peer_options {
    const void *media; /* source of copies, as mapped in this process; outlives the peer */
    size_t media_len;
    unsigned blocks;   /* of each channel's copy kernel: 1 to SIM_COPY_KERNEL_BLOCKS */
    unsigned pause_ms; /* time without progress after which it is passed over */
    /*
     * Called once, by the thread of a channel, when the peer has not responded
     * and is dropped.
     */
    void (*dropped)(void *ctx);
    void *ctx;
};

/*
 * -EMFILE: SIM_PEERS are open; -ENOMEM and other errors of memfd_create(2),
 * mmap(2).
 */
int sim_peer_open(struct sim_peer_windows *r, const struct sim_peer_options *o,
                  struct sim_peer **out);
/*
 * Removes its peer windows. Copies that it has not made are returned by
 * sim_peer_windows_poll().
 */
void sim_peer_close(struct sim_peer *m);
/*
 * The memory of its mailboxes, one for each channel; owned by the peer, cannot
 * be resized.
 */
int sim_peer_fd(const struct sim_peer *m);
size_t sim_peer_len(const struct sim_peer *m);
unsigned sim_peer_sets(const struct sim_peer *m);
unsigned sim_peer_blocks(const struct sim_peer *m); /* of each mailbox */

/* One buffer in addresses of the device, here and in the peer. */
struct sim_peer_window {
    const void *owner; /* the buffer, for sim_peer_window_remove() */
    uint64_t device;   /* here */
    uint64_t len;
    uint64_t there;       /* the same byte as `device` */
    uint64_t media_there; /* the same byte as sim_peer_options.media */
};
/*
 * Replaces the peer's earlier window of the same owner. -ENOSPC: there are
 * SIM_PEER_WINDOWS; -EINVAL: addresses that a slot cannot encode.
 */
int sim_peer_window_add(struct sim_peer *m, const struct sim_peer_window *window);
/* Removes all peer windows of a buffer. Called before its memory is freed. */
void sim_peer_window_remove(struct sim_peer_windows *r, const void *owner);

/*
 * The part of a submission that one peer has; kept by the thread of the
 * channel.
 */
struct sim_peer_window_part {
    uint16_t peer, first, n; /* copies [first, first + n) of the submission */
    bool done;
    uint32_t generation; /* generation of the peer's entry */
    uint64_t waited_ns;  /* start of the wait, ns; 0: not waited for */
    struct sim_copy_kernel_ticket ticket;
};
struct sim_peer_copy {
    unsigned n_local; /* number of copies that stay here: the first ones */
    /*
     * Some of them are those of a peer that is passed over. A kernel of this
     * process would take turns with those that fill the GPU; the copy engine
     * does not.
     */
    bool by_engine;
    unsigned n_parts;
    struct sim_peer_window_part parts[SIM_PEERS];
};

/* False: there are no peer windows. One relaxed load. */
bool sim_peer_windows_exist(const struct sim_peer_windows *r);
/*
 * Held around plan, post and poll; peers and windows do not change meanwhile.
 */
void sim_peer_windows_lock(struct sim_peer_windows *r, unsigned channel);
void sim_peer_windows_unlock(struct sim_peer_windows *r, unsigned channel);
/*
 * Sorts the copies of a submission to the device, at most
 * SIM_PEER_WINDOW_COPIES: first those without a peer window, then those of each
 * peer. 0; -EAGAIN: a peer has no room, the whole submission must be repeated.
 */
int sim_peer_windows_plan(struct sim_peer_windows *r, unsigned channel, struct sim_gather *copies,
                          unsigned n, struct sim_peer_copy *out);
/*
 * Posts the copies of the preceding plan(). Precondition: the lock was held
 * since.
 */
void sim_peer_windows_post(struct sim_peer_windows *r, unsigned channel,
                           struct sim_peer_copy *peer_copy);
/*
 * 1: all parts are done, 0: in flight; -ESTALE: the caller must make the copies
 * of part *lost, from the list as plan() left it; the part then counts as done.
 * They may have been made already.
 */
int sim_peer_windows_poll(struct sim_peer_windows *r, unsigned channel,
                          struct sim_peer_copy *peer_copy, unsigned *lost);

#ifdef __cplusplus
}
#endif

#endif
