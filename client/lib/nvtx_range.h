/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * NVTX ranges of domain "gpunvme", which Nsight and other tools show: calls of the library on the
 * thread that makes them, with the number of bytes (of pieces, for a list) as payload. Without a
 * tool a range is a call and two loads; without the headers of NVTX at build time nothing.
 */
#ifndef CLIENT_LIB_NVTX_RANGE_H
#define CLIENT_LIB_NVTX_RANGE_H

#include <stdint.h>

/* Ranges of a thread nest. name: a literal. */
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
