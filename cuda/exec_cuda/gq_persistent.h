/*
 * Short lists, without a launch: a warp that stays on the GPU takes them out of a slot
 * (gq_tagged_slot.h), one at a time, and drives a queue through each as a launched kernel would.
 */
#ifndef CUDA_EXEC_CUDA_GQ_PERSISTENT_H
#define CUDA_EXEC_CUDA_GQ_PERSISTENT_H

#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "cuda/gq_tagged_slot.h"
#include "cuda/queue/gq_work.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GQ_PERSISTENT_CMDS 2u /* that travel with the list */

/* A list, with all that a launched kernel has as its argument, or goes to memory for. */
struct gq_persistent_list {
    struct gq_run run; /* cmds NULL: those below */
    struct gq_port port;
    struct gq_state *state;
    uint32_t sq_tail, cq_head, phase, cq_db_pending; /* what *state holds */
    uint32_t single;                                 /* not 0: it is driven by gq_single.h */
    struct gq_cmd cmds[GQ_PERSISTENT_CMDS];
};

static_assert(sizeof(struct gq_persistent_list) <= GQ_TAGGED_SLOT_BYTES,
              "a list fits into the box");

cudaError_t gq_persistent_load(void);
cudaError_t gq_persistent_launch(const struct gq_tagged_slot_launch *l, cudaStream_t stream);

struct gq_persistent;

/* -ENOMEM, -EIO. */
int gq_persistent_open(struct gq_persistent **out);
/* Waits for the kernel to end. */
void gq_persistent_close(struct gq_persistent *r);
/*
 * Hands a run of one queue over; state->outcome tells when it has ended, and gq_persistent_done()
 * fills in the rest of state, and the results. -EBUSY: another list is under way; -EIO.
 */
int gq_persistent_post(struct gq_persistent *r, const struct gq_run *run,
                       const struct gq_port *port, struct gq_state *state);
/* Called again and again until the list has ended: the kernel may just have left. -EIO. */
int gq_persistent_keep(struct gq_persistent *r);
/* The list has ended. */
void gq_persistent_done(struct gq_persistent *r);
cudaStream_t gq_persistent_stream(const struct gq_persistent *r);

#ifdef __cplusplus
}
#endif

#endif
