/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens the CUDA driver of a connection. */
#include "client/lib/client_internal.h"

int gpunvme_cuda(struct connection *g, struct cuda_driver **out)
{
    int err = 0;

    pthread_mutex_lock(&g->lock);
    if (!g->cuda)
        err = cuda_driver_open(&g->cuda);
    *out = g->cuda;
    pthread_mutex_unlock(&g->lock);
    return err;
}
