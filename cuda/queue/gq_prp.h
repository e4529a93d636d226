/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes PRPs for memory with a table of entries built in advance, for host and
 * device.
 *
 * Entry i of the table is the address of page i of the memory. A page of the
 * table has NVME_PRP_PER_PAGE entries and no chain pointer. A list may start at
 * any entry, so a command needs no list of its own, only the address of its
 * second page's entry.
 *
 * A list never leaves its page of the table. Some controllers do not follow a
 * chain pointer and treat the last entry of a list page as a data page.
 * Commands without chains are correct on all controllers. Because of this, a
 * transfer needs at most one additional command per 2 MiB of memory, without a
 * measurable cost.
 */
#ifndef CUDA_QUEUE_GQ_PRP_H
#define CUDA_QUEUE_GQ_PRP_H

#include "cuda/queue/gq_fence.h"

/*
 * Returns the bytes of a transfer of len bytes at offset `off` of the memory
 * that one command may carry. This is all of them, or a multiple of lba_size (a
 * power of two) for which the list has entries in the page of the table where
 * it starts. len is a multiple of lba_size; the result is not 0.
 */
GQ_FN uint64_t gq_prp_clip(uint64_t off, uint64_t len, uint32_t lba_size)
{
    uint64_t second = off / NVME_PAGE_SIZE + 1;
    uint64_t end = (second / NVME_PRP_PER_PAGE + 1) * NVME_PRP_PER_PAGE * NVME_PAGE_SIZE;

    if (off + len <= end || off + len <= (second + 1) * NVME_PAGE_SIZE)
        return len;
    return (end - off) & ~(uint64_t)(lba_size - 1);
}

/*
 * Returns PRP2; PRP1 is iova + off. iova is that of the memory's first page,
 * prps_iova that of the table. off is a multiple of 4, and len is limited by
 * gq_prp_clip().
 */
GQ_FN uint64_t gq_prp2(uint64_t iova, uint64_t prps_iova, uint64_t off, uint64_t len)
{
    uint64_t second = off / NVME_PAGE_SIZE + 1;
    uint64_t last = (off + len - 1) / NVME_PAGE_SIZE;

    if (last < second)
        return 0;
    if (last == second)
        return iova + last * NVME_PAGE_SIZE;
    return prps_iova + second * sizeof(uint64_t);
}

#endif
