/* SPDX-License-Identifier: BSD-2-Clause */
/* A queue of the direct path as a warp takes it, with faster competitors and a fake clock. */
#ifndef TESTS_CLIENT_LIB_DIRECT_TAKE_RIG_H
#define TESTS_CLIENT_LIB_DIRECT_TAKE_RIG_H

#include "client/device/gd_types.h"

struct direct_take {
    uint64_t now_ns, step_ns; /* of the clock: each reading takes a step */
    unsigned losses;          /* so many tries find the queue just taken */
    unsigned tries;           /* so far */
    uint32_t queue;           /* the one that was taken, or tried last */
};

/* What gd_take() returns. One at a time. */
int direct_take(const struct gpunvme_device_file *f, struct direct_take *t);

#endif
