/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements Identify (BASE 5.17, NVM 4.1.5). */
#include <endian.h>
#include <nvme/types.h>
#include <stdio.h>
#include <string.h>

#include "sim/sim_admin.h"

#define CNS_NVM_NS       0x05u /* specific to an I/O command set, CSI in CDW11 */
#define CNS_NVM_NS_LIST  0x07u
#define CNS_INDEPENDENT  0x08u /* of a namespace of any command set */
#define CNS_SETS         0x1cu /* combinations of I/O command sets */
#define SUBSYSTEM_VENDOR 0x1b36u
#define FRMW_ONE_FIXED   0x03u /* one firmware slot, which is read-only */
#define LPA_EFFECTS      (1u << 1)
#define LPA_EXTENDED     (1u << 2) /* offsets and 32-bit lengths */
#define CRITICAL_KELVIN  353u
#define POWER_CENTIWATTS 2500u
#define NSTAT_READY      1u
#define LOCAL_OUI        "\x00\x54\x52" /* 52-54-00, locally administered */

static void put_text(char *field, size_t len, const char *text)
{
    memset(field, ' ', len); /* ASCII fields are padded with spaces: BASE 1.5 */
    memcpy(field, text, strlen(text));
}

static void identify_ctrl_limits(const struct sim_config *cfg, struct nvme_id_ctrl *id)
{
    id->mdts = cfg->no_mdts ? 0 : (__u8)__builtin_ctz(cfg->mdts / 4096);
    id->acl = SIM_ABORT_LIMIT - 1;
    id->aerl = SIM_AER_LIMIT - 1;
    id->frmw = FRMW_ONE_FIXED;
    id->lpa = LPA_EFFECTS | LPA_EXTENDED;
    id->wctemp = htole16(SIM_WARNING_KELVIN);
    id->cctemp = htole16(CRITICAL_KELVIN);
    id->sqes = 0x66;
    id->cqes = 0x44;
    id->nn = htole32(cfg->namespaces);
    id->psd[0].mp = htole16(POWER_CENTIWATTS);
}

static void identify_ctrl(const struct sim_config *cfg, struct nvme_id_ctrl *id)
{
    id->vid = htole16(cfg->pci_vendor);
    id->ssvid = htole16(SUBSYSTEM_VENDOR);
    put_text(id->sn, sizeof(id->sn), "SIM0001");
    put_text(id->mn, sizeof(id->mn), "gpunvmefs simulated NVMe controller");
    put_text(id->fr, sizeof(id->fr), SIM_FIRMWARE);
    memcpy(id->ieee, LOCAL_OUI, sizeof(id->ieee));
    id->cntlid = htole16(SIM_CTRL_ID);
    for (unsigned i = 0; i < cfg->namespaces; i++)
        id->cmic |= cfg->ns[i].shared ? NVME_CTRL_CMIC_MULTI_CTRL : 0;
    id->ver = htole32(SIM_VERSION);
    id->cntrltype = NVME_CTRL_CNTRLTYPE_IO;
    identify_ctrl_limits(cfg, id);
    id->oncs = htole16(NVME_CTRL_ONCS_DSM | NVME_CTRL_ONCS_WRITE_ZEROES |
                       (cfg->reservations ? NVME_CTRL_ONCS_RESERVATIONS : 0));
    id->ctratt = htole32(cfg->reservations ? NVME_CTRL_CTRATT_128_ID : 0);
    /* VWC is present and a flush of all namespaces is supported. */
    id->vwc = cfg->no_volatile_cache ? 0 : NVME_CTRL_VWC_PRESENT | NVME_CTRL_VWC_FLUSH;
    id->oaes = htole32(NVME_EVENT_NS_CHANGED);
    id->sgls = htole32(cfg->no_sgl ? 0 : 1); /* no alignment or granularity required */
    snprintf(id->subnqn, sizeof(id->subnqn), "nqn.2024-01.org.gpunvmefs:sim");
}

static void put_nguid(struct sim *s, uint32_t nsid, __u8 *nguid)
{
    memcpy(nguid, "gpunvmefs", 9);
    nguid[14] = (__u8)s->ns[nsid - 1].identity;
    nguid[15] = (__u8)nsid;
}

/* The controller has all types of reservations, and keeps them over a power loss. */
static uint8_t identify_rescap(const struct sim *s)
{
    return s->cfg.reservations
               ? NVME_NS_RESCAP_PTPL | NVME_NS_RESCAP_WE | NVME_NS_RESCAP_EA | NVME_NS_RESCAP_WERO |
                     NVME_NS_RESCAP_EARO | NVME_NS_RESCAP_WEAR | NVME_NS_RESCAP_EAAR |
                     NVME_NS_RESCAP_IEK_13
               : 0;
}

