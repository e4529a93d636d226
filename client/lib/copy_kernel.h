/*
 * A copy kernel for simulated drives: a kernel in this process's own context that makes the copies
 * of leased queues, for the daemon's are made in turns of milliseconds while a kernel of ours runs.
 * Everything works without it, slower; drives of hardware need none. This is the keeper's half of
 * cuda/gq_mailbox.h: a thread that launches the kernel where copies are posted and none runs, and
 * sleeps meanwhile.
 *
 * The kernel takes a few blocks of 320 threads for each of the drive's threads, which end when they
 * have had nothing to do for 2 ms, or after 0.1 s, to be launched anew. A kernel of the
 * application's that waits for reads on every multiprocessor and leaves no room for one more block
 * keeps it from starting: after a second the daemon copies again, and such reads may end by their
 * deadline.
 */
#ifndef CLIENT_LIB_COPY_KERNEL_H
#define CLIENT_LIB_COPY_KERNEL_H

#include "client/lib/client_internal.h"
#include "client/lib/memory_space.h"

struct copy_kernel;

/* *out NULL, and 0: none is needed here, or the library has no code for it. */
int copy_kernel_open(struct gpunvme *g, const struct memory_space *p, struct copy_kernel **out);
void copy_kernel_close(struct copy_kernel *c); /* NULL: nothing */

/*
 * Serves the queues of a lease from now on, and all buffers that it knows. An error: not at all.
 * Detached when the lease has ended; nothing if it is not attached.
 */
int copy_kernel_attach(struct copy_kernel *c, uint64_t id, uint64_t key);
void copy_kernel_detach(struct copy_kernel *c);

/* Buffers; base: the address of the first page. What cannot be served is copied by the daemon. */
void copy_kernel_add(struct copy_kernel *c, const struct gpunvme_buffer *b, uint64_t base);
void copy_kernel_remove(struct copy_kernel *c, const struct gpunvme_buffer *b);

#endif
