/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Describes the properties of controllers and namespaces, and interprets NVMe
 * statuses.
 *
 * This header is free of wire formats, because libnvme and nvme_spec.h use the
 * same names. A source file includes either nvme_spec.h or <libnvme.h>, and may
 * include this header with either.
 */
#ifndef BLOCKDEV_NVME_NVME_INFO_H
#define BLOCKDEV_NVME_NVME_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/*
 * Names the deviations of controllers from the specification that the driver
 * works around.
 */
enum nvme_quirk {
    /* After CC.EN = 0 the driver reads no register for NVME_SLOW_DISABLE_MS. */
    NVME_QUIRK_SLOW_DISABLE = 1,
    /* The driver does not send Write Zeroes although the controller reports it. */
    NVME_QUIRK_NO_WRITE_ZEROES = 2,
    /* The driver does not read a namespace's descriptors (Identify CNS 03h). */
    NVME_QUIRK_NO_NS_DESCRIPTORS = 4,
    /* The driver ignores NGUID and EUI-64, because they change spontaneously. */
    NVME_QUIRK_FALSE_NS_IDS = 8,
    /*
     * The driver sends a Flush after FUA writes, because a power cut can lose them.
     */
    NVME_QUIRK_IGNORES_FUA = 16,
    /*
     * The controller refuses commands of more than 33 pages, whatever MDTS reports.
     */
    NVME_QUIRK_SHORT_TRANSFERS = 32,
    /*
     * The driver sends no Abort, because it may never complete and hang the
     * controller.
     */
    NVME_QUIRK_NO_ABORT = 64,
};
#define NVME_SHORT_TRANSFER  (128u << 10) /* 33 pages if the data starts within a page */
#define NVME_SLOW_DISABLE_MS 2300u        /* the same value as in Linux */

/* Returns the quirks of a PCI function by its IDs, 0 for unknown IDs. */
unsigned nvme_quirks_of(uint16_t vendor, uint16_t device);
/*
 * Describes the workarounds in words, or writes "none". NVME_QUIRKS_TEXT bytes
 * suffice.
 */
void nvme_quirks_text(unsigned quirks, char *out, size_t len);
#define NVME_QUIRKS_TEXT 160

struct nvme_ctrlr_info {
    char serial[21], model[41], firmware[9]; /* trimmed, printable */
    uint32_t max_transfer;    /* bytes of one command (MDTS, PRP list); at least two pages */
    uint32_t max_queue_depth; /* entries of an I/O queue (CAP.MQES + 1), at most 65,535 */
    unsigned io_queues;       /* queue pairs granted */
    uint32_t namespaces;      /* NN */
    bool volatile_cache;      /* VWC present */
    bool sgl;                 /* SGLs supported for the NVM command set */
    bool write_zeroes, dsm;   /* ONCS; a quirk may clear write_zeroes */
    bool shared;              /* the subsystem may have other ports or controllers (CMIC) */
    bool reservations;        /* reservations supported (ONCS) */
    bool long_host_id;        /* host identifiers of 16 bytes (CTRATT); else of 8 */
    uint64_t max_zeroes;      /* bytes of one WRITE ZEROES (WZSL); 0: no limit */
    uint64_t max_dsm_lbas;    /* LBAs of one DSM range (DMRSL, DMSL); 0: no limit */
    unsigned quirks;          /* enum nvme_quirk */
    /*
     * Time that a change of the access to a namespace takes at most (ANATT); 0
     * if the controller reports no asymmetric access.
     */
    unsigned transition_ms;
};

struct nvme_ns_info {
    uint32_t nsid;
    uint32_t lba_size;             /* bytes */
    uint64_t lbas;                 /* NSZE */
    uint16_t metadata;             /* bytes of metadata per LBA */
    uint8_t protection;            /* type of protection information (DPS); 0: none */
    uint8_t command_set;           /* CSI if the controller has several command sets; 0: NVM */
    bool read_only;                /* write protected (NSATTR) */
    bool shared;                   /* may be attached to several controllers at once (NMIC) */
    bool reserves, keeps_reserved; /* RESCAP: write exclusive; and through a power loss */
    uint8_t nguid[16], eui64[8];   /* zero if there is none */
    uint8_t uuid[16];              /* zero if there is none */
};

/*
 * Returns NULL if the namespace can hold a file system, else the reason: a
 * clause with "it" or "its".
 */
const char *nvme_ns_unusable(const struct nvme_ns_info *ns);

/*
 * Maps an NVMe status (nvme_spec.h) to -errno. This is the only such table in
 * the project.
 */
int nvme_status_errno(uint16_t status);
/* Returns true if DNR is clear and the command itself is not at fault. */
bool nvme_status_retryable(uint16_t status);
/* Returns true if the command may succeed when it is sent again a little later. */
bool nvme_status_not_yet(uint16_t status);
/*
 * Returns true if the status lasts only until access to the namespace changes
 * (ANA), which takes at most transition_ms. nvme_status_not_yet() is true for
 * these statuses.
 */
bool nvme_status_transition(uint16_t status);
/* Returns true for Reservation Conflict: see nvme_ctrlr_set_taken(). */
bool nvme_status_taken(uint16_t status);
/* Returns libnvme's description of a status, a constant string. */
const char *nvme_status_text(uint16_t status);

__END_DECLS

#endif
