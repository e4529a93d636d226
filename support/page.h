/* SPDX-License-Identifier: BSD-2-Clause */
/* The size of a page. */
#ifndef SUPPORT_PAGE_H
#define SUPPORT_PAGE_H

/*
 * Bytes of a page of the processor, of the controller (CC.MPS = 0) and of the
 * page cache, and of a block of the file system. It also satisfies the
 * alignment of O_DIRECT. It has 64 bits so that it can form address masks.
 */
#define PAGE_BYTES 4096ul

#endif
