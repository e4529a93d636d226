/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements a block of the service. A block is one warp and serves the reads of one host thread,
 * one after another, through shared queues. Every function is called by all lanes together.
 * Variables have the same value in all lanes.
 */
#ifndef CLIENT_DEVICE_GD_SERVE_H
#define CLIENT_DEVICE_GD_SERVE_H

#include "client/device/gd_lone.h"
#include "client/device/gd_service.h"
#include "cuda/gq_serve.h"

#define GD_REQUEST(w, member) \
    gq_serve_pair(w, offsetof(struct gd_request, member) / sizeof(uint32_t))

/*
 * Executes the read and stores its result for the host. The fence of lane 0 orders the stores of
 * all lanes before the answer.
 */
GQ_FN void gd_serve_read(struct gq_server *w)
{
    const struct gpunvme_device_file *file =
        (const struct gpunvme_device_file *)GD_REQUEST(w, file);
    uint64_t *answer = &w->launch->memory->slots[w->slot].answer;
    int64_t got =
        gd_shared_pread_warp(file, GD_REQUEST(w, addr), GD_REQUEST(w, len), GD_REQUEST(w, offset));

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_fence_results();
            gd_store_own_result((int64_t *)answer,
                                (int64_t)gd_answer(w->number, got < 0 ? (int)got : 0));
        }
    }
}

/*
 * Serves the slot until it is time to leave. `number` is the number of the last read that was taken
 * from the slot. began_ns is the time of gq_service_begin(). Returns the number of the last read.
 */
GQ_FN uint32_t gd_serve(const struct gq_service_launch *l, struct gq_service_stay *stay,
                        uint32_t slot, uint64_t began_ns, uint32_t number)
{
    struct gq_server server = {.group = gq_whole_group(),
                               .launch = l,
                               .stay = stay,
                               .slot = slot,
                               .number = number,
                               .began_ns = began_ns};

    while (gq_serve_take(&server)) {
        gd_serve_read(&server);
        gq_serve_touch(&server);
    }
    return server.number;
}

#endif
