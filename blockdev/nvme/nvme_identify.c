/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Parses Identify data. It comes from the device, so every field is checked
 * before use.
 */
#include "blockdev/nvme/nvme_identify.h"

#include <assert.h>
#include <errno.h>
#include <libnvme.h>
#include <string.h>

static_assert(sizeof(struct nvme_id_ctrl) == NVME_IDENTIFY_LEN, "Identify Controller is a page");
static_assert(sizeof(struct nvme_id_ctrl_nvm) == NVME_IDENTIFY_LEN, "its NVM part is a page");
static_assert(sizeof(struct nvme_id_ns) == NVME_IDENTIFY_LEN, "Identify Namespace is a page");

#define SQES_64 6u /* log2 of the entry sizes of this driver */
#define CQES_16 4u

#define CNTRLTYPE_NOT_SAID 0u
#define CNTRLTYPE_IO       1u

#define OAES_NS_CHANGED     (1u << 8)
#define CMIC_ANA            (1u << 3)
#define ONCS_DSM            (1u << 2)
#define ONCS_WRITE_ZEROES   (1u << 3)
#define ONCS_RESERVATIONS   (1u << 5)
#define SGLS_SUPPORT        0x3u
#define SGLS_BYTE_ALIGNED   0x1u
#define CTRATT_LONG_HOST_ID (1u << 0)
#define CMIC_SHARED         0x7u /* more ports, more controllers, an SR-IOV function */
#define NMIC_SHARED         0x1u
#define DPS_TYPE            0x7u
#define NSATTR_PROTECTED    0x1u
#define MDTS_LIMITED        20u /* 4 GiB and more do not limit this driver */

/*
 * QEMU's controller, as of 7.2, loses FUA writes in a power cut, although it
 * has a volatile cache.
 */
#define MODEL_IGNORES_FUA "QEMU NVMe Ctrl"

/* Copies an ASCII field, which is padded with blanks and not terminated. */
static void copy_text(char *dst, const char *src, size_t len)
{
    size_t end = len;

    while (end > 0 && (src[end - 1] == ' ' || src[end - 1] == '\0'))
        end--;
    while (end > 0 && *src == ' ') {
        src++;
        end--;
    }
    for (size_t i = 0; i < end; i++)
        dst[i] = src[i] >= 0x20 && src[i] < 0x7f ? src[i] : '?';
    dst[end] = '\0';
}

/* Checks SQES or CQES: smallest size in 3:0, largest in 7:4. */
static bool entry_size_ok(uint8_t field, unsigned log2_size)
{
    return (field & 0xfu) <= log2_size && log2_size <= (field >> 4);
}

static int check_ctrlr(const struct nvme_id_ctrl *id, const char **what)
{
    if (id->cntrltype != CNTRLTYPE_NOT_SAID && id->cntrltype != CNTRLTYPE_IO)
        return nvme_wrong(what, -ENOTSUP, "not an I/O controller (CNTRLTYPE)");
    if (!entry_size_ok(id->sqes, SQES_64))
        return nvme_wrong(what, -EPROTO, "no 64-byte submission entries (SQES)");
    if (!entry_size_ok(id->cqes, CQES_16))
        return nvme_wrong(what, -EPROTO, "no 16-byte completion entries (CQES)");
    if (id->nn == 0 || id->nn == UINT32_MAX)
        return nvme_wrong(what, -EPROTO, "number of namespaces that cannot be (NN)");
    return 0;
}

int nvme_parse_ctrlr(const void *page, struct nvme_ctrlr_info *info, struct nvme_id_facts *facts,
                     const char **what)
{
    const struct nvme_id_ctrl *id = page;
    unsigned sgls = id->sgls & SGLS_SUPPORT;
    int rc = check_ctrlr(id, what);

    if (rc)
        return rc;
    memset(info, 0, sizeof(*info));
    copy_text(info->serial, id->sn, sizeof(id->sn));
    copy_text(info->model, id->mn, sizeof(id->mn));
    copy_text(info->firmware, id->fr, sizeof(id->fr));
    info->namespaces = id->nn;
    info->volatile_cache = id->vwc & 1u;
    info->quirks = strcmp(info->model, MODEL_IGNORES_FUA) == 0 ? NVME_QUIRK_IGNORES_FUA : 0;
    info->sgl = sgls == SGLS_BYTE_ALIGNED || sgls == 2u;
    info->write_zeroes = id->oncs & ONCS_WRITE_ZEROES;
    info->dsm = id->oncs & ONCS_DSM;
    info->transition_ms = id->cmic & CMIC_ANA ? id->anatt * 1000u : 0;
    info->shared = id->cmic & CMIC_SHARED;
    info->reservations = id->oncs & ONCS_RESERVATIONS;
    info->long_host_id = id->ctratt & CTRATT_LONG_HOST_ID;
    facts->mdts = id->mdts == 0 || id->mdts >= MDTS_LIMITED ? 0 : 4096ull << id->mdts;
    facts->rtd3e_us = id->rtd3e;
    facts->ns_events = id->oaes & OAES_NS_CHANGED;
    return 0;
}

