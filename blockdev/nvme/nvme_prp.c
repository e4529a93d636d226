/* PRP entries and chained lists. */
#include "blockdev/nvme/nvme_prp.h"

#define PAGE_MASK ((uint64_t)NVME_PAGE_SIZE - 1)

/* Each page but the last gives one of its entries to the chain. */
static size_t pages_for(size_t entries)
{
    if (entries <= NVME_PRP_PER_PAGE)
        return entries > 0;
    return 1 + (entries - NVME_PRP_PER_PAGE + NVME_PRP_PER_PAGE - 2) / (NVME_PRP_PER_PAGE - 1);
}

size_t nvme_prp_list_pages(size_t len)
{
    size_t touched = (len + NVME_PAGE_SIZE - 1) / NVME_PAGE_SIZE + 1;

    return pages_for(touched - 1);
}

/* Entries for `count` pages from `page` on. Their position in `list` includes the chain entries. */
static void fill_list(uint64_t page, size_t count, uint64_t *list, uint64_t list_iova)
{
    size_t at = 0;

    for (size_t i = 0; i < count; i++) {
        if (at % NVME_PRP_PER_PAGE == NVME_PRP_PER_PAGE - 1 && i + 1 < count) {
            list[at] = list_iova + (at + 1) * sizeof(uint64_t);
            at++;
        }
        list[at++] = page + i * NVME_PAGE_SIZE;
    }
}

void nvme_prp_fill(struct nvme_sqe *sqe, uint64_t iova, size_t len, uint64_t *list,
                   uint64_t list_iova)
{
    uint64_t second = (iova & ~PAGE_MASK) + NVME_PAGE_SIZE;
    uint64_t end = iova + len;
    size_t rest = end > second ? (size_t)((end - second + PAGE_MASK) / NVME_PAGE_SIZE) : 0;

    sqe->prp1 = iova;
    if (rest == 0) {
        sqe->prp2 = 0;
    } else if (rest == 1) {
        sqe->prp2 = second;
    } else {
        fill_list(second, rest, list, list_iova);
        sqe->prp2 = list_iova;
    }
}
