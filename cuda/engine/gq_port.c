/* SPDX-License-Identifier: BSD-2-Clause */
/* A queue pair given to the executor: with its doorbells, or with proxied ones. */
#include "cuda/engine/gq_internal.h"

int gq_engine_add_port(struct gq_engine *e, unsigned i)
{
    struct nvme_qpair qp = e->queues[i].qp;

    if (e->proxy) {
        gq_doorbell_proxy_add(e->proxy, i, &qp);
        qp.sq_doorbell = &e->proxied_doorbells[i].sq_tail;
        qp.cq_doorbell = &e->proxied_doorbells[i].cq_head;
    }
    return e->exec->ops->port_add(e->exec, i, &qp);
}
