/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Creates NVTX ranges of the domain "gpunvme", which Nsight and other tools
 * show. A range is a library call on the calling thread. Its payload is the
 * number of bytes (pieces for a list). Without a tool a range costs a call and
 * two loads. Without the NVTX headers at build time a range costs nothing.
 */
#ifndef CLIENT_LIB_NVTX_RANGE_H
#define CLIENT_LIB_NVTX_RANGE_H

#include <stdint.h>

/* These functions begin and end a range of a thread. Ranges nest. `name` is a string literal. */
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
