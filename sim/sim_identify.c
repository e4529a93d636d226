/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Builds Identify data. Only this file includes libnvme's structs, since names
 * in its header collide with nvme_spec.h.
 */
#include <endian.h>
#include <nvme/types.h>
#include <stdio.h>
#include <string.h>

#include "sim/sim_identify.h"

static void put_text(char *field, size_t len, const char *text)
{
    memset(field, ' ', len); /* ASCII fields are padded with spaces: BASE 1.5 */
    memcpy(field, text, strlen(text));
}

void sim_identify_ctrl(const struct sim_identify_ctrl *in, void *page)
{
    struct nvme_id_ctrl *id = page;

    memset(id, 0, sizeof(*id));
    put_text(id->sn, sizeof(id->sn), "SIM0001");
    put_text(id->mn, sizeof(id->mn), "gpunvmefs simulated NVMe controller");
    put_text(id->fr, sizeof(id->fr), "1");
    id->mdts = (__u8)in->mdts_shift;
    id->cntlid = htole16(1);
    id->ver = htole32(in->version);
    id->cntrltype = NVME_CTRL_CNTRLTYPE_IO;
    id->acl = (__u8)(in->abort_limit - 1);
    id->aerl = (__u8)(in->aer_limit - 1);
    id->sqes = 0x66;
    id->cqes = 0x44;
    id->nn = htole32(in->namespaces);
    id->oncs = htole16(NVME_CTRL_ONCS_DSM | NVME_CTRL_ONCS_WRITE_ZEROES);
    /* VWC is present and a flush of all namespaces is supported. */
    id->vwc = in->volatile_cache ? NVME_CTRL_VWC_PRESENT | NVME_CTRL_VWC_FLUSH : 0;
    id->oaes = htole32(in->events);
    id->sgls = htole32(in->sgl ? 1 : 0); /* no alignment or granularity required */
    snprintf(id->subnqn, sizeof(id->subnqn), "nqn.2024-01.org.gpunvmefs:sim");
}

static void put_nguid(uint32_t nsid, unsigned identity, __u8 *nguid)
{
    memset(nguid, 0, 16);
    memcpy(nguid, "gpunvmefs", 9);
    nguid[14] = (__u8)identity;
    nguid[15] = (__u8)nsid;
}

void sim_identify_ns(const struct sim_identify_ns *in, void *page)
{
    struct nvme_id_ns *id = page;

    memset(id, 0, sizeof(*id));
    id->nsze = id->ncap = id->nuse = htole64(in->lbas);
    id->lbaf[0].ds = (__u8)in->lba_shift;
    id->lbaf[0].ms = htole16(in->metadata);
    id->dlfeat = 1 | 1 << 3; /* deallocated LBAs read as zeros; DEAC in Write Zeroes */
    id->nsattr = in->read_only ? 1 : 0;
    put_nguid(in->nsid, in->identity, id->nguid);
}

void sim_identify_ns_list(uint32_t after, uint32_t namespaces, void *page)
{
    __le32 *list = page;

    memset(page, 0, 4096);
    for (uint32_t n = after; n < namespaces; n++)
        list[n - after] = htole32(n + 1);
}

void sim_identify_ns_desc(uint32_t nsid, unsigned identity, bool zoned, void *page)
{
    struct nvme_ns_id_desc *d = page;

    memset(page, 0, 4096);
    d->nidt = NVME_NIDT_NGUID;
    d->nidl = 16;
    put_nguid(nsid, identity, d->nid);
    if (!zoned)
        return;
    d = (struct nvme_ns_id_desc *)(d->nid + d->nidl);
    d->nidt = NVME_NIDT_CSI;
    d->nidl = 1;
    d->nid[0] = NVME_CSI_ZNS;
}
