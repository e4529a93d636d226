/*
 * Routes: copies that another process makes for us. The contexts of two processes on one GPU take
 * turns of milliseconds, so while a kernel of an application waits for a simulated drive's copies,
 * nothing but a kernel of the same context makes them in time. Such a copy kernel (a remote) is
 * handed copies through mailboxes in shared memory, with addresses as that process has them.
 *
 * A copy takes a peer window when it is a read into a buffer of that process and its source lies in
 * the media that the process maps, too. A remote is never trusted to answer: what it has not done
 * within GQ_PEER_PATIENCE_MS, or when it ends, is handed back to be made here. It may make such
 * copies later all the same, and a remote that lies says "done" too early: either changes nothing
 * but its own process's buffers. Hence reads only; a late write would hit blocks that have been
 * given to others since.
 *
 * Channels as the DMA engine's: one thread at a time in each. Any thread opens and closes remotes
 * and peer windows. Plain C: no CUDA is called here.
 */
#ifndef CUDA_GQ_ROUTE_H
#define CUDA_GQ_ROUTE_H

#include "cuda/gq_mailbox.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GQ_PEERS              8u    /* at once */
#define GQ_PEER_WINDOWS       1024u /* at once, of all remotes */
#define GQ_PEER_WINDOW_COPIES 512u  /* of one submission, at most */
#define GQ_PEER_PATIENCE_MS   1000u

struct gq_peer_windows;
struct gq_peer;

int gq_peer_windows_open(unsigned channels, struct gq_peer_windows **out);
/* No remote may be open. */
void gq_peer_windows_close(struct gq_peer_windows *r);

struct gq_peer_options {
    const void *media; /* what copies come from, as this process maps it; outlives the remote */
    size_t media_len;
    unsigned blocks; /* of each channel's copy kernel: 1 to GQ_COPY_KERNEL_BLOCKS */
    /* Called once, from a channel's thread, when the remote has not answered and is given up. */
    void (*dropped)(void *ctx);
    void *ctx;
};

/* -EMFILE: there are GQ_PEERS already; -ENOMEM and other errors of memfd_create(2), mmap(2). */
int gq_peer_open(struct gq_peer_windows *r, const struct gq_peer_options *o, struct gq_peer **out);
/* Ends its peer windows. What it has not done is made here. */
void gq_peer_close(struct gq_peer *m);
/* The memory of its mailboxes, a set for each channel; the remote's, and cannot be resized. */
int gq_peer_fd(const struct gq_peer *m);
size_t gq_peer_len(const struct gq_peer *m);
unsigned gq_peer_sets(const struct gq_peer *m);
unsigned gq_peer_blocks(const struct gq_peer *m); /* of each set */

/* One buffer's way, in addresses of the device here and there. */
struct gq_peer_window {
    const void *owner; /* the buffer, for gq_peer_window_remove() */
    uint64_t device;   /* here */
    uint64_t len;
    uint64_t there;       /* the same byte as `device` */
    uint64_t media_there; /* the same byte as gq_peer_options.media */
};
/*
 * Takes the place of the remote's earlier peer window of the same owner. -ENOSPC: there are
 * GQ_PEER_WINDOWS; -EINVAL: nothing that mailboxes can say.
 */
int gq_peer_window_add(struct gq_peer *m, const struct gq_peer_window *window);
/* All peer windows of a buffer. Before its memory goes. */
void gq_peer_window_remove(struct gq_peer_windows *r, const void *owner);

/* What is under way on peer windows, of one submission; the channel's thread keeps it. */
struct gq_peer_window_part {
    uint16_t peer, first, n; /* copies [first, first + n) of the submission */
    bool done;
    uint32_t generation; /* of the remote's slot */
    uint64_t waited_ns;  /* since when it is waited for; 0: not yet */
    struct gq_copy_kernel_ticket ticket;
};
struct gq_peer_copy {
    unsigned n_local; /* copies that take no peer window: the first ones */
    unsigned n_parts;
    struct gq_peer_window_part parts[GQ_PEERS];
};

/* Cheap, for those who have no peer windows: false says that there are none now. */
bool gq_peer_windows_exist(const struct gq_peer_windows *r);
/* Around plan, post and poll; peer windows and remotes stay as they are meanwhile. */
void gq_peer_windows_lock(struct gq_peer_windows *r, unsigned channel);
void gq_peer_windows_unlock(struct gq_peer_windows *r, unsigned channel);
/*
 * Sorts a submission's copies to the device, at most GQ_PEER_WINDOW_COPIES: those without a peer
 * window come first, then each remote's. 0; -EAGAIN: a remote has no room now, try the whole again.
 */
int gq_peer_windows_plan(struct gq_peer_windows *r, unsigned channel, struct gq_gather *copies,
                         unsigned n, struct gq_peer_copy *out);
/* Hands over what plan() has sorted just before; the lock was not given up. */
void gq_peer_windows_post(struct gq_peer_windows *r, unsigned channel, struct gq_peer_copy *routed);
/*
 * 1: all parts are done, 0: not yet; -ESTALE: the copies of part *lost have to be made here, from
 * the list as plan() left it; the part counts as done then.
 */
int gq_peer_windows_poll(struct gq_peer_windows *r, unsigned channel, struct gq_peer_copy *routed,
                         unsigned *lost);

#ifdef __cplusplus
}
#endif

#endif
