/*
 * Short lists, without a launch: a warp that stays on the GPU takes them out of a box in host
 * memory, one at a time, and drives a queue through each as a launched kernel would. A launch takes
 * as long as all the rest of a small read.
 *
 * The kernel ends by itself when it has had nothing to do for a while, and is launched again with
 * the next list; so calls that wait for running kernels wait a fraction of a millisecond.
 */
#ifndef CUDA_GQ_RESIDENT_H
#define CUDA_GQ_RESIDENT_H

#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

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

/*
 * The box. Every word carries in its upper half the number of the list: a reader knows of each word
 * whether it is new, however the bus may have cut its loads.
 */
#define GQ_RESIDENT_WORDS 64u
static_assert(sizeof(struct gq_resident_list) <= GQ_RESIDENT_WORDS * sizeof(uint32_t),
              "a list fits into the box");

struct gq_resident_launch {
    const uint64_t *box;         /* GQ_RESIDENT_WORDS */
    uint32_t *ended;             /* number of the launch that has ended */
    const struct gq_port *ports; /* device memory, by queue number */
    uint32_t launch, list;       /* its number, and that of the list it begins with */
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
