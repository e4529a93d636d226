#include "cuda/gq_remote.h"

#include <errno.h>

#include "cuda/engine/gq_internal.h"
#include "cuda/gq_mover.h"

/* Only the CUDA executor's memory has a mover. */
static struct gq_routes *routes_of(const struct gq_import *import, unsigned *blocks)
{
    const struct nvme_mover *mover = import->mem.mover;

    return mover ? gq_mover_routes(mover->ctx, blocks) : NULL;
}

int gq_remote_open_on(struct gq_engine *e, const struct gq_remote_options *opts,
                      struct gq_remote **out)
{
    struct gq_remote_options full = *opts;
    struct gq_routes *routes = routes_of(&e->staging_mem, &full.blocks);

    return routes ? gq_remote_open(routes, &full, out) : -ENOTSUP;
}

int gq_buffer_route(struct gq_buffer *b, struct gq_remote *m, uint64_t there, uint64_t media_there)
{
    const struct gq_route route = {.owner = b,
                                   .device = b->import.mem.device,
                                   .len = b->import.mem.len,
                                   .there = there,
                                   .media_there = media_there};

    return b->import.mem.mover && !b->unreachable ? gq_route_add(m, &route) : -ENOTSUP;
}

void gq_buffer_unroute(struct gq_buffer *b)
{
    unsigned blocks;
    struct gq_routes *routes = routes_of(&b->import, &blocks);

    if (routes)
        gq_route_remove(routes, b);
}
