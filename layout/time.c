/* SPDX-License-Identifier: BSD-2-Clause */
/* Times: a signed 64-bit count of seconds in two halves, and nanoseconds. */
#include <assert.h>

#include "layout/check.h"
#include "layout/layout.h"

#define NSEC_PER_SEC 1000000000u

struct lay_time lay_time_make(int64_t sec, uint32_t nsec)
{
    assert(nsec < NSEC_PER_SEC);
    struct lay_time t = {
        .nsec = lay_put32(nsec),
        .sec_lo = lay_put32((uint32_t)sec),
        .sec_hi = lay_put32((uint32_t)((uint64_t)sec >> 32)),
    };
    return t;
}

int64_t lay_time_sec(struct lay_time t)
{
    return (int64_t)((uint64_t)lay_get32(t.sec_hi) << 32 | lay_get32(t.sec_lo));
}

bool lay_time_ok(struct lay_time t)
{
    return lay_get32(t.nsec) < NSEC_PER_SEC;
}
