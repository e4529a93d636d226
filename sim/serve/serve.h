/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Serves the simulated controller over the vfio-user protocol, to one client at
 * a time.
 */
#ifndef SIM_SERVE_SERVE_H
#define SIM_SERVE_SERVE_H

#include <linux/pci_regs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/vfio_user/vfio_user_spec.h"
#include "sim/sim.h"
#include "support/fd_message.h"
#include "support/reason.h"

#define OPTIONS_MAX_FAULTS 64

struct serve_options {
    const char *socket;
    struct sim_config cfg;
    struct sim_fault faults[OPTIONS_MAX_FAULTS];
    unsigned n_faults;
    uint16_t pci_device; /* with cfg.pci_vendor, which is 0 for the ids of QEMU's controller */
    bool no_mmap;
    /*
     * Maximum number of regions, which is not announced. 0 means DMA_MAX_MAPS,
     * which is announced.
     */
    unsigned dma_maps;
    bool stuck;       /* CSTS.RDY never follows CC.EN */
    bool wait_second; /* a second client waits instead of being refused */
    bool strict;
};

/*
 * serve_fault_spec.c: parses a fault on a command line, KIND[,KEY[=VALUE]]...
 * (gpunvme-sim(1)). Returns 0, or -EINVAL with the reason in why, as a phrase to
 * follow "--fault: ".
 */
int serve_fault_parse(const char *spec, struct sim_fault *out, struct reason *why);

/* --- serve_server.c: the socket, the clients, and signals ------------------------------------- */

/*
 * Serves until SIGTERM or SIGINT. SIGUSR1 calls sim_stick(), and SIGUSR2
 * sim_remove(). Returns 0, -errno after an error message, or 1 if a driver made
 * mistakes, which have been printed.
 */
int serve_server_run(const struct serve_options *o);

/* --- serve_message.c: messages on a stream socket --------------------------------------------- */

/*
 * One message with its descriptors is received at a time, possibly in parts. The
 * peer is not trusted.
 */

#define MESSAGE_MAX_FDS     8
#define MESSAGE_MAX_XFER    65536 /* bytes of data in one region access */
#define MESSAGE_MAX_PAYLOAD (sizeof(struct vfio_user_region_access) + MESSAGE_MAX_XFER)

struct serve_message {
    struct vfio_user_header header;
    unsigned char payload[MESSAGE_MAX_PAYLOAD];
    size_t have;           /* bytes received, including the header */
    struct fd_message fds; /* up to MESSAGE_MAX_FDS */
};

/*
 * Describes the reply to a message. `error` is an errno. A reply with an error
 * has no payload.
 */
struct serve_reply {
    unsigned char payload[MESSAGE_MAX_PAYLOAD];
    size_t len;
    int fd; /* sent with the reply and not closed, or -1 */
    int error;
};

/* Returns the bytes of payload of a complete message. */
static inline size_t serve_message_len(const struct serve_message *m)
{
    return m->header.size - sizeof(m->header);
}

/*
 * Receives without waiting. Returns 1 if the message is complete, and 0 if it
 * is not yet. -ECONNRESET means that the peer has closed. -EPROTO means that
 * the size in the header is invalid: the next message cannot be found, so the
 * connection is unusable. Precondition: the message was zeroed.
 */
int serve_message_receive(int sock, struct serve_message *m);
/* Closes the descriptors of the message and zeroes it for the next one. */
void serve_message_done(struct serve_message *m);
/* Replies. Returns 0 or -errno: -ETIMEDOUT if the peer does not read. */
int serve_message_reply(int sock, const struct vfio_user_header *to, const struct serve_reply *r);

/* --- serve_dma.c: the memory of the client ---------------------------------------------------- */

/*
 * The memory is mapped into this process and into the controller. There is one
 * table per process, because the handler of SIGBUS uses it: a client can remove
 * pages by shrinking its file.
 */

#define DMA_MAX_MAPS 4096 /* number of mappings at a time */

/*
 * Installs the handler of SIGBUS. If the client has removed pages of a mapping,
 * the handler replaces the mapping by zeros. It then makes *torn_fd readable,
 * which is an eventfd of the table. Returns 0 or -errno.
 */
int serve_dma_guard(int *torn_fd);

/*
 * Maps [m->offset, m->offset + m->size) of the file fd at m->addr. The caller
 * still owns fd. Memory without a descriptor (fd < 0) and memory that is not
 * both readable and writable is recorded only: QEMU maps ROMs so, and a command
 * that points there reaches nothing. Returns -EINVAL (not whole pages,
 * impossible address, file too short, not a plain file), -EEXIST (overlap),
 * -ENOSPC, or the errors of mmap(2). If `most` is not 0 and as many regions are
 * mapped, it returns -EINVAL, as libvfio-user does.
 */
int serve_dma_map(struct nvme_transport *t, const struct vfio_user_dma_map *m, int fd,
                  unsigned most);
/*
 * Returns -ENOENT unless address and size are those of a mapping. With
 * VFIO_DMA_UNMAP_FLAG_ALL both are 0, and all mappings are removed.
 */
int serve_dma_unmap(struct nvme_transport *t, const struct vfio_user_dma_unmap *u);
/* Unmaps everything from this process. The transport must be closed. */
void serve_dma_forget(void);

/* --- serve_pci.c: the configuration space ----------------------------------------------------- */

/*
 * Holds the PCI configuration space of the served controller, which has a header
 * of type 0 and three capabilities.
 */

#define PCI_CONFIG_BYTES 4096

struct serve_pci {
    uint8_t bytes[PCI_CONFIG_BYTES];
    uint8_t writable[PCI_CONFIG_BYTES]; /* bits that a write can change */
};

/* This BAR has the MSI-X table, from 0 on, and the pending bits. */
#define PCI_MSIX_BAR 4

/* Sets the state after power-on. bar0_bytes is a power of two. */
void serve_pci_init(struct serve_pci *c, const struct serve_options *o, uint64_t bar0_bytes);
/*
 * Returns the bytes of PCI_MSIX_BAR, a power of two; the second half is the PBA.
 * Without vectors there is no such BAR, and it returns 0.
 */
uint32_t serve_pci_msix_bytes(unsigned vectors);
/* Read and write a range, which must be inside the space. */
void serve_pci_read(const struct serve_pci *c, size_t offset, void *to, size_t len);
/* Returns true if the write asks for a function level reset. */
bool serve_pci_write(struct serve_pci *c, size_t offset, const void *from, size_t len);
bool serve_pci_bus_master(const struct serve_pci *c);

/* --- serve_session.c: the session of one client ----------------------------------------------- */

/*
 * A session implements the messages of the protocol. It starts with
 * VFIO_USER_VERSION, and does not use sockets.
 */

struct serve_session {
    struct sim *sim;
    struct nvme_transport *t;
    const struct serve_options *o;

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

/* serve_region.c: make one access to a region. Return 0 or an errno. */
int serve_region_read(struct serve_session *s, const struct vfio_user_region_access *a, void *to);
int serve_region_write(struct serve_session *s, const struct vfio_user_region_access *a,
                       const void *from);
/* Returns the bytes of a region, or 0 if it is absent. */
uint64_t serve_region_bytes(const struct serve_session *s, uint32_t index);

#endif
