/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The copy kernel of an application on a simulated drive: a kernel in the
 * context of this process that makes the copies for leased queues. Copies by
 * the daemon take turns of milliseconds with a running kernel of this process.
 * Without it all functions work and are slower; drives of hardware do not need
 * it. This file is the keeper of sim/gpu/sim_mailbox.h: a thread that launches the
 * kernel if copies are posted and none runs, and otherwise sleeps.
 *
 * The kernel has a few blocks of 320 threads for each thread of the drive.
 * Blocks end after 2 ms without work, or after 0.1 s, and are launched again. A
 * kernel of the application that waits for reads on every multiprocessor, and
 * leaves no room for one more block, delays the launch: after 5 ms the daemon's
 * copy engine makes the copies, until the launch has found room.
 */
#ifndef CLIENT_LIB_COPY_KERNEL_H
#define CLIENT_LIB_COPY_KERNEL_H

#include "client/lib/client_internal.h"
#include "client/lib/memory_space.h"

struct copy_kernel;

#ifdef GPUNVME_HAVE_SIM

/* 0 and *out NULL: not needed on this mount, or the library has no device code. */
int copy_kernel_open(struct gpunvme *g, const struct memory_space *p, struct copy_kernel **out);
void copy_kernel_close(struct copy_kernel *c); /* NULL: nothing */

/*
 * Serves the queues of a lease with all known buffers until detached; after an
 * error it is not attached. Detaching comes after the end of the lease, and has
 * no effect if not attached.
 */
int copy_kernel_attach(struct copy_kernel *c, uint64_t id, uint64_t key);
void copy_kernel_detach(struct copy_kernel *c);

/*
 * Adds and removes a buffer; base: address of its first page. Copies into other
 * buffers are made by the daemon.
 */
void copy_kernel_add(struct copy_kernel *c, const struct gpunvme_buffer *b, uint64_t base);
void copy_kernel_remove(struct copy_kernel *c, const struct gpunvme_buffer *b);

#else

static inline int copy_kernel_open(struct gpunvme *g, const struct memory_space *p,
                                   struct copy_kernel **out)
{
    (void)g;
    (void)p;
    *out = NULL;
    return 0;
}

static inline void copy_kernel_close(struct copy_kernel *c)
{
    (void)c;
}

static inline int copy_kernel_attach(struct copy_kernel *c, uint64_t id, uint64_t key)
{
    (void)c;
    (void)id;
    (void)key;
    return 0;
}

static inline void copy_kernel_detach(struct copy_kernel *c)
{
    (void)c;
}

static inline void copy_kernel_add(struct copy_kernel *c, const struct gpunvme_buffer *b,
                                   uint64_t base)
{
    (void)c;
    (void)b;
    (void)base;
}

static inline void copy_kernel_remove(struct copy_kernel *c, const struct gpunvme_buffer *b)
{
    (void)c;
    (void)b;
}

#endif

#endif
