/*
 * Short lists, without a launch: a warp that stays on the GPU takes them out of a box (gq_box.h),
 * one at a time, and drives a queue through each as a launched kernel would.
 */
#ifndef CUDA_EXEC_CUDA_GQ_PERSISTENT_H
#define CUDA_EXEC_CUDA_GQ_PERSISTENT_H

#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "cuda/gq_box.h"
#include "cuda/queue/gq_work.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GQ_RESIDENT_CMDS 2u /* that travel with the list */

/* A list, with all that a launched kernel has as its argument, or goes to memory for. */
struct gq_resident_list {
    struct gq_run run; /* cmds NULL: those below */
    struct gq_port port;
    struct gq_state *state;
    uint32_t sq_tail, cq_head, phase, owed; /* what *state holds */
    uint32_t single;                        /* not 0: it is driven by gq_single.h */
    struct gq_cmd cmds[GQ_RESIDENT_CMDS];
};

static_assert(sizeof(struct gq_resident_list) <= GQ_BOX_BYTES, "a list fits into the box");

cudaError_t gq_resident_load(void);
cudaError_t gq_resident_run(const struct gq_box_launch *l, cudaStream_t stream);

struct gq_resident;

/* -ENOMEM, -EIO. */
int gq_resident_open(struct gq_resident **out);
/* Waits for the kernel to end. */
void gq_resident_close(struct gq_resident *r);
/*
 * Hands a run of one queue over; state->outcome tells when it has ended, and gq_resident_done()
 * fills in the rest of state, and the results. -EBUSY: another list is under way; -EIO.
 */
int gq_resident_post(struct gq_resident *r, const struct gq_run *run, const struct gq_port *port,
                     struct gq_state *state);
/* Called again and again until the list has ended: the kernel may just have left. -EIO. */
int gq_resident_keep(struct gq_resident *r);
/* The list has ended. */
void gq_resident_done(struct gq_resident *r);
cudaStream_t gq_resident_stream(const struct gq_resident *r);

#ifdef __cplusplus
}
#endif

#endif
