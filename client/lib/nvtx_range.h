/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes NVTX ranges of the domain "gpunvme", which Nsight and other tools show:
 * the calls of the library, on the calling thread, with their bytes (pieces for
 * a list) as payload. Without a tool a range costs a call and two loads.
 * Without the headers of NVTX at build time it costs nothing.
 */
#ifndef CLIENT_LIB_NVTX_RANGE_H
#define CLIENT_LIB_NVTX_RANGE_H

#include <stdint.h>

/* These begin and end a range of a thread; ranges nest. `name` is a literal. */
#ifdef GPUNVME_HAVE_NVTX
void nvtx_range_begin(const char *name, uint64_t bytes);
void nvtx_range_end(void);
#else
static inline void nvtx_range_begin(const char *name, uint64_t bytes)
{
    (void)name;
    (void)bytes;
}
static inline void nvtx_range_end(void)
{
}
#endif

#endif
