/* SPDX-License-Identifier: BSD-2-Clause */
/* Gives queue pairs to the executor, with their doorbells or with proxied ones. */
#include "cuda/engine/gq_internal.h"

int gq_engine_add_port(struct gq_engine *e, unsigned i)
{
    struct nvme_qpair qp = e->queues[i].qp;

    if (e->proxy) {
        gq_doorbell_proxy_add(e->proxy, i, &qp);
        qp.sq_doorbell = &e->proxied_doorbells[i].sq_tail;
        qp.cq_doorbell = &e->proxied_doorbells[i].cq_head;
    }
    int err = e->exec->ops->port_add(e->exec, i, &qp);
    if (!err)
        e->queues[i].port_qid = qp.qid;
    return err;
}

void gq_engine_remove_port(struct gq_engine *e, unsigned i)
{
    if (e->queues[i].port_qid)
        e->exec->ops->port_remove(e->exec, i);
    e->queues[i].port_qid = 0;
}
