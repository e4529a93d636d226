/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks Identify data and converts it to the driver's own structs. This header
 * is free of wire formats: the source behind it uses libnvme's structs, and its
 * callers use nvme_spec.h.
 */
#ifndef BLOCKDEV_NVME_NVME_IDENTIFY_H
#define BLOCKDEV_NVME_NVME_IDENTIFY_H

#include <sys/cdefs.h>

#include "blockdev/nvme/nvme_info.h"

__BEGIN_DECLS

#define NVME_IDENTIFY_LEN 4096u

/*
 * Holds the values of Identify Controller that the driver needs in addition to
 * nvme_ctrlr_info.
 */
struct nvme_id_facts {
    uint64_t mdts;     /* bytes; 0: no limit */
    uint32_t rtd3e_us; /* maximum duration of an orderly shutdown; 0: not reported */
    bool ns_events;    /* reports changed namespaces (OAES) */
};

/* Stores the text of the error in *what and returns rc. */
static inline int nvme_wrong(const char **what, int rc, const char *name)
{
    *what = name;
    return rc;
}

/*
 * page holds NVME_IDENTIFY_LEN bytes as the controller returned them. Returns
 * 0, -EPROTO (invalid) or -ENOTSUP (a kind of controller that this driver does
 * not support); on an error *what names the field. Leaves max_transfer,
 * max_queue_depth and io_queues to the caller.
 */
int nvme_parse_ctrlr(const void *page, struct nvme_ctrlr_info *info, struct nvme_id_facts *facts,
                     const char **what);
/* Stores the limits of single commands, from the page of CNS 06h, in info. */
void nvme_parse_ctrlr_nvm(const void *page, struct nvme_ctrlr_info *info);
/*
 * Returns 0, -EPROTO with *what set, or -ENODEV for the all-zero data of an
 * inactive namespace.
 */
int nvme_parse_ns(const void *page, uint32_t nsid, struct nvme_ns_info *out, const char **what);
/* Stores the command set and the UUID, from the page of CNS 03h, in out. */
void nvme_parse_ns_descriptors(const void *page, struct nvme_ns_info *out);
/*
 * Parses one page of the active namespace list, with IDs above `after` and up
 * to nn. Returns the number of IDs, or -EPROTO if they do not ascend or are out
 * of range.
 */
int nvme_parse_ns_list(const void *page, uint32_t after, uint32_t nn, uint32_t *ids);
#define NVME_NS_LIST_IDS 1024u

__END_DECLS

#endif
