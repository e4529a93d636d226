/* SPDX-License-Identifier: BSD-2-Clause */
/* Defines the size of a page. */
#ifndef SUPPORT_PAGE_H
#define SUPPORT_PAGE_H

#include <stdint.h>

/*
 * Bytes of a page of the processor, of the controller (CC.MPS = 0) and of the
 * page cache, and of a block of the file system. It also satisfies the
 * alignment of O_DIRECT. It has 64 bits so that it can form address masks.
 */
#define PAGE_BYTES 4096ul

/* Returns the bytes of the pages that a part of `bytes` bytes needs. */
static inline uint64_t page_whole(uint64_t bytes)
{
    return (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
}

#endif
