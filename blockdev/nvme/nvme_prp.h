/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fills physical region pages (BASE 4.1.1), the data pointer of a command, for
 * data that is contiguous for the controller.
 *
 * A list is one page and is never chained. Some controllers do not follow a
 * chain pointer and treat the last entry of a list page as a data page. One
 * additional command per transfer has no measurable cost.
 */
#ifndef BLOCKDEV_NVME_NVME_PRP_H
#define BLOCKDEV_NVME_NVME_PRP_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/nvme/nvme_spec.h"

/*
 * Maximum bytes that one list page can describe at any offset. PRP1 covers the
 * first page or a part of it.
 */
#define NVME_PRP_MAX_LEN (NVME_PRP_PER_PAGE * NVME_PAGE_SIZE)

/*
 * Sets prp1 and prp2 for len bytes at iova (dword aligned), 0 < len <=
 * NVME_PRP_MAX_LEN. list is a page, which the controller reads at list_iova
 * (page aligned).
 */
static inline void nvme_prp_fill(struct nvme_sqe *sqe, uint64_t iova, size_t len, uint64_t *list,
                                 uint64_t list_iova)
{
    const uint64_t mask = NVME_PAGE_SIZE - 1;
    uint64_t second = (iova & ~mask) + NVME_PAGE_SIZE;
    uint64_t end = iova + len;
    size_t rest = end > second ? (size_t)((end - second + mask) / NVME_PAGE_SIZE) : 0;

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

#endif
