#include "cuda/gq_peer.h"

#include <errno.h>

#include "cuda/engine/gq_internal.h"
#include "cuda/gq_dma_engine.h"

/* Only the CUDA executor's memory has a DMA engine. */
static struct gq_peer_windows *windows_of(const struct gq_import *import, unsigned *blocks)
{
    const struct nvme_dma_engine *dma_engine = import->mem.dma_engine;

    return dma_engine ? gq_dma_engine_peer_windows(dma_engine->ctx, blocks) : NULL;
}

int gq_peer_open_on(struct gq_engine *e, const struct gq_peer_options *opts, struct gq_peer **out)
{
    struct gq_peer_options full = *opts;
    struct gq_peer_windows *windows = windows_of(&e->staging_mem, &full.blocks);

    return windows ? gq_peer_open(windows, &full, out) : -ENOTSUP;
}

int gq_buffer_add_window(struct gq_buffer *b, struct gq_peer *m, uint64_t there,
                         uint64_t media_there)
{
    const struct gq_peer_window window = {.owner = b,
                                          .device = b->import.mem.device,
                                          .len = b->import.mem.len,
                                          .there = there,
                                          .media_there = media_there};

    return b->import.mem.dma_engine && gq_buffer_is_reachable(b) ? gq_peer_window_add(m, &window)
                                                                 : -ENOTSUP;
}

void gq_buffer_remove_window(struct gq_buffer *b)
{
    unsigned blocks;
    struct gq_peer_windows *windows = windows_of(&b->import, &blocks);

    if (windows)
        gq_peer_window_remove(windows, b);
}
