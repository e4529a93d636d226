/* SPDX-License-Identifier: BSD-2-Clause */
/* Fills PRP entries and lists of one page. */
#include "blockdev/nvme/nvme_prp.h"

#include <assert.h>

#define PAGE_MASK ((uint64_t)NVME_PAGE_SIZE - 1)

void nvme_prp_fill(struct nvme_sqe *sqe, uint64_t iova, size_t len, uint64_t *list,
                   uint64_t list_iova)
{
    uint64_t second = (iova & ~PAGE_MASK) + NVME_PAGE_SIZE;
    uint64_t end = iova + len;
    size_t rest = end > second ? (size_t)((end - second + PAGE_MASK) / NVME_PAGE_SIZE) : 0;

    assert(len > 0 && len <= NVME_PRP_MAX_LEN);
    sqe->prp1 = iova;
    if (rest == 0) {
        sqe->prp2 = 0;
    } else if (rest == 1) {
        sqe->prp2 = second;
    } else {
        for (size_t i = 0; i < rest; i++)
            list[i] = second + i * NVME_PAGE_SIZE;
        sqe->prp2 = list_iova;
    }
}
