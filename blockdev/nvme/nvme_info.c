/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Parses Identify data. The data comes from the device, so every field is
 * checked before use. Recognises controllers whose deviations from the
 * specification affect this driver. Linux has a longer list of such controllers
 * (drivers/nvme/host/pci.c). Translates NVMe statuses to errors.
 */
#include <assert.h>
#include <errno.h>
#include <libnvme.h>
#include <stdio.h>
#include <string.h>

#include "blockdev/nvme/nvme_identify.h"
#include "blockdev/nvme/nvme_info.h"
#include "blockdev/nvme/nvme_spec.h"

#define SLOW_DISABLE      NVME_QUIRK_SLOW_DISABLE
#define NO_WRITE_ZEROES   NVME_QUIRK_NO_WRITE_ZEROES
#define NO_NS_DESCRIPTORS NVME_QUIRK_NO_NS_DESCRIPTORS
#define FALSE_NS_IDS      NVME_QUIRK_FALSE_NS_IDS
#define SHORT_TRANSFERS   NVME_QUIRK_SHORT_TRANSFERS
#define NO_ABORT          NVME_QUIRK_NO_ABORT

static const struct {
    uint16_t vendor, device;
    unsigned quirks;
} known[] = {
    {0x126f, 0x2263, NO_NS_DESCRIPTORS},                /* Silicon Motion SM2263 */
    {0x144d, 0xa809, NO_WRITE_ZEROES},                  /* Samsung MZALQ256HBJD */
    {0x144d, 0xa80b, NO_WRITE_ZEROES | FALSE_NS_IDS},   /* Samsung PM9B1 */
    {0x144d, 0xa821, SLOW_DISABLE},                     /* Samsung PM1725 */
    {0x144d, 0xa822, SLOW_DISABLE | NO_WRITE_ZEROES},   /* Samsung PM1725a */
    {0x15b7, 0x2001, NO_WRITE_ZEROES},                  /* SanDisk Skyhawk */
    {0x1987, 0x5019, NO_WRITE_ZEROES},                  /* Phison E19 */
    {0x1987, 0x5021, NO_WRITE_ZEROES},                  /* Phison E21 */
    {0x1b4b, 0x1092, NO_NS_DESCRIPTORS},                /* Lexar, 256 GB */
    {0x1bb1, 0x0100, SLOW_DISABLE | NO_NS_DESCRIPTORS}, /* Seagate Nytro */
    {0x1c58, 0x0003, SLOW_DISABLE},                     /* HGST SN100 */
    {0x1c58, 0x0023, SLOW_DISABLE},                     /* WDC SN200 */
    {0x1c5c, 0x1504, NO_WRITE_ZEROES},                  /* SK hynix PC400 */
    {0x1c5c, 0x1d59, NO_WRITE_ZEROES},                  /* SK hynix BC901 */
    {0x1c5f, 0x0540, SLOW_DISABLE},                     /* Memblaze PBlaze4 */
    {0x1c5f, 0x0555, NO_NS_DESCRIPTORS},                /* Memblaze PBlaze5 */
    {0x1cc4, 0x6302, NO_WRITE_ZEROES},                  /* UMIS RPJTJ256MGE1QDY */
    {0x1cc4, 0x6303, NO_WRITE_ZEROES},                  /* UMIS RPJTJ512MGE1QDY */
    {0x1d97, 0x2263, NO_WRITE_ZEROES},                  /* SPCC, Lexar NM610 */
    {0x2646, 0x5016, NO_WRITE_ZEROES},                  /* Kingston OM3PGP4xxxxP */
    {0x2646, 0x5018, NO_WRITE_ZEROES},                  /* Kingston OM8SFP4xxxxP */
    {0x2646, 0x501a, NO_WRITE_ZEROES},                  /* Kingston OM8PGP4xxxxP */
    {0x2646, 0x501b, NO_WRITE_ZEROES},                  /* Kingston OM8PGP4xxxxQ */
    {0x2646, 0x501e, NO_WRITE_ZEROES},                  /* Kingston OM3PGP4xxxxQ */
    {0x2646, 0x502f, NO_WRITE_ZEROES},                  /* Kingston OM3SGP4xxxxK */
    {0x4e58, 0x0001, SHORT_TRANSFERS | NO_ABORT},       /* SPDK's vfio-user target */
    {0x8086, 0x5845, NO_WRITE_ZEROES},                  /* QEMU before 6.0 */
    {0x8086, 0xf1a5, NO_WRITE_ZEROES},                  /* Intel 600p, P3100 */
};

unsigned nvme_quirks_of(uint16_t vendor, uint16_t device)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].vendor == vendor && known[i].device == device)
            return known[i].quirks;
    return 0;
}

void nvme_quirks_text(unsigned quirks, char *out, size_t len)
{
    static const struct {
        unsigned quirk;
        const char *text;
    } words[] = {
        {NVME_QUIRK_SLOW_DISABLE, "pause after a disable"},
        {NVME_QUIRK_NO_WRITE_ZEROES, "no Write Zeroes"},
        {NVME_QUIRK_NO_NS_DESCRIPTORS, "no namespace descriptors"},
        {NVME_QUIRK_FALSE_NS_IDS, "NGUID and EUI-64 not compared"},
        {NVME_QUIRK_IGNORES_FUA, "Flush after FUA"},
        {NVME_QUIRK_SHORT_TRANSFERS, "128 KiB a command at most"},
        {NVME_QUIRK_NO_ABORT, "no Abort"},
    };
    size_t at = 0;

    snprintf(out, len, "none");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && at < len; i++)
        if (quirks & words[i].quirk)
            at += (size_t)snprintf(out + at, len - at, "%s%s", at ? ", " : "", words[i].text);
}

