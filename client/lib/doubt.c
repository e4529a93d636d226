/* SPDX-License-Identifier: BSD-2-Clause */
/* Buffers to which a copy that was given up may still be made. */
#include <errno.h>
#include <time.h>

#include "client/lib/client_internal.h"
#include "client/lib/copy_service.h"
#include "support/clock.h"

#define SETTLE_NS NS_PER_S

static bool buffer_is_in_doubt(const struct gpunvme_buffer *b)
{
    return copy_services_may_write(b->device, (uintptr_t)b->addr, b->len);
}

static int doubt_refuse(bool in_doubt)
{
    if (!in_doubt)
        return 0;
    return gpunvme_fail(-ETIMEDOUT, "a copy that was given up may still be made to the buffer");
}

int gpunvme_check_copies_to(int device, uint64_t addr, uint64_t len)
{
    return doubt_refuse(copy_services_may_write(device, addr, len));
}

int gpunvme_check_copies(const struct gpunvme_buffer *b)
{
    return doubt_refuse(buffer_is_in_doubt(b));
}

int gpunvme_settle_copies(const struct gpunvme_buffer *b)
{
    const struct timespec step = {.tv_nsec = NS_PER_MS};
    uint64_t until = now_ns() + SETTLE_NS;

    while (buffer_is_in_doubt(b) && now_ns() < until)
        nanosleep(&step, NULL);
    return gpunvme_check_copies(b);
}
