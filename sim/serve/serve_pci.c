/* SPDX-License-Identifier: BSD-2-Clause */
/* Emulates the PCI configuration space of the served controller. */
#include <linux/pci_regs.h>
#include <string.h>

#include "sim/serve/serve.h"

#define VENDOR_ID     0x1b36 /* Red Hat: the ids of "QEMU NVM Express Controller" */
#define DEVICE_ID     0x0010
#define CLASS_NVME    0x010802u /* mass storage, non-volatile memory, NVM Express I/O controller */
#define CAP_PM        0x40
#define CAP_EXPRESS   0x50
#define CAP_MSIX      0x90 /* behind the 60 bytes of the one for PCI Express */
#define MSIX_MIN_BAR  4096u
#define EXPRESS_V2    2
#define MAX_LATENCIES 0x7u /* endpoint L0s and L1 acceptable latency: no limit */

static void put16(struct serve_pci *c, size_t at, uint16_t v)
{
    memcpy(&c->bytes[at], &v, sizeof(v));
}

static void put32(struct serve_pci *c, size_t at, uint32_t v)
{
    memcpy(&c->bytes[at], &v, sizeof(v));
}

static void allow32(struct serve_pci *c, size_t at, uint32_t mask)
{
    memcpy(&c->writable[at], &mask, sizeof(mask));
}

static void add_capabilities(struct serve_pci *c, bool can_reset)
{
    put16(c, PCI_STATUS, PCI_STATUS_CAP_LIST);
    c->bytes[PCI_CAPABILITY_LIST] = CAP_PM;
    put16(c, CAP_PM, PCI_CAP_ID_PM | CAP_EXPRESS << 8);
    put16(c, CAP_PM + PCI_PM_PMC, 3); /* version 1.2 */
    put16(c, CAP_PM + PCI_PM_CTRL, PCI_PM_CTRL_NO_SOFT_RESET);
    put16(c, CAP_EXPRESS, PCI_CAP_ID_EXP);
    put16(c, CAP_EXPRESS + PCI_EXP_FLAGS, EXPRESS_V2 | PCI_EXP_TYPE_ENDPOINT << 4);
    put32(c, CAP_EXPRESS + PCI_EXP_DEVCAP,
          PCI_EXP_DEVCAP_RBER | MAX_LATENCIES << 6 | MAX_LATENCIES << 9 |
              (can_reset ? PCI_EXP_DEVCAP_FLR : 0));
}

uint32_t serve_pci_msix_bytes(unsigned vectors)
{
    uint32_t half = MSIX_MIN_BAR / 2;

    while (half < vectors * PCI_MSIX_ENTRY_SIZE)
        half *= 2;
    return vectors ? 2 * half : 0;
}

static void add_msix(struct serve_pci *c, unsigned vectors)
{
    uint32_t bytes = serve_pci_msix_bytes(vectors);

    c->bytes[CAP_EXPRESS + 1] = CAP_MSIX;
    put16(c, CAP_MSIX, PCI_CAP_ID_MSIX);
    put16(c, CAP_MSIX + PCI_MSIX_FLAGS, (uint16_t)(vectors - 1));
    put32(c, CAP_MSIX + PCI_MSIX_TABLE, PCI_MSIX_BAR);
    put32(c, CAP_MSIX + PCI_MSIX_PBA, bytes / 2 | PCI_MSIX_BAR);
    allow32(c, CAP_MSIX, (uint32_t)(PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL) << 16);
    put32(c, PCI_BASE_ADDRESS_4, PCI_BASE_ADDRESS_SPACE_MEMORY);
    allow32(c, PCI_BASE_ADDRESS_4, ~(bytes - 1));
}

void serve_pci_init(struct serve_pci *c, const struct serve_options *o, uint64_t bar0_bytes)
{
    uint64_t bar0_mask = ~(bar0_bytes - 1);

    memset(c, 0, sizeof(*c));
    put16(c, PCI_VENDOR_ID, o->cfg.pci_vendor ? o->cfg.pci_vendor : VENDOR_ID);
    put16(c, PCI_DEVICE_ID, o->cfg.pci_vendor ? o->pci_device : DEVICE_ID);
    put32(c, PCI_CLASS_REVISION, CLASS_NVME << 8);
    put16(c, PCI_SUBSYSTEM_VENDOR_ID, VENDOR_ID);
    put16(c, PCI_SUBSYSTEM_ID, DEVICE_ID);
    put32(c, PCI_BASE_ADDRESS_0, PCI_BASE_ADDRESS_MEM_TYPE_64);
    c->bytes[PCI_INTERRUPT_PIN] = 1;
    add_capabilities(c, !o->cfg.no_reset);
    if (o->cfg.vectors)
        add_msix(c, o->cfg.vectors);
    allow32(c, PCI_COMMAND,
            PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_PARITY | PCI_COMMAND_SERR |
                PCI_COMMAND_INTX_DISABLE);
    allow32(c, PCI_BASE_ADDRESS_0, (uint32_t)bar0_mask);
    allow32(c, PCI_BASE_ADDRESS_1, (uint32_t)(bar0_mask >> 32));
    c->writable[PCI_CACHE_LINE_SIZE] = 0xff;
    c->writable[PCI_INTERRUPT_LINE] = 0xff;
}

void serve_pci_read(const struct serve_pci *c, size_t offset, void *to, size_t len)
{
    memcpy(to, &c->bytes[offset], len);
}

/* The bit reads as 0. It is in the second byte of the register. */
static bool asks_for_reset(const struct serve_pci *c, size_t offset, const uint8_t *v, size_t len)
{
    const size_t at = CAP_EXPRESS + PCI_EXP_DEVCTL + 1;
    uint32_t offered;

    memcpy(&offered, &c->bytes[CAP_EXPRESS + PCI_EXP_DEVCAP], sizeof(offered));
    return (offered & PCI_EXP_DEVCAP_FLR) && offset <= at && at - offset < len &&
           (v[at - offset] & PCI_EXP_DEVCTL_BCR_FLR >> 8);
}

bool serve_pci_write(struct serve_pci *c, size_t offset, const void *from, size_t len)
{
    const uint8_t *v = from;

    for (size_t i = 0; i < len; i++) {
        uint8_t mask = c->writable[offset + i], *b = &c->bytes[offset + i];
        *b = (uint8_t)((*b & ~mask) | (v[i] & mask));
    }
    return asks_for_reset(c, offset, v, len);
}

bool serve_pci_bus_master(const struct serve_pci *c)
{
    return c->bytes[PCI_COMMAND] & PCI_COMMAND_MASTER;
}
