/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Recognises controllers that deviate from the specification in a way that
 * affects this driver. Linux lists more of them, with more details
 * (drivers/nvme/host/pci.c). Also translates NVMe statuses to errors.
 */
#include <errno.h>
#include <libnvme.h>
#include <stdio.h>

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
