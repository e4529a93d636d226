/* SPDX-License-Identifier: BSD-2-Clause */
/* The library's choice of a path, without a mount and without a GPU. */
#include "tests/client/lib/choice_rig.h"

#include <stdlib.h>

#include "client/lib/client_internal.h"

struct choice_handle {
    struct connection *handle;
};

struct choice_handle *choice_handle_new(void)
{
    struct choice_handle *h = calloc(1, sizeof(*h));

    if (!h || connection_local(&h->handle) != 0)
        abort();
    return h;
}

void choice_handle_free(struct choice_handle *h)
{
    connection_close(h->handle);
    free(h);
}

int choice_set(struct choice_handle *h, const struct choice *c)
{
    return bounce_set_options(
        h->handle, &(struct gpunvme_options){.path = c->path, .crossover = c->crossover});
}

const char *choice_why(struct choice_handle *h, const struct choice *c)
{
    struct gpunvme_buffer b = {
        .owner = h->handle, .shared = true, .device = c->on_gpu ? 0 : CUDA_NO_DEVICE};
    struct range r = {.write = c->write, .fd = c->fd, .file_offset = c->file_offset, .len = c->len};

    h->handle->info.writeback_cache = c->writeback_cache;
    return gpunvme_choose_path(&b, &r, c->pieces).why;
}