#define STATUS_CODE_MASK 0x7ffu /* SCT and SC */

struct status_entry {
    uint16_t code; /* SCT << 8 | SC */
    int16_t error;
    bool command_fault; /* the same command will fail again */
};

/*
 * The table is in ascending order of codes. A code that is not in the table
 * becomes -EIO, and the driver may send its command again.
 */
static const struct status_entry table[] = {
    {NVME_ERR_INVALID_OPCODE, -ENOTSUP, true},
    {NVME_ERR_INVALID_FIELD, -EINVAL, true},
    {NVME_ERR_ABORT_REQUESTED, -ECANCELED, false},
    {NVME_ERR_SQ_DELETED, -ECANCELED, false},
    {NVME_ERR_INVALID_NS, -ENODEV, true},
    {0x00c, -EINVAL, true}, /* command sequence error */
    {NVME_ERR_INVALID_SGL_SEGMENT, -EINVAL, true},
    {NVME_ERR_INVALID_SGL_COUNT, -EINVAL, true},
    {NVME_ERR_INVALID_SGL_LENGTH, -EINVAL, true},
    {0x010, -EINVAL, true}, /* metadata SGL length */
    {NVME_ERR_INVALID_SGL_TYPE, -EINVAL, true},
    {0x012, -EINVAL, true}, /* controller memory buffer */
    {NVME_ERR_INVALID_PRP_OFFSET, -EINVAL, true},
    {0x015, -EACCES, true}, /* operation denied */
    {0x020, -EROFS, true},  /* namespace is write protected */
    {NVME_ERR_LBA_RANGE, -ERANGE, true},
    {NVME_ERR_CAPACITY, -ENOSPC, true},
    {NVME_ERR_RESERVATION, -EACCES, true},
    {NVME_ERR_CQ_INVALID, -EINVAL, true},
    {NVME_ERR_QID_INVALID, -EINVAL, true},
    {NVME_ERR_QUEUE_SIZE, -EINVAL, true},
    {NVME_ERR_ABORT_LIMIT, -EBUSY, false},
    {NVME_ERR_QUEUE_DELETION, -EINVAL, true},
    {0x180, -EINVAL, true}, /* conflicting attributes */
    {0x182, -EROFS, true},  /* write to a read-only range */
    {0x286, -EACCES, true}, /* access denied */
    {NVME_ERR_ANA_LOST, -EIO, true},
};

static const struct status_entry *status_find(uint16_t status)
{
    uint16_t code = status & STATUS_CODE_MASK;

    for (unsigned i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].code == code)
            return &table[i];
    }
    return NULL;
}

int nvme_status_errno(uint16_t status)
{
    const struct status_entry *entry = status_find(status);

    if ((status & STATUS_CODE_MASK) == NVME_OK)
        return 0;
    return entry ? entry->error : -EIO;
}

bool nvme_status_retryable(uint16_t status)
{
    const struct status_entry *entry = status_find(status);

    if ((status & STATUS_CODE_MASK) == NVME_OK || status & NVME_STATUS_DNR)
        return false;
    return !entry || !entry->command_fault;
}

bool nvme_status_transition(uint16_t status)
{
    unsigned code = status & STATUS_CODE_MASK;

    return !(status & NVME_STATUS_DNR) &&
           (code == NVME_ERR_ANA_INACCESSIBLE || code == NVME_ERR_ANA_TRANSITION);
}

bool nvme_status_not_yet(uint16_t status)
{
    unsigned code = status & STATUS_CODE_MASK;

    if (nvme_status_transition(status))
        return true;
    return !(status & NVME_STATUS_DNR) &&
           (code == NVME_ERR_INTERRUPTED || code == NVME_ERR_TRANSPORT ||
            code == NVME_ERR_MEDIA_NOT_READY || code == NVME_ERR_NS_NOT_READY);
}

bool nvme_status_taken(uint16_t status)
{
    return (status & STATUS_CODE_MASK) == NVME_ERR_RESERVATION;
}

const char *nvme_status_text(uint16_t status)
{
    return nvme_status_to_string(status & 0x7ff, false);
}

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
 * The controller of QEMU 7.2 has a volatile cache and ignores FUA: a power cut
 * may lose FUA writes.
 */
#define MODEL_IGNORES_FUA "QEMU NVMe Ctrl"

/* Copies an ASCII field. The field is padded with blanks and has no terminator. */
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

/*
 * Checks SQES or CQES. Bits 3:0 are the smallest entry size and bits 7:4 the
 * largest.
 */
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

/*
 * Returns the format index. Bits 3:0 are bits 3:0 of FLBAS, and bits 5:4 are
 * bits 6:5 of FLBAS.
 */
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

/* Descriptors follow one another. A descriptor of length 0 ends the list. */
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
