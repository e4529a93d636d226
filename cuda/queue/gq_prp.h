/*
 * PRPs for a part of memory whose table of entries was built beforehand, for host and device.
 *
 * Entry i of the table is the address of page i of the memory, 511 entries to a page of the table,
 * whose last entry points to the next page of it. A list may start at any entry, so a command needs
 * no list of its own, only the address of the entry of its second page.
 */
#ifndef CUDA_QUEUE_GQ_PRP_H
#define CUDA_QUEUE_GQ_PRP_H

#include "cuda/queue/gq_fence.h"

#define GQ_PRP_DATA (NVME_PRP_PER_PAGE - 1) /* entries of a table page beside the chain pointer */

/*
 * How much of a transfer of len bytes at byte off of the memory one command may carry. A list
 * that ended exactly in the chain entry would be read as a page address there, so such a
 * transfer is cut before its last page, to a multiple of lba_size (a power of two). len is one
 * already.
 */
GQ_FN uint64_t gq_prp_clip(uint64_t off, uint64_t len, uint32_t lba_size)
{
    uint64_t first = off / NVME_PAGE_SIZE;
    uint64_t last = (off + len - 1) / NVME_PAGE_SIZE;

    if (last <= first + 1 || last % GQ_PRP_DATA != 0)
        return len;
    len = last * NVME_PAGE_SIZE - off;
    return len & ~(uint64_t)(lba_size - 1);
}

/*
 * PRP1 is iova + off; this is PRP2. iova: of the memory's first page, prps_iova: of the table. off
 * is a multiple of 4, len as gq_prp_clip() allows.
 */
GQ_FN uint64_t gq_prp2(uint64_t iova, uint64_t prps_iova, uint64_t off, uint64_t len)
{
    uint64_t second = off / NVME_PAGE_SIZE + 1;
    uint64_t last = (off + len - 1) / NVME_PAGE_SIZE;

    if (last < second)
        return 0;
    if (last == second)
        return iova + last * NVME_PAGE_SIZE;
    return prps_iova + second / GQ_PRP_DATA * NVME_PAGE_SIZE + second % GQ_PRP_DATA * 8;
}

#endif
