/*
 * Tier 0: a CPU thread rings the controller's doorbells for an executor that cannot.
 *
 * The executor stores its tails and heads to shadows, in ordinary memory that it reaches; the
 * thread passes on what has changed. It polls while the executor drives queues, and sleeps when
 * nothing is driven. Shadows may be shared with whoever drives the queues: values beyond a queue's
 * depth are not passed on.
 */
#ifndef CUDA_ENGINE_GQ_DOORBELL_PROXY_H
#define CUDA_ENGINE_GQ_DOORBELL_PROXY_H

#include "blockdev/nvme/nvme.h"
#include "cuda/queue/gq_work.h"

struct gq_ringer;

/* The shadows of a queue pair: a cache line of its own, so that pairs do not slow each other. */
struct gq_shadow {
    uint32_t sq_tail;
    uint32_t cq_head;
    uint32_t unused[14];
};
static_assert(sizeof(struct gq_shadow) == 64, "a cache line");

/* shadows: GQ_MAX_QUEUES of them, zeroed, the caller's until gq_ringer_close(). */
int gq_ringer_open(struct nvme_transport *t, struct gq_shadow *shadows, struct gq_ringer **out);
/* Nothing may be driven any more. */
void gq_ringer_close(struct gq_ringer *r);

/* Shadow i stands for this pair's doorbells; both start at 0, as those of a fresh pair. */
void gq_ringer_add(struct gq_ringer *r, unsigned i, const struct nvme_qpair *qp);
/* Nothing is rung for pair i any more; its place may be added again. */
void gq_ringer_remove(struct gq_ringer *r, unsigned i);
/*
 * Pair i was created again (0, 0), or the host has rung itself: what the doorbells hold now. Rings
 * nothing. The pair is not driven meanwhile.
 */
void gq_ringer_set(struct gq_ringer *r, unsigned i, uint32_t sq_tail, uint32_t cq_head);

/* Queues are about to be driven. */
void gq_ringer_begin(struct gq_ringer *r);
/* They are driven no more: passes on their last values. Rings nothing for them afterwards. */
void gq_ringer_end(struct gq_ringer *r);
/* From now on nothing is rung: the executor may go on storing, but nobody believes it. */
void gq_ringer_silence(struct gq_ringer *r);

#endif
