/*
 * Routes: copies that another process makes for us. The contexts of two processes on one GPU take
 * turns of milliseconds, so while a kernel of an application waits for a simulated drive's copies,
 * nothing but a kernel of the same context makes them in time. Such a copier (a remote) is handed
 * copies through mailboxes in shared memory, with addresses as that process has them.
 *
 * A copy takes a route when it is a read into a buffer of that process and its source lies in the
 * media that the process maps, too. A remote is never trusted to answer: what it has not done
 * within GQ_REMOTE_PATIENCE_MS, or when it ends, is handed back to be made here. It may make such
 * copies later all the same, and a remote that lies says "done" too early: either changes nothing
 * but its own process's buffers. Hence reads only; a late write would hit blocks that have been
 * given to others since.
 *
 * Channels as the mover's: one thread at a time in each. Any thread opens and closes remotes and
 * routes. Plain C: no CUDA is called here.
 */
#ifndef CUDA_GQ_ROUTE_H
#define CUDA_GQ_ROUTE_H

#include "cuda/gq_mailbox.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GQ_REMOTES            8u    /* at once */
#define GQ_ROUTES             1024u /* at once, of all remotes */
#define GQ_ROUTE_COPIES       512u  /* of one submission, at most */
#define GQ_REMOTE_PATIENCE_MS 1000u

struct gq_routes;
struct gq_remote;

int gq_routes_open(unsigned channels, struct gq_routes **out);
/* No remote may be open. */
void gq_routes_close(struct gq_routes *r);

struct gq_remote_options {
    const void *media; /* what copies come from, as this process maps it; outlives the remote */
    size_t media_len;
    unsigned blocks; /* of each channel's copier: 1 to GQ_COPIER_BLOCKS */
    /* Called once, from a channel's thread, when the remote has not answered and is given up. */
    void (*dropped)(void *ctx);
    void *ctx;
};

/* -EMFILE: there are GQ_REMOTES already; -ENOMEM and other errors of memfd_create(2), mmap(2). */
int gq_remote_open(struct gq_routes *r, const struct gq_remote_options *o, struct gq_remote **out);
/* Ends its routes. What it has not done is made here. */
void gq_remote_close(struct gq_remote *m);
/* The memory of its mailboxes, a set for each channel; the remote's, and cannot be resized. */
int gq_remote_fd(const struct gq_remote *m);
size_t gq_remote_len(const struct gq_remote *m);
unsigned gq_remote_sets(const struct gq_remote *m);
unsigned gq_remote_blocks(const struct gq_remote *m); /* of each set */

/* One buffer's way, in addresses of the device here and there. */
struct gq_route {
    const void *owner; /* the buffer, for gq_route_remove() */
    uint64_t device;   /* here */
    uint64_t len;
    uint64_t there;       /* the same byte as `device` */
    uint64_t media_there; /* the same byte as gq_remote_options.media */
};
/*
 * Takes the place of the remote's earlier route of the same owner. -ENOSPC: there are GQ_ROUTES;
 * -EINVAL: nothing that mailboxes can say.
 */
int gq_route_add(struct gq_remote *m, const struct gq_route *route);
/* All routes of a buffer. Before its memory goes. */
void gq_route_remove(struct gq_routes *r, const void *owner);

/* What is under way on routes, of one submission; the channel's thread keeps it. */
struct gq_route_part {
    uint16_t remote, first, n; /* copies [first, first + n) of the submission */
    bool done;
    uint32_t generation; /* of the remote's slot */
    uint64_t waited_ns;  /* since when it is waited for; 0: not yet */
    struct gq_copier_ticket ticket;
};
struct gq_routed {
    unsigned n_local; /* copies that take no route: the first ones */
    unsigned n_parts;
    struct gq_route_part parts[GQ_REMOTES];
};

/* Cheap, for those who have no routes: false says that there are none now. */
bool gq_routes_exist(const struct gq_routes *r);
/* Around plan, post and poll; routes and remotes stay as they are meanwhile. */
void gq_routes_lock(struct gq_routes *r, unsigned channel);
void gq_routes_unlock(struct gq_routes *r, unsigned channel);
/*
 * Sorts a submission's copies to the device, at most GQ_ROUTE_COPIES: those without a route come
 * first, then each remote's. 0; -EAGAIN: a remote has no room now, try the whole again.
 */
int gq_routes_plan(struct gq_routes *r, unsigned channel, struct gq_gather *copies, unsigned n,
                   struct gq_routed *out);
/* Hands over what plan() has sorted just before; the lock was not given up. */
void gq_routes_post(struct gq_routes *r, unsigned channel, struct gq_routed *routed);
/*
 * 1: all parts are done, 0: not yet; -ESTALE: the copies of part *lost have to be made here, from
 * the list as plan() left it; the part counts as done then.
 */
int gq_routes_poll(struct gq_routes *r, unsigned channel, struct gq_routed *routed, unsigned *lost);

#ifdef __cplusplus
}
#endif

#endif
