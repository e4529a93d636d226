/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Compares the properties that a controller reports with those that the driver
 * needs.
 */
#include <inttypes.h>
#include <libnvme.h>

#include "blockdev/nvme/nvme_identify.h"
#include "client/cli/check/cli_check.h"

#define CSS_NVM     0x1u
#define MQES_SMALL  63u     /* GPU queues have 1,024 entries where possible */
#define MDTS_SMALL  131072u /* shorter commands cost more than their data */
#define REGIONS_FEW 32u     /* for a mount, leased queues and buffers */

static unsigned bits(uint64_t value, unsigned shift, unsigned width)
{
    return (unsigned)(value >> shift & ((1u << width) - 1));
}

void check_cap(struct check *c, uint64_t cap)
{
    unsigned entries = bits(cap, 0, 16) + 1;

    if (cap == UINT64_MAX) {
        check_add(c, CHECK_FAIL, "cap",
                  "reset or power-cycle the drive; start the server of a vfio-user socket again",
                  "registers read as ones: the controller does not answer");
        return;
    }
    check_that(c, entries > MQES_SMALL, CHECK_WARN, "cap.mqes",
               "works; use more queues, -o queues=", "queues of up to %u entries", entries);
    bool nvm = bits(cap, 37, 8) & CSS_NVM;
    check_that(c, nvm, CHECK_FAIL, "cap.css", "this drive cannot be used", "command sets %#x%s",
               bits(cap, 37, 8), nvm ? " (NVM)" : ", the NVM command set is not there");
    unsigned page = bits(cap, 48, 4);
    check_that(c, !page, CHECK_FAIL, "cap.mpsmin", "this drive cannot be used",
               "memory pages from %llu bytes%s", 4096ull << page,
               page ? ", 4096 is not offered" : "");
    check_add(c, CHECK_OK, "cap.to", NULL, "ready within %u ms at most, doorbells %u bytes apart",
              bits(cap, 24, 8) * 500, 4u << bits(cap, 32, 4));
}

void check_regions(struct check *c, unsigned limit)
{
    if (limit)
        check_that(c, limit >= REGIONS_FEW, CHECK_WARN, "dma_regions",
                   "register few buffers: data of further ones is staged",
                   "%u DMA regions at most, of which a mount takes some ten", limit);
    else
        check_add(c, CHECK_OK, "dma_regions", NULL, "no limit to DMA regions is known");
}

void check_quirks(struct check *c, unsigned quirks)
{
    char text[NVME_QUIRKS_TEXT];

    nvme_quirks_text(quirks, text, sizeof(text));
    check_add(c, CHECK_OK, "quirks", NULL, "workarounds for this controller: %s", text);
}

static void check_mdts(struct check *c, const struct nvme_id_facts *facts)
{
    if (!facts->mdts)
        check_add(c, CHECK_OK, "mdts", NULL, "no limit to the size of a transfer");
    else
        check_that(c, facts->mdts >= MDTS_SMALL, CHECK_WARN, "mdts",
                   "works, with more commands for the same bytes",
                   "up to %" PRIu64 " bytes a command", facts->mdts);
}

void check_ctrlr_page(struct check *c, const void *page)
{
    struct nvme_ctrlr_info info;
    struct nvme_id_facts facts = {0};
    const char *what = "";

    if (nvme_parse_ctrlr(page, &info, &facts, &what) != 0) {
        check_add(c, CHECK_FAIL, "identify", "this drive cannot be used",
                  "the controller is refused: %s", what);
        return;
    }
    check_add(c, CHECK_OK, "identify", NULL, "%s, serial %s, firmware %s", info.model, info.serial,
              info.firmware);
    check_mdts(c, &facts);
    check_add(c, CHECK_OK, "vwc", NULL,
              info.volatile_cache ? "volatile write cache: fsync sends FLUSH"
                                  : "no volatile write cache: what is written is durable");
    check_add(c, CHECK_OK, "commands", NULL, "write zeroes: %s, dataset management: %s, SGLs: %s",
              info.write_zeroes ? "yes" : "no", info.dsm ? "yes" : "no", info.sgl ? "yes" : "no");
}

