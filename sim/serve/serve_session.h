/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The session of one client with the controller implements the messages of the
 * protocol. It starts with VFIO_USER_VERSION. The session does not use sockets.
 */
#ifndef SIM_SERVE_SERVE_SESSION_H
#define SIM_SERVE_SERVE_SESSION_H

#include <linux/pci_regs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/serve/serve_message.h"
#include "sim/sim.h"

/* --- serve_pci.c: the configuration space ----------------------------------------------------- */

/* The PCI configuration space of the served controller: a type 0 header and three capabilities. */

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

struct serve_session {
    struct sim *sim;
    struct nvme_transport *t;
    bool no_mmap; /* the doorbells cannot be mapped */
    /*
     * Maximum number of regions, which is not announced. 0 means DMA_MAX_MAPS,
     * which is announced.
     */
    unsigned dma_maps;
    bool no_reset;
    uint16_t pci_vendor, pci_device; /* see serve_pci_init() */
    unsigned vectors;                /* of MSI-X, as in the sim_config */

    bool greeted; /* VFIO_USER_VERSION has succeeded */
    unsigned peer_fds;
    struct serve_pci pci;
    uint64_t bar0_bytes;
    /*
     * The first half of PCI_MSIX_BAR. It has no effect, because a client
     * decides which vectors have eventfds.
     */
    unsigned char msix_table[SIM_MAX_VECTORS * PCI_MSIX_ENTRY_SIZE];
    /*
     * Bus mastering was off when the controller was enabled, or was switched
     * off later: the controller cannot reach memory and shows CSTS.CFS until
     * CC.EN is 0.
     */
    bool cut_off;
    uint32_t cut_off_cc;   /* CC as read in this state */
    unsigned mistakes;     /* number of the client's mistakes in all messages */
    char last_mistake[96]; /* the last mistake as text */
};

/*
 * Starts a session. The caller has set the fields before `greeted`; this
 * function initialises the remaining ones.
 */
void serve_session_start(struct serve_session *s);
/*
 * Executes a complete message and fills in the reply. The message keeps its
 * descriptors. Returns false if the connection must end after the reply.
 */
bool serve_session_handle(struct serve_session *s, const struct serve_message *m,
                          struct serve_reply *r);
/* Records a mistake of the driver that the simulator cannot detect. */
void serve_mistake(struct serve_session *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* serve_region.c: one access to a region. Return 0 or an errno. */
int serve_region_read(struct serve_session *s, const struct vfio_user_region_access *a, void *to);
int serve_region_write(struct serve_session *s, const struct vfio_user_region_access *a,
                       const void *from);
/* Returns the bytes of a region, or 0 if it is absent. */
uint64_t serve_region_bytes(const struct serve_session *s, uint32_t index);

#endif
