/*
 * Short lists, without a launch: a warp that stays on the GPU takes them out of a box (gq_box.h),
 * one at a time, and drives a queue through each as a launched kernel would.
 */
#ifndef CUDA_GQ_RESIDENT_H
#define CUDA_GQ_RESIDENT_H

#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "cuda/gq_box.h"
#include "cuda/gq_work.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GQ_RESIDENT_CMDS 2u /* that travel with the list */

/* A list: what a launched kernel has as its argument, and what it reads over the bus. */
struct gq_resident_list {
    struct gq_run run; /* cmds NULL: those below */
    struct gq_state *state;
    struct gq_state first; /* what *state holds */
    uint32_t queue;
    struct gq_cmd cmds[GQ_RESIDENT_CMDS];
};

static_assert(sizeof(struct gq_resident_list) <= GQ_BOX_BYTES, "a list fits into the box");

struct gq_resident_launch {
    struct gq_box_launch box;
    const struct gq_port *ports; /* device memory, by queue number */
};
cudaError_t gq_resident_load(void);
cudaError_t gq_resident_run(const struct gq_resident_launch *l, cudaStream_t stream);

struct gq_resident;

/* ports: device memory, by queue number. -ENOMEM, -EIO. */
int gq_resident_open(const struct gq_port *ports, struct gq_resident **out);
/* Waits for the kernel to end. */
void gq_resident_close(struct gq_resident *r);
/*
 * Hands a list over; state->outcome tells when it has ended, then gq_resident_done(). -EBUSY:
 * another list is under way; -EIO.
 */
int gq_resident_post(struct gq_resident *r, const struct gq_resident_list *list);
/* Called again and again until the list has ended: the kernel may just have left. -EIO. */
int gq_resident_keep(struct gq_resident *r);
void gq_resident_done(struct gq_resident *r);
cudaStream_t gq_resident_stream(const struct gq_resident *r);

#ifdef __cplusplus
}
#endif

#endif
