/* SPDX-License-Identifier: BSD-2-Clause */
/* For tests that mount a file system in their own process thousands of times. */
#ifndef TESTS_KEEP_HEAP_H
#define TESTS_KEEP_HEAP_H

#include <malloc.h>

/*
 * Buffers, of a mount and of the test, stay in the heap for the next ones: as mappings of their
 * own they would cost a page fault for each of their pages, each time. Sanitizers have allocators
 * of their own, for which this does nothing.
 */
static inline void keep_heap(void)
{
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 128 << 20);
}

#endif
