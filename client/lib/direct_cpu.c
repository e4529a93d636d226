/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes reads on the calling thread on mounts without a GPU. The thread acts as all lanes of a
 * warp.
 */
#define GQ_LANES 32u
#include "client/device/gd_lone.h"

#include "client/lib/direct.h"

int64_t direct_cpu_read(const struct gd_launch *l)
{
    return gd_shared_pread_warp(l->file_at, l->addr, l->len, l->offset);
}
