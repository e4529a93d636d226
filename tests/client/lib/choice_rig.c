/* SPDX-License-Identifier: BSD-2-Clause */
/* The library's choice of a path, without a mount and without a GPU. */
#include "tests/client/lib/choice_rig.h"

#include "client/lib/client_internal.h"

static const char *request(const struct choice *c, const struct range *r)
{
    struct gpunvme g = {.options = {.path = c->path, .crossover = c->crossover}};
    struct gpunvme_buffer b = {
        .owner = &g, .shared = true, .device = c->on_gpu ? 0 : CUDA_NO_DEVICE};

    return gpunvme_why_bounce(&b, r);
}

const char *choice_why(const struct choice *c)
{
    struct range r = {.write = c->write, .fd = c->fd, .len = c->len};

    return request(c, &r);
}

const char *choice_why_batch(const struct choice *c)
{
    return request(c, NULL);
}
