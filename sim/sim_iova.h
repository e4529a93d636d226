/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The IOVA space of the controller is a sorted table of mappings with guard
 * gaps. It changes only while all threads are paused.
 */
#ifndef SIM_SIM_IOVA_H
#define SIM_SIM_IOVA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/transport.h"

#define SIM_IOVA_END (1ull << 52)

/* Memory mapped by the driver. */
struct sim_mapping {
    uint64_t iova;
    size_t len;
    unsigned char *host; /* NULL for device memory */
    uint64_t device;
    bool dying; /* unmap() waits for copies, and no new ones start */
};

struct sim_iova_table {
    struct sim_mapping *at; /* sorted by iova */
    size_t n, cap;
    uint64_t next; /* never reused, so that stale addresses are detected */
};

/*
 * Add mem at an address returned in *iova, or at a given one. Return -ENOSPC,
 * -EEXIST or -ENOMEM.
 */
int sim_iova_add(struct sim_iova_table *t, const struct nvme_mem *mem, uint64_t *iova);
int sim_iova_add_at(struct sim_iova_table *t, const struct nvme_mem *mem, uint64_t iova);
/* Returns the mapping that starts at iova, or NULL. */
struct sim_mapping *sim_iova_find(const struct sim_iova_table *t, uint64_t iova);
void sim_iova_remove(struct sim_iova_table *t, uint64_t iova); /* the mapping must exist */
/*
 * Returns the index of the last mapping that starts at or below iova, or the
 * size of the table if there is none.
 */
size_t sim_mapping_below(const struct sim_iova_table *t, uint64_t iova);

#endif
