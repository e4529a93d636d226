/*
 * Physical region pages (Base 4.1.1): how a command says where its data is.
 *
 * For data that is contiguous for the controller. Lists live in memory prepared beforehand, whole
 * pages contiguous for the controller too; the last entry of a list page leads to the next page
 * when more entries follow.
 */
#ifndef BLOCKDEV_NVME_NVME_PRP_H
#define BLOCKDEV_NVME_NVME_PRP_H

#include <stddef.h>
#include <stdint.h>

#include "blockdev/nvme/nvme_spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* List pages that a transfer of len bytes can need, whatever its offset in the first page. */
size_t nvme_prp_list_pages(size_t len);

/*
 * Sets prp1 and prp2 for len > 0 bytes at iova (dword aligned). list: at least
 * nvme_prp_list_pages(len) pages, which the controller sees at list_iova.
 */
void nvme_prp_fill(struct nvme_sqe *sqe, uint64_t iova, size_t len, uint64_t *list,
                   uint64_t list_iova);

#ifdef __cplusplus
}
#endif

#endif
