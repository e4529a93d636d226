/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the doorbell proxy of tier 0. A CPU thread stores to the
 * controller's doorbells on behalf of an executor that cannot.
 *
 * The executor stores its tails and heads to proxied doorbells in ordinary
 * memory. The thread forwards changed values. The thread polls while the
 * executor drives queues, and sleeps otherwise. Proxied doorbells may be shared
 * with other processes: values beyond a queue's depth are not forwarded.
 */
#ifndef CUDA_ENGINE_GQ_DOORBELL_PROXY_H
#define CUDA_ENGINE_GQ_DOORBELL_PROXY_H

#include "blockdev/nvme/nvme.h"
#include "cuda/queue/gq_work.h"

struct gq_doorbell_proxy;

/*
 * The proxied doorbells of a queue pair, in a cache line of their own against
 * false sharing.
 */
struct gq_proxied_doorbell {
    uint32_t sq_tail;
    uint32_t cq_head;
    uint32_t unused[14];
};
static_assert(sizeof(struct gq_proxied_doorbell) == 64, "a cache line");

/*
 * Starts the thread. proxied_doorbells has GQ_MAX_QUEUES zeroed elements; the
 * caller keeps it until gq_doorbell_proxy_close(). Returns 0, -ENOMEM or an
 * error of pthread_create().
 */
int gq_doorbell_proxy_open(struct nvme_transport *t, struct gq_proxied_doorbell *proxied_doorbells,
                           struct gq_doorbell_proxy **out);
/* Stops the thread. No queue may be driven any more. */
void gq_doorbell_proxy_close(struct gq_doorbell_proxy *p);

/*
 * Assigns proxied doorbell i to the pair; both values start at 0, like those of
 * a new pair.
 */
void gq_doorbell_proxy_add(struct gq_doorbell_proxy *p, unsigned i, const struct nvme_qpair *qp);
/* Ends stores to the doorbells of pair i; i may be added again. */
void gq_doorbell_proxy_remove(struct gq_doorbell_proxy *p, unsigned i);
/*
 * Sets the current values of pair i after it was created again (0, 0) or the
 * host has stored to its doorbells. Stores to no doorbell. The pair must not be
 * driven meanwhile.
 */
void gq_doorbell_proxy_set(struct gq_doorbell_proxy *p, unsigned i, uint32_t sq_tail,
                           uint32_t cq_head);

/*
 * Forwards the last values of pair i, and none after that until hold is false:
 * its queue ID belongs to another owner. The values stay.
 */
void gq_doorbell_proxy_hold(struct gq_doorbell_proxy *p, unsigned i, bool hold);

/* Returns the number of entries submitted to the SQ of pair i since it was added. */
uint64_t gq_doorbell_proxy_submitted(struct gq_doorbell_proxy *p, unsigned i);

/* Called before queues are driven: wakes the thread. */
void gq_doorbell_proxy_begin(struct gq_doorbell_proxy *p);
/*
 * Called when queues are no longer driven: forwards their last values, and none
 * after that.
 */
void gq_doorbell_proxy_end(struct gq_doorbell_proxy *p);
/*
 * Ends forwarding for good: the executor may continue to store, but its values
 * are not trusted.
 */
void gq_doorbell_proxy_silence(struct gq_doorbell_proxy *p);

#endif
