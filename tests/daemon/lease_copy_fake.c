/*
 * Copy kernels on a machine without a GPU: the linker replaces
 * gq_peer_open_on() (--wrap), which needs an engine with a DMA engine. These
 * kernels copy nothing.
 */
#include "cuda/gq_peer.h"

int __wrap_gq_peer_open_on(struct gq_engine *e, const struct gq_peer_options *opts,
                           struct gq_peer **out);

int __wrap_gq_peer_open_on(struct gq_engine *e, const struct gq_peer_options *opts,
                           struct gq_peer **out)
{
    static struct gq_peer_windows *windows; /* of the process; calls are serialised */
    struct gq_peer_options full = *opts;
    (void)e;
    full.blocks = 1;
    int err = windows ? 0 : gq_peer_windows_open(1, &windows);
    return err ? err : gq_peer_open(windows, &full, out);
}
