/* SPDX-License-Identifier: BSD-2-Clause */
/* The PCI configuration space of the served controller: a type 0 header and three capabilities. */
#ifndef SIM_SERVE_SERVE_PCI_H
#define SIM_SERVE_SERVE_PCI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PCI_CONFIG_BYTES 4096

struct serve_pci {
    uint8_t bytes[PCI_CONFIG_BYTES];
    uint8_t writable[PCI_CONFIG_BYTES]; /* bits that a write can change */
};

/* This BAR has the MSI-X table, from 0 on, and the pending bits. */
#define PCI_MSIX_BAR 4

struct serve_pci_config {
    uint16_t vendor, device; /* vendor 0: the ids of QEMU's controller */
    uint64_t bar0_bytes;     /* a power of two */
    unsigned vectors;        /* of MSI-X; 0: neither capability nor BAR */
    bool can_reset;          /* offers a function level reset */
};

/* Sets the state after power-on. */
void serve_pci_init(struct serve_pci *c, const struct serve_pci_config *config);
/* Returns the bytes of PCI_MSIX_BAR, a power of two; the second half is the PBA. */
uint32_t serve_pci_msix_bytes(unsigned vectors);
/* The range must be inside the space. */
void serve_pci_read(const struct serve_pci *c, size_t offset, void *to, size_t len);
/* Returns true if the write asks for a function level reset. */
bool serve_pci_write(struct serve_pci *c, size_t offset, const void *from, size_t len);
bool serve_pci_bus_master(const struct serve_pci *c);

#endif
