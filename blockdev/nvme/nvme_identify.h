/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Identify data, checked and turned into the driver's own structs. Free of wire format: the
 * source behind it uses libnvme's structs, its callers use nvme_spec.h.
 */
#ifndef BLOCKDEV_NVME_NVME_IDENTIFY_H
#define BLOCKDEV_NVME_NVME_IDENTIFY_H

#include "blockdev/nvme/nvme_info.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NVME_IDENTIFY_LEN 4096u

/* What the driver needs of Identify Controller beside nvme_ctrlr_info. */
struct nvme_id_facts {
    uint64_t mdts;     /* bytes; 0: no limit */
    uint32_t rtd3e_us; /* how long an orderly shutdown may take; 0: not said */
};

/*
 * page: NVME_IDENTIFY_LEN bytes as the controller returned them. 0, -EPROTO (invalid) or
 * -ENOTSUP (a kind of controller or format this driver does not drive); *what then names the
 * field. nvme_parse_ctrlr() leaves max_transfer, max_queue_depth and io_queues to its caller.
 */
int nvme_parse_ctrlr(const void *page, struct nvme_ctrlr_info *info, struct nvme_id_facts *facts,
                     const char **what);
/* Limits of single commands, of the page that CNS 06h returns, into info. */
void nvme_parse_ctrlr_nvm(const void *page, struct nvme_ctrlr_info *info);
/* -ENODEV for the all-zero data of a namespace that is not active. */
int nvme_parse_ns(const void *page, uint32_t nsid, struct nvme_ns_info *out, const char **what);
/* The command set, of the page that CNS 03h returns, into out. */
void nvme_parse_ns_descriptors(const void *page, struct nvme_ns_info *out);
/*
 * One page of the active namespace list, of ids after `after` and up to nn: the number of ids, or
 * -EPROTO when they do not ascend or are out of range.
 */
int nvme_parse_ns_list(const void *page, uint32_t after, uint32_t nn, uint32_t *ids);
#define NVME_NS_LIST_IDS 1024u

#ifdef __cplusplus
}
#endif

#endif
