/* SPDX-License-Identifier: BSD-2-Clause */
/* The library's pointer to cuLaunchKernel(), replaced. */
#include "tests/client/lib/refusal.h"

#include "client/lib/client_internal.h"
#include "client/lib/cuda_driver_internal.h"

#define TOO_MANY 4096u /* threads of a block */

static CUresult (*machine_launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  unsigned, unsigned, CUstream, void **, void **);
static _Thread_local unsigned left; /* launches before one is refused, and that one */

/* NOLINTNEXTLINE(readability-function-size) */
static CUresult launch(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, CUstream stream, void **args,
                       void **extra)
{
    if (left && --left == 0)
        bx = TOO_MANY;
    return machine_launch(function, x, y, z, bx, by, bz, shared, stream, args, extra);
}

void refusal_at(struct connection *g, unsigned nth)
{
    if (g->cuda->cuLaunchKernel != launch)
        machine_launch = g->cuda->cuLaunchKernel;
    g->cuda->cuLaunchKernel = launch;
    left = nth;
}
