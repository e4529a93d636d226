/*
 * Tier 0: a CPU thread rings the controller's doorbells for an executor that cannot.
 *
 * The executor stores its tails and heads to proxied doorbells, in ordinary memory that it reaches;
 * the thread passes on what has changed. It polls while the executor drives queues, and sleeps when
 * nothing is driven. Shadows may be shared with whoever drives the queues: values beyond a queue's
 * depth are not passed on.
 */
#ifndef CUDA_ENGINE_GQ_DOORBELL_PROXY_H
#define CUDA_ENGINE_GQ_DOORBELL_PROXY_H

#include "blockdev/nvme/nvme.h"
#include "cuda/queue/gq_work.h"

struct gq_doorbell_proxy;

/* The proxied doorbells of a queue pair: a cache line of its own, so that pairs do not slow each
 * other. */
struct gq_proxied_doorbell {
    uint32_t sq_tail;
    uint32_t cq_head;
    uint32_t unused[14];
};
static_assert(sizeof(struct gq_proxied_doorbell) == 64, "a cache line");

/* proxied doorbells: GQ_MAX_QUEUES of them, zeroed, the caller's until gq_doorbell_proxy_close().
 */
int gq_doorbell_proxy_open(struct nvme_transport *t, struct gq_proxied_doorbell *proxied_doorbells,
                           struct gq_doorbell_proxy **out);
/* Nothing may be driven any more. */
void gq_doorbell_proxy_close(struct gq_doorbell_proxy *p);

/* Shadow i stands for this pair's doorbells; both start at 0, as those of a fresh pair. */
void gq_doorbell_proxy_add(struct gq_doorbell_proxy *p, unsigned i, const struct nvme_qpair *qp);
/* Nothing is rung for pair i any more; its place may be added again. */
void gq_doorbell_proxy_remove(struct gq_doorbell_proxy *p, unsigned i);
/*
 * Pair i was created again (0, 0), or the host has rung itself: what the doorbells hold now. Rings
 * nothing. The pair is not driven meanwhile.
 */
void gq_doorbell_proxy_set(struct gq_doorbell_proxy *p, unsigned i, uint32_t sq_tail,
                           uint32_t cq_head);

/* Queues are about to be driven. */
void gq_doorbell_proxy_begin(struct gq_doorbell_proxy *p);
/* They are driven no more: passes on their last values. Rings nothing for them afterwards. */
void gq_doorbell_proxy_end(struct gq_doorbell_proxy *p);
/* From now on nothing is rung: the executor may go on storing, but nobody believes it. */
void gq_doorbell_proxy_silence(struct gq_doorbell_proxy *p);

#endif
