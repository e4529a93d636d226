/* SPDX-License-Identifier: BSD-2-Clause */
/* The size of a page. */
#ifndef SUPPORT_PAGE_H
#define SUPPORT_PAGE_H

/*
 * Bytes of a page of the processor, of the controller (CC.MPS = 0) and of the page cache, of a
 * block of the file system, and the alignment that O_DIRECT needs at most. 64 bits, so that masks
 * of addresses can be made of it.
 */
#define PAGE_BYTES 4096ul

#endif
