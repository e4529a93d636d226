/* Namespaces: which there are, and what they are like. */
#include <errno.h>
#include <stdlib.h>

#include "blockdev/identify.h"
#include "blockdev/nvme_internal.h"

int nvme_ns_info(struct nvme_ctrlr *c, uint32_t nsid, struct nvme_ns_info *out)
{
    const char *what;
    void *page;
    int rc;

    if (nsid == 0 || nsid > c->info.namespaces)
        return -ENODEV;
    page = malloc(NVME_IDENTIFY_LEN);
    if (!page)
        return -ENOMEM;
    rc = nvme_admin_identify(c, NVME_CNS_NS, nsid, page);
    if (!rc)
        rc = nvme_parse_ns(page, nsid, out, &what);
    free(page);
    return rc;
}

/* One page of ids, those after `after`; returns how many. */
static int list_page(struct nvme_ctrlr *c, void *page, uint32_t *ids, uint32_t after)
{
    int rc = nvme_admin_identify(c, NVME_CNS_ACTIVE_NS_LIST, after, page);

    return rc ? rc : nvme_parse_ns_list(page, after, c->info.namespaces, ids);
}

int nvme_ns_list(struct nvme_ctrlr *c, uint32_t *nsids, unsigned max)
{
    uint32_t *ids = calloc(NVME_NS_LIST_IDS, sizeof(*ids));
    void *page = malloc(NVME_IDENTIFY_LEN);
    uint32_t after = 0;
    unsigned have = 0;
    int n = ids && page ? 0 : -ENOMEM;

    /* Ids ascend, each page begins after the last, so NN bounds the number of pages. */
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
    return n < 0 ? n : (int)have;
}
