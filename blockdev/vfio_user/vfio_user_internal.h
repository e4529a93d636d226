/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the parts of the vfio-user client, for its own files and their
 * tests.
 */
#ifndef BLOCKDEV_VFIO_USER_VFIO_USER_INTERNAL_H
#define BLOCKDEV_VFIO_USER_VFIO_USER_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "blockdev/nvme/nvme_iova.h"
#include "blockdev/pci/pci_sysfs.h"
#include "blockdev/transport.h"
#include "blockdev/vfio_user/vfio_user_spec.h"
#include "support/fd_message.h"
#include "support/reason.h"

__BEGIN_DECLS

#define VFIO_USER_MAX_FDS     8u    /* accepted with one message, and announced to the server */
#define VFIO_USER_MAX_COMMAND 256u  /* bytes of payload of a command */
#define VFIO_USER_MAX_REPLY   4096u /* bytes of payload of a reply */
#define VFIO_USER_MAX_AREAS   64u   /* per region */

/*
 * Default of silence_ms. The connection ends when register accesses have had no
 * answer in time for this long. Maps and unmaps never end the connection.
 */
#define VFIO_USER_SILENCE_MS 20000u
/*
 * Time after the deadline in which a message that has started to arrive must be
 * complete.
 */
#define VFIO_USER_REST_MS 20000u
/* Time that an access or reset waits at once for a late reply. */
#define VFIO_USER_LATE_MS 100u
/*
 * Time that a map or unmap waits for a late reply after its second deadline has
 * passed.
 */
#define VFIO_USER_MOMENT_MS 1u

/* One connection, with one call at a time. The caller locks. */
struct vfio_user_conn {
    int fd;
    unsigned timeout_ms; /* per call */
    unsigned silence_ms; /* see bd_open_opts; 0 during open: no reply may be late */
    uint16_t id;         /* ID of the last command */
    bool late;           /* a reply is still missing; atomic, read without the lock */
    uint16_t late_command;
    uint64_t late_since; /* ns, while late: the time when its deadline passed */
    /*
     * Time in ns of the first register access or reset since the last one that was
     * answered in time; 0 if there was none.
     */
    uint64_t slow_since;
    bool gone;           /* broken for good: shut down, nothing is sent or read */
    const char *trouble; /* the server's mistake if it is gone by -EPROTO */
};

/* Holds a command and its reply. */
struct vfio_user_msg {
    uint16_t command;
    const void *payload;
    size_t len;
    int fd; /* descriptor to send, or -1 */
    void *reply;
    size_t reply_max, reply_len;
    /* Gets the reply's descriptors, on success the caller's; or NULL. */
    struct fd_message *fds;
    bool counts; /* a register access or reset: these eventually end a silent connection */
    /* The following field is for vfio_user_exchange() only. */
    unsigned late_ms; /* wait for the late reply to an earlier command */
    uint64_t iova;    /* IOVA of the DMA region to map or unmap */
};

/*
 * Sends the command and waits for its reply; no earlier reply may be late.
 * Returns 0, or the server's errno as a positive number if it refuses; the
 * connection stays usable. -EAGAIN means that the reply is late;
 * vfio_user_take_late() must take it before the next command. After any other
 * error the connection is gone: -ETIMEDOUT (during open, or if the server has
 * answered calls with `counts` late for silence_ms), -ECONNRESET (the server
 * closed it), -EPROTO (it broke the protocol), -EIO (it was gone
 * before).
 */
int vfio_user_call(struct vfio_user_conn *c, struct vfio_user_msg *m);
/*
 * Waits up to ms for the late reply and drops it. Returns 0, the server's
 * errno, or -EAGAIN if it has not arrived. After another error the connection
 * is gone, as above; -ETIMEDOUT means that calls with `counts` (vfio_user_msg)
 * found the server silent for silence_ms.
 */
int vfio_user_take_late(struct vfio_user_conn *c, unsigned ms, bool counts);
/*
 * Ends the connection because of a reply's content. trouble is a constant
 * string. Returns -EPROTO.
 */
int vfio_user_break(struct vfio_user_conn *c, const char *trouble);
/* Writes the reason of rc, not 0, to why: -ETIMEDOUT or -EPROTO. */
int vfio_user_explain(const struct vfio_user_conn *c, uint16_t command, int rc, struct reason *why);

/*
 * The following functions parse properties of the server from the payloads of
 * its replies. Each function checks every field that it uses and returns 0,
 * -EPROTO (invalid) or -ENOTSUP (unusable).
 */
int vfio_user_parse_version(const void *payload, size_t len, unsigned *max_dma_maps,
                            struct reason *why);
int vfio_user_parse_device(const void *payload, size_t len, bool *can_reset, struct reason *why);

/*
 * Describes a region and its mappable areas, which are disjoint and not empty.
 */
struct vfio_user_region {
    uint64_t size;
    uint64_t offset; /* offset of the region in its file */
    unsigned n_areas;
    struct vfio_region_sparse_mmap_area areas[VFIO_USER_MAX_AREAS];
};
int vfio_user_parse_region(const void *payload, size_t len, uint32_t index,
                           struct vfio_user_region *out, struct reason *why);

/* Describes the doorbells in BAR0 as a part of a file, in whole pages. */
struct vfio_user_doorbells {
    unsigned area; /* index of the area, which selects the descriptor */
    uint64_t file_offset;
    size_t len;
};
int vfio_user_find_doorbells(const struct vfio_user_region *bar0, struct vfio_user_doorbells *out,
                             struct reason *why);

struct vfio_user {
    struct nvme_transport t;
    bool can_reset;
    pthread_mutex_t lock; /* protects the fields below: one message at a time */
    struct vfio_user_conn conn;
    struct nvme_iova iova;
    uint64_t late_iova; /* IOVA of the DMA_MAP or DMA_UNMAP whose reply is late */
    uint64_t abandoned; /* region to unmap whose map's caller has not waited; 0: none */
};

/*
 * vfio_user.c. For the first three functions the caller holds the lock, or no
 * other thread has the transport yet.
 */
/*
 * Takes the late reply to an earlier command, unmaps the region of an abandoned
 * map, then sends the command by vfio_user_call(). Also returns -EAGAIN,
 * without sending, if an earlier reply is still missing. Detaches the doorbells
 * if the connection ends.
 */
int vfio_user_exchange(struct vfio_user *u, struct vfio_user_msg *m);
/*
 * Sends REGION_READ or REGION_WRITE of up to 8 bytes. *data is set on success
 * only.
 */
int vfio_user_access(struct vfio_user *u, uint16_t command, uint32_t region, uint64_t offset,
                     void *data, uint32_t count);
int vfio_user_command_on(struct vfio_user *u); /* sets the PCI command register */
void vfio_user_close(struct nvme_transport *t);
extern const struct nvme_transport_ops vfio_user_ops;

/*
 * Implements vfio_user_open() on a connected socket. Takes ownership of the
 * socket: the transport closes it, or this function closes it on an error.
 */
int vfio_user_start(int socket, unsigned timeout_ms, struct nvme_transport **out,
                    struct reason *why);

__END_DECLS

#endif