/* Lists usable LBA sizes without metadata, for example "512, 4096". */
static void usable_formats(const struct nvme_id_ns *ns, char *out, size_t len)
{
    size_t at = 0;

    out[0] = '\0';
    for (unsigned i = 0; i <= ns->nlbaf && i < 64; i++) {
        const struct nvme_lbaf *f = &ns->lbaf[i];
        if ((f->ds == 9 || f->ds == 12) && f->ms == 0 && at < len)
            at += (size_t)snprintf(out + at, len - at, "%s%u (format %u)", at ? ", " : "",
                                   1u << f->ds, i);
    }
}

/* A namespace gets its command set when it is created. */
static void remedy_of(uint8_t command_set, const char *formats, char *out, size_t len)
{
    if (command_set)
        snprintf(out, len, "name another namespace, or create one of the NVM command set (%s)",
                 "nvme-create-ns(1)");
    else
        snprintf(out, len, "reformat it, which erases it (nvme-format(1)): %s",
                 formats[0] ? formats : "no format of this drive can be used");
}

void check_ns_page(struct check *c, const void *page, uint32_t nsid, uint8_t command_set)
{
    struct nvme_ns_info info = {0};
    const char *what = "";
    char formats[160], advice[256];

    if (nvme_parse_ns(page, nsid, &info, &what) != 0) {
        check_add(c, CHECK_FAIL, "namespace", "gpunvme identify shows what the controller says",
                  "namespace %" PRIu32 " is refused: %s", nsid, what);
        return;
    }
    usable_formats(page, formats, sizeof(formats));
    info.command_set = command_set;
    const char *reason = nvme_ns_unusable(&info);
    remedy_of(command_set, formats, advice, sizeof(advice));
    check_that(c, !reason, CHECK_FAIL, "lba", advice,
               "namespace %" PRIu32 ": LBAs of %" PRIu32 " bytes, %u of metadata; usable: %s%s%s",
               nsid, info.lba_size, info.metadata, formats[0] ? formats : "none",
               reason ? "; " : "", reason ? reason : "");
    check_that(c, !info.read_only, CHECK_WARN, "write_protect",
               "mount it with -o ro, or lift the protection", "namespace %" PRIu32 ": %s", nsid,
               info.read_only ? "write protected" : "can be written");
}

/* Only a mount finds out whether a PCI drive reaches GPU memory. */
static const char *reach_of(const struct check_executor *x)
{
    if (x->mmio)
        return "data in GPU memory is staged in host memory, unless the mount finds a provider of "
               "GPU memory (tier 2; see the line p2p)";
    return "the controller reaches host memory only, so data in GPU memory is staged there";
}

static void check_tier_of_gpu(struct check *c, const struct check_executor *x)
{
    if (x->rings)
        check_add(c, CHECK_OK, "tier", NULL, "tier 1, the GPU (%s) runs the queues: %s", x->gpu,
                  reach_of(x));
    else
        check_add(c, CHECK_WARN, "tier",
                  x->mmio ? "see the line doorbells, and docs/hardware.md"
                          : "place the directory of the server's socket on tmpfs (/dev/shm)",
                  "tier 0, the GPU (%s) runs the queues, and a CPU thread rings the doorbells, "
                  "which CUDA does not map; %s",
                  x->gpu, reach_of(x));
}

void check_tier(struct check *c, const struct check_executor *x)
{
    const char *bounce = "reads into GPU memory pass through host memory of the daemon";

    if (x->kernel)
        check_add(c, CHECK_WARN, "tier", "hand it over: gpunvme bind ADDRESS",
                  "none, no executor runs on a drive that is not bound to vfio-pci: %s", bounce);
    else if (x->noiommu)
        check_add(c, CHECK_WARN, "tier", "switch the IOMMU on (docs/hardware.md)",
                  "none, no executor runs without an IOMMU: %s", bounce);
    else if (x->gpu)
        check_tier_of_gpu(c, x);
    else
        check_add(c, CHECK_OK, "tier", NULL,
                  "tier 1, the CPU executor runs the queues, its buffers are in host memory: %s",
                  x->no_gpu);
}
