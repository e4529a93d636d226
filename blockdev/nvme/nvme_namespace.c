/* SPDX-License-Identifier: BSD-2-Clause */
/* Lists namespaces and reads their properties. */
#include <errno.h>
#include <nvme/types.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/nvme/nvme_identify.h"
#include "blockdev/nvme/nvme_internal.h"

#define NS_WITHOUT_LIST  1024u
#define NVME_VERSION_1_3 0x00010300u

/* NVMe 1.3 made the descriptors mandatory. */
static bool knows_descriptors(struct nvme_ctrlr *c)
{
    return !(c->quirks & NVME_QUIRK_NO_NS_DESCRIPTORS) &&
           (NVME_CAP_CSS(c->cap) & NVME_CAP_CSS_SEVERAL || c->version >= NVME_VERSION_1_3);
}

/* The caller holds admin_lock. */
static int namespace_identify(struct nvme_ctrlr *c, uint32_t nsid, struct nvme_ns_info *out)
{
    const char *what;
    void *page = malloc(NVME_IDENTIFY_LEN);
    int rc;

    if (!page)
        return -ENOMEM;
    rc = nvme_admin_identify_page(c, NVME_CNS_NS, nsid, page);
    if (!rc)
        rc = nvme_parse_ns(page, nsid, out, &what);
    if (!rc && knows_descriptors(c) &&
        nvme_admin_identify_page(c, NVME_CNS_NS_DESCRIPTORS, nsid, page) == 0)
        nvme_parse_ns_descriptors(page, out);
    free(page);
    if (!rc && c->quirks & NVME_QUIRK_FALSE_NS_IDS) {
        memset(out->nguid, 0, sizeof(out->nguid));
        memset(out->eui64, 0, sizeof(out->eui64));
        memset(out->uuid, 0, sizeof(out->uuid));
    }
    return rc;
}

/* Records a namespace in use. admin_lock is held. */
static int remember(struct nvme_ctrlr *c, const struct nvme_ns_info *info)
{
    struct nvme_known_ns *known = c->known;

    while (known && known->info.nsid != info->nsid)
        known = known->next;
    if (!known) {
        known = malloc(sizeof(*known));
        if (!known)
            return -ENOMEM;
        known->next = c->known;
        c->known = known;
    }
    known->info = *info;
    return 0;
}

int nvme_ns_info(struct nvme_ctrlr *c, uint32_t nsid, struct nvme_ns_info *out)
{
    int rc;

    if (nsid == 0 || nsid > c->info.namespaces)
        return -ENODEV;
    nvme_admin_begin(c);
    rc = namespace_identify(c, nsid, out);
    if (!rc)
        rc = remember(c, out);
    nvme_admin_end(c);
    return rc;
}

/* A grown namespace counts as unchanged: its blocks remain. */
static bool as_it_was(const struct nvme_ns_info *now, const struct nvme_ns_info *then)
{
    return now->lba_size == then->lba_size && now->metadata == then->metadata &&
           now->lbas >= then->lbas && memcmp(now->nguid, then->nguid, sizeof(now->nguid)) == 0 &&
           memcmp(now->eui64, then->eui64, sizeof(now->eui64)) == 0 &&
           memcmp(now->uuid, then->uuid, sizeof(now->uuid)) == 0;
}

int nvme_ns_refresh(struct nvme_ctrlr *c, uint32_t nsid, struct nvme_ns_info *out)
{
    nvme_admin_begin(c);
    struct nvme_known_ns *known = c->known;
    while (known && known->info.nsid != nsid)
        known = known->next;
    int rc = known ? namespace_identify(c, nsid, out) : -ENODEV;
    if (!rc && !as_it_was(out, &known->info))
        rc = -ENXIO;
    if (!rc)
        known->info = *out;
    nvme_admin_end(c);
    return rc;
}

int nvme_ns_recheck(struct nvme_ctrlr *c)
{
    for (const struct nvme_known_ns *known = c->known; known; known = known->next) {
        struct nvme_ns_info now;
        int rc = namespace_identify(c, known->info.nsid, &now);

        if (rc == -ENODEV || rc == -EPROTO || (!rc && !as_it_was(&now, &known->info)))
            return -ENXIO;
        if (rc)
            return rc;
    }
    return 0;
}

void nvme_ns_forget(struct nvme_ctrlr *c)
{
    while (c->known) {
        struct nvme_known_ns *known = c->known;

        c->known = known->next;
        free(known);
    }
}

/* Reads one page of IDs above `after`. Returns their number. */
static int list_page(struct nvme_ctrlr *c, void *page, uint32_t *ids, uint32_t after)
{
    int rc;

    nvme_admin_begin(c);
    rc = nvme_admin_identify_page(c, NVME_CNS_ACTIVE_NS_LIST, after, page);
    nvme_admin_end(c);
    return rc ? rc : nvme_parse_ns_list(page, after, c->info.namespaces, ids);
}

/*
 * Tries each ID, for controllers of NVMe 1.0, which have no list. NN was small
 * then; namespaces above NS_WITHOUT_LIST are not found.
 */
static int list_each(struct nvme_ctrlr *c, uint32_t *nsids, unsigned max)
{
    uint32_t last = c->info.namespaces;
    struct nvme_ns_info ns;
    int have = 0;

    if (last > NS_WITHOUT_LIST)
        last = NS_WITHOUT_LIST;
    for (uint32_t nsid = 1; nsid <= last; nsid++) {
        int rc;

        nvme_admin_begin(c);
        rc = namespace_identify(c, nsid, &ns);
        nvme_admin_end(c);
        /* A namespace with invalid data exists all the same. */
        if (rc == -ENODEV)
            continue;
        if (rc && rc != -EPROTO)
            return rc;
        if ((unsigned)have < max)
            nsids[have] = nsid;
        have++;
    }
    return have;
}

int nvme_ns_list(struct nvme_ctrlr *c, uint32_t *nsids, unsigned max)
{
    uint32_t *ids = calloc(NVME_NS_LIST_IDS, sizeof(*ids));
    void *page = malloc(NVME_IDENTIFY_LEN);
    uint32_t after = 0;
    unsigned have = 0;
    int n = ids && page ? 0 : -ENOMEM;

    /* IDs ascend, so NN bounds the number of pages. */
    while (n >= 0) {
        n = list_page(c, page, ids, after);
        for (int i = 0; i < n; i++, have++) {
            if (have < max)
                nsids[have] = ids[i];
            after = ids[i];
        }
        if (n < (int)NVME_NS_LIST_IDS)
            break;
    }
    free(page);
    free(ids);
    if (after == 0 && (n == -EINVAL || n == -ENOTSUP))
        return list_each(c, nsids, max);
    return n < 0 ? n : (int)have;
}
