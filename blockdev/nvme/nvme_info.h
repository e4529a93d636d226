/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Properties of controllers and namespaces, and NVMe statuses, for callers of the driver.
 *
 * Free of wire format, because libnvme and nvme_spec.h use the same names: a source file includes
 * either nvme_spec.h or <libnvme.h>, and both kinds include this.
 */
#ifndef BLOCKDEV_NVME_NVME_INFO_H
#define BLOCKDEV_NVME_NVME_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Deviations of controllers from the specification, by what the driver does about them. */
enum nvme_quirk {
    /* After CC.EN = 0 no register is read for NVME_SLOW_DISABLE_MS. */
    NVME_QUIRK_SLOW_DISABLE = 1,
    /* Write Zeroes is not sent, although it is offered. */
    NVME_QUIRK_NO_WRITE_ZEROES = 2,
    /* The descriptors of a namespace (Identify CNS 03h) are not asked for. */
    NVME_QUIRK_NO_NS_DESCRIPTORS = 4,
    /* NGUID and EUI-64 change by themselves: they are taken for absent. */
    NVME_QUIRK_FALSE_NS_IDS = 8,
    /* Writes with FUA are lost in a power cut: a Flush follows them. */
    NVME_QUIRK_IGNORES_FUA = 16,
    /* Commands of more pages than 33 are refused, whatever MDTS says. */
    NVME_QUIRK_SHORT_TRANSFERS = 32,
    /* Abort may never complete, and hang the controller: it is not sent. */
    NVME_QUIRK_NO_ABORT = 64,
};
#define NVME_SHORT_TRANSFER  (128u << 10) /* 33 pages where it begins within one */
#define NVME_SLOW_DISABLE_MS 2300u        /* the value of Linux */

/* Quirks of a PCI function by its ids; 0 for unknown ids. */
unsigned nvme_quirks_of(uint16_t vendor, uint16_t device);
/* "none", or what the driver does, in words; NVME_QUIRKS_TEXT bytes suffice. */
void nvme_quirks_text(unsigned quirks, char *out, size_t len);
#define NVME_QUIRKS_TEXT 160

struct nvme_ctrlr_info {
    char serial[21], model[41], firmware[9]; /* trimmed, printable */
    uint32_t max_transfer;    /* bytes a command may carry (MDTS, which is two pages at least, and
                                 what a PRP list allows) */
    uint32_t max_queue_depth; /* entries of an I/O queue (CAP.MQES + 1), 65,535 at most */
    unsigned io_queues;       /* queue pairs granted */
    uint32_t namespaces;      /* NN */
    bool volatile_cache;      /* VWC present */
    bool sgl;                 /* SGLs supported for the NVM command set */
    bool write_zeroes, dsm;   /* ONCS; without Write Zeroes by a quirk */
    uint64_t max_zeroes;      /* bytes of one WRITE ZEROES (WZSL); 0: no limit */
    uint64_t max_dsm_lbas;    /* of one DSM range (DMRSL, DMSL); 0: no limit */
    unsigned quirks;          /* enum nvme_quirk */
};

struct nvme_ns_info {
    uint32_t nsid;
    uint32_t lba_size;           /* bytes */
    uint64_t lbas;               /* NSZE */
    uint16_t metadata;           /* bytes of metadata per LBA */
    uint8_t protection;          /* type of protection information in use (DPS); 0: none */
    uint8_t command_set;         /* CSI, where the controller has several sets; 0: NVM */
    bool read_only;              /* write protected (NSATTR) */
    uint8_t nguid[16], eui64[8]; /* zero where there is none */
};

/* NULL: the namespace can hold a file system. Otherwise the reason, a clause with "it" or "its". */
const char *nvme_ns_unusable(const struct nvme_ns_info *ns);

/* NVMe status (nvme_spec.h) to -errno, and to words: one table for the whole project. */
int nvme_status_errno(uint16_t status);
bool nvme_status_retryable(uint16_t status); /* DNR clear and not caused by the command itself */
/* The command may succeed if it is sent again a little later. */
bool nvme_status_not_yet(uint16_t status);
const char *nvme_status_text(uint16_t status);

#ifdef __cplusplus
}
#endif

#endif
