/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocator of IOVAs, where the driver may choose them (VFIO, vfio-user).
 *
 * Ranges lie in windows that the system allows. A page between two ranges remains unmapped, and
 * page 0 is never allocated, so that a wrong address of a controller is in no range. No locks
 * inside.
 */
#ifndef BLOCKDEV_NVME_NVME_IOVA_H
#define BLOCKDEV_NVME_NVME_IOVA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct nvme_iova_range {
    uint64_t start, len; /* bytes, whole 4 KiB pages */
    void *owner;         /* whatever the transport keeps with it */
};

struct nvme_iova {
    struct nvme_iova_range *windows; /* allowed, ascending, apart from each other */
    size_t n_windows;
    struct nvme_iova_range *used; /* ascending */
    size_t n_used, capacity;
};

void nvme_iova_init(struct nvme_iova *v);
void nvme_iova_destroy(struct nvme_iova *v);
/*
 * Allows [first, last]. Rounded inwards to whole pages; ascending calls only, -EINVAL otherwise or
 * when nothing is left of it.
 */
int nvme_iova_allow(struct nvme_iova *v, uint64_t first, uint64_t last);
/* Takes len bytes (whole pages): 0 and *iova, -ENOSPC, -ENOMEM. align: a power of two >= 4096. */
int nvme_iova_take(struct nvme_iova *v, size_t len, size_t align, void *owner, uint64_t *iova);
/* The range that starts at iova, or NULL. Valid until the next take or give. */
const struct nvme_iova_range *nvme_iova_find(const struct nvme_iova *v, uint64_t iova);
/* Of the range that starts at iova, which must be there. */
void nvme_iova_set_owner(struct nvme_iova *v, uint64_t iova, void *owner);
/* -ENOENT when no range starts there. */
int nvme_iova_give(struct nvme_iova *v, uint64_t iova);

#ifdef __cplusplus
}
#endif

#endif
