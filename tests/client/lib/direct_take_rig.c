/* SPDX-License-Identifier: BSD-2-Clause */
/* A queue of the direct path as a warp takes it, on a host thread. */
#define GQ_LANES 32u

/* The code under test reads a fake clock, and a lock that another owner may take first. */
#define gq_clock_ns clock_of_the_machine
#define gd_try_lock try_alone
#include "client/device/gd_sync.h"
#undef gq_clock_ns
#undef gd_try_lock

#include "tests/client/lib/direct_take_rig.h"

static struct direct_take *take;

static inline uint64_t gq_clock_ns(void)
{
    return take->now_ns += take->step_ns;
}

static inline uint32_t gd_try_lock(uint32_t *lock, uint32_t others)
{
    take->tries++;
    return take->tries <= take->losses ? GD_TAKEN : try_alone(lock, others);
}

#include "client/device/gd_queue.h"

int direct_take(const struct gpunvme_device_file *f, struct direct_take *t)
{
    struct gd_reader self = {.group = gq_whole_group(), .file = f};

    take = t;
    int err = gd_take(&self);
    t->queue = self.queue;
    return err;
}
