/* SPDX-License-Identifier: BSD-2-Clause */
/* The PCI configuration space of the served controller: a type 0 header and two capabilities. */
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

/*
 * Sets the state after power-on. bar0_bytes is a power of two. With vendor 0
 * the space has the ids of QEMU's controller.
 */
void serve_pci_init(struct serve_pci *c, uint64_t bar0_bytes, uint16_t vendor, uint16_t device);
/* The range must be inside the space. */
void serve_pci_read(const struct serve_pci *c, size_t offset, void *to, size_t len);
void serve_pci_write(struct serve_pci *c, size_t offset, const void *from, size_t len);
bool serve_pci_bus_master(const struct serve_pci *c);

#endif
