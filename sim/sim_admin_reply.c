/* SPDX-License-Identifier: BSD-2-Clause */
/* Answers admin commands: data, and statuses that report a mistake. */
#include <string.h>

#include "sim/sim_admin.h"

uint16_t sim_admin_flagged(struct admin *a, enum sim_event e, uint16_t status)
{
    const struct nvme_sqe *q = a->sqe;

    sim_flag(a->s, e, "admin opcode %#x, NSID %u, CDW10 %#x, CDW11 %#x", q->opcode, q->nsid,
             q->cdw10, q->cdw11);
    return status;
}

uint16_t sim_admin_give(struct admin *a, const void *data, size_t size, uint64_t offset,
                        size_t bytes)
{
    uint16_t st = sim_spans(a->th, a->sqe, bytes);

    for (unsigned i = 0; st == NVME_OK && i < a->th->n_spans; i++) {
        struct sim_span *p = &a->th->spans[i];
        size_t there = offset < size ? size - offset : 0;
        if (!p->host)
            return NVME_ERR_DATA_TRANSFER;
        there = there < p->len ? there : p->len;
        memcpy(p->host, (const unsigned char *)data + (there ? offset : 0), there);
        memset(p->host + there, 0, p->len - there);
        offset += p->len;
    }
    return st;
}
