/*
 * Copy kernels on a machine without a GPU: the linker replaces
 * gq_remote_open_on() (--wrap), which needs an engine with a DMA engine. These
 * kernels copy nothing.
 */
#include "cuda/gq_remote.h"

int __wrap_gq_remote_open_on(struct gq_engine *e, const struct gq_remote_options *opts,
                             struct gq_remote **out);

int __wrap_gq_remote_open_on(struct gq_engine *e, const struct gq_remote_options *opts,
                             struct gq_remote **out)
{
    static struct gq_routes *routes; /* of the process; calls are serialised */
    struct gq_remote_options full = *opts;
    (void)e;
    full.blocks = 1;
    int err = routes ? 0 : gq_routes_open(1, &routes);
    return err ? err : gq_remote_open(routes, &full, out);
}