void nvme_parse_ctrlr_nvm(const void *page, struct nvme_ctrlr_info *info)
{
    const struct nvme_id_ctrl_nvm *id = page;

    info->max_zeroes = id->wzsl == 0 || id->wzsl >= MDTS_LIMITED ? 0 : 4096ull << id->wzsl;
    info->max_dsm_lbas = id->dmrsl;
    if (id->dmsl != 0 && (info->max_dsm_lbas == 0 || id->dmsl < info->max_dsm_lbas))
        info->max_dsm_lbas = id->dmsl;
}

/* Returns the format index: bits 3:0 of FLBAS, and bits 6:5 as its bits 5:4. */
static unsigned format_index(const struct nvme_id_ns *id)
{
    return (id->flbas & 0xfu) | (id->nlbaf > 15 ? ((id->flbas >> 5) & 0x3u) << 4 : 0);
}

int nvme_parse_ns(const void *page, uint32_t nsid, struct nvme_ns_info *out, const char **what)
{
    const struct nvme_id_ns *id = page;
    unsigned index = format_index(id);
    const struct nvme_lbaf *format;

    if (id->nsze == 0)
        return nvme_wrong(what, -ENODEV, "namespace not active");
    if (index > id->nlbaf || index >= sizeof(id->lbaf) / sizeof(id->lbaf[0]))
        return nvme_wrong(what, -EPROTO, "LBA format out of range (FLBAS, NLBAF)");
    format = &id->lbaf[index];
    if (format->ds < 9 || format->ds > 24)
        return nvme_wrong(what, -EPROTO, "LBA size that cannot be (LBADS)");
    if (id->nsze > (UINT64_MAX >> 1) >> format->ds || id->ncap > id->nsze)
        return nvme_wrong(what, -EPROTO, "namespace size that cannot be (NSZE, NCAP)");
    out->nsid = nsid;
    out->lba_size = 1u << format->ds;
    out->lbas = id->nsze;
    out->metadata = format->ms;
    out->protection = id->dps & DPS_TYPE;
    out->command_set = NVME_CSI_NVM;
    out->read_only = id->nsattr & NSATTR_PROTECTED;
    out->shared = id->nmic & NMIC_SHARED;
    out->reserves = id->rescap & NVME_NS_RESCAP_WE;
    out->keeps_reserved = id->rescap & NVME_NS_RESCAP_PTPL;
    memcpy(out->nguid, id->nguid, sizeof(out->nguid));
    memcpy(out->eui64, id->eui64, sizeof(out->eui64));
    memset(out->uuid, 0, sizeof(out->uuid));
    return 0;
}

/* Descriptors follow one another; one of length 0 ends the list. */
void nvme_parse_ns_descriptors(const void *page, struct nvme_ns_info *out)
{
    const unsigned char *bytes = page;
    struct nvme_ns_id_desc d;

    for (size_t at = 0; at + sizeof(d) < NVME_IDENTIFY_LEN; at += sizeof(d) + d.nidl) {
        memcpy(&d, bytes + at, sizeof(d));
        if (d.nidl == 0)
            return;
        if (d.nidt == NVME_NIDT_CSI)
            out->command_set = bytes[at + sizeof(d)];
        if (d.nidt == NVME_NIDT_UUID && d.nidl == sizeof(out->uuid) &&
            at + sizeof(d) + sizeof(out->uuid) <= NVME_IDENTIFY_LEN)
            memcpy(out->uuid, bytes + at + sizeof(d), sizeof(out->uuid));
    }
}

const char *nvme_ns_unusable(const struct nvme_ns_info *ns)
{
    if (ns->command_set == NVME_CSI_ZNS)
        return "it is zoned";
    if (ns->command_set != NVME_CSI_NVM)
        return "it is of another command set than NVM";
    if (ns->lba_size != 512 && ns->lba_size != 4096)
        return "its blocks are neither 512 nor 4096 bytes";
    if (ns->protection)
        return "its blocks carry protection information";
    return ns->metadata ? "its blocks carry metadata" : NULL;
}

int nvme_parse_ns_list(const void *page, uint32_t after, uint32_t nn, uint32_t *ids)
{
    const struct nvme_ns_list *list = page;
    unsigned n = 0;

    while (n < NVME_NS_LIST_IDS && list->ns[n] != 0) {
        if (list->ns[n] <= after || list->ns[n] > nn)
            return -EPROTO;
        after = ids[n] = list->ns[n];
        n++;
    }
    return (int)n;
}
