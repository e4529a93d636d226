/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * IOVA space of the controller: a sorted table of mappings with guard gaps. It
 * changes only while all threads are paused.
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
    unsigned char *host; /* NULL: device memory */
    uint64_t device;
    bool dying; /* unmap() waits for copies: no new ones start */
};

struct sim_iova_table {
    struct sim_mapping *at; /* sorted by iova */
    size_t n, cap;
    uint64_t next; /* never reused, so that a stale address is detected */
};

/* Adds mem at an address returned in *iova, or at a given one: -ENOSPC, -EEXIST, -ENOMEM. */
int sim_iova_add(struct sim_iova_table *t, const struct nvme_mem *mem, uint64_t *iova);
int sim_iova_add_at(struct sim_iova_table *t, const struct nvme_mem *mem, uint64_t iova);
/* The mapping that starts at iova, or NULL. */
struct sim_mapping *sim_iova_find(const struct sim_iova_table *t, uint64_t iova);
void sim_iova_remove(struct sim_iova_table *t, uint64_t iova); /* it exists */
/*
 * Index of the last mapping that starts at or below iova, or the size of the
 * table.
 */
size_t sim_mapping_below(const struct sim_iova_table *t, uint64_t iova);

#endif
