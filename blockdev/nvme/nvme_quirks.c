/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Controllers whose deviations from the specification affect this driver. Linux
 * lists more of them, with more details (drivers/nvme/host/pci.c).
 */
#include <stdio.h>

#include "blockdev/nvme/nvme_info.h"

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