static void identify_ns(struct sim *s, uint32_t nsid, struct nvme_id_ns *id)
{
    struct sim_ns *ns = &s->ns[nsid - 1]; /* the namespace exists: identify_nsid_valid() */

    sim_media_refresh(ns);
    id->nsze = id->ncap = id->nuse = htole64(ns->lbas);
    id->lbaf[0].ds = (__u8)ns->lba_shift;
    id->lbaf[0].ms = htole16(s->cfg.ns[nsid - 1].metadata);
    id->dlfeat = 1 | 1 << 3; /* deallocated LBAs read as zeros; DEAC in Write Zeroes */
    id->nsattr = ns->read_only ? 1 : 0;
    id->nmic = s->cfg.ns[nsid - 1].shared ? NVME_NS_NMIC_SHARED : 0;
    id->rescap = identify_rescap(s);
    put_nguid(s, nsid, id->nguid);
}

static void identify_independent(struct sim *s, uint32_t nsid, struct nvme_id_independent_id_ns *id)
{
    id->nsattr = s->ns[nsid - 1].read_only ? 1 : 0;
    id->rescap = identify_rescap(s);
    id->nmic = s->cfg.ns[nsid - 1].shared ? NVME_NS_NMIC_SHARED : 0;
    id->nstat = NSTAT_READY;
}

static void identify_ns_desc(struct sim *s, uint32_t nsid, struct nvme_ns_id_desc *d)
{
    d->nidt = NVME_NIDT_NGUID;
    d->nidl = 16;
    put_nguid(s, nsid, d->nid);
    if (!s->cfg.ns[nsid - 1].zoned)
        return;
    d = (struct nvme_ns_id_desc *)(d->nid + d->nidl);
    d->nidt = NVME_NIDT_CSI;
    d->nidl = 1;
    d->nid[0] = NVME_CSI_ZNS;
}

static void identify_list(const struct sim *s, uint32_t after, bool nvm_only, __le32 *list)
{
    for (uint32_t n = after; n < s->cfg.namespaces; n++)
        if (!nvm_only || !s->cfg.ns[n].zoned)
            *list++ = htole32(n + 1);
}

/* The one combination that exists: the NVM command set, and zoned namespaces. */
static void identify_sets(const struct sim *s, __le64 *sets)
{
    sets[0] = htole64(1u << NVME_CSI_NVM);
    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        if (s->cfg.ns[i].zoned)
            sets[0] |= htole64(1u << NVME_CSI_ZNS);
}

/* Returns true if the command has the NSID that its CNS value requires. */
static bool identify_nsid_valid(struct sim *s, uint32_t cns, uint32_t nsid)
{
    switch (cns) {
    case NVME_CNS_NS:
    case NVME_CNS_NS_DESCRIPTORS:
    case CNS_NVM_NS:
    case CNS_INDEPENDENT:
        return sim_ns_get(s, nsid) != NULL;
    case NVME_CNS_ACTIVE_NS_LIST:
    case CNS_NVM_NS_LIST:
        return nsid < 0xfffffffeu;
    default:
        return true;
    }
}

/* Only data of the NVM command set exists (CSI, the upper byte of CDW11). */
static bool identify_set_valid(const struct admin *a, uint32_t cns, uint32_t nsid)
{
    bool specific = cns == CNS_NVM_NS || cns == NVME_CNS_CTRL_NVM || cns == CNS_NVM_NS_LIST;

    if (specific && a->sqe->cdw11 >> 24 != NVME_CSI_NVM)
        return false;
    return cns != CNS_NVM_NS || !a->s->cfg.ns[nsid - 1].zoned;
}

/* Fills in the page. Returns false if the CNS value is not supported. */
static bool identify_fill(struct admin *a, uint32_t cns, void *page)
{
    uint32_t nsid = a->sqe->nsid, ctrl = a->sqe->cdw10 >> 16;

    switch (cns) {
    case NVME_CNS_CTRL:
        identify_ctrl(&a->s->cfg, page);
        return true;
    case NVME_CNS_NS:
        identify_ns(a->s, nsid, page);
        return true;
    case NVME_CNS_ACTIVE_NS_LIST:
    case CNS_NVM_NS_LIST:
        identify_list(a->s, nsid, cns == CNS_NVM_NS_LIST, page);
        return true;
    case NVME_CNS_NS_DESCRIPTORS:
        identify_ns_desc(a->s, nsid, page);
        return true;
    case CNS_INDEPENDENT:
        identify_independent(a->s, nsid, page);
        return true;
    case CNS_NVM_NS: /* neither storage tags nor limits beyond MDTS */
    case NVME_CNS_CTRL_NVM:
        return true;
    case CNS_SETS:
        identify_sets(a->s, page);
        return ctrl == SIM_CTRL_ID || ctrl == UINT16_MAX;
    default:
        return false;
    }
}

uint16_t sim_identify(struct admin *a)
{
    _Alignas(64) unsigned char page[NVME_PAGE_SIZE] = {0};
    uint32_t nsid = a->sqe->nsid, cns = a->sqe->cdw10 & 0xff;

    if (!identify_nsid_valid(a->s, cns, nsid))
        return sim_admin_flagged(a, SIM_EV_BAD_NSID, NVME_ERR_INVALID_NS);
    if (!identify_set_valid(a, cns, nsid) || !identify_fill(a, cns, page))
        return NVME_ERR_INVALID_FIELD;
    return sim_give(a->th, a->sqe, page, sizeof(page), 0, sizeof(page));
}
