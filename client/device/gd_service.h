/* What the block that stays on the GPU is told: reads come as struct gd_launch, without `bytes`. */
#ifndef CLIENT_DEVICE_GD_SERVICE_H
#define CLIENT_DEVICE_GD_SERVICE_H

#include "client/device/gd_launch.h"
#include "cuda/gq_box.h"

static_assert(sizeof(struct gd_launch) <= GQ_BOX_BYTES, "a read fits into the box");

/* In host memory. */
struct gd_service {
    struct gq_box_memory box;
    uint64_t answer; /* the read's number in the upper half, in the lower its bytes or -errno */
};

struct gd_service_launch {
    struct gq_box_launch box;
    uint64_t *answer;
};

#endif
