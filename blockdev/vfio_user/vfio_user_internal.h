/* SPDX-License-Identifier: BSD-2-Clause */
/* The parts of the vfio-user client, for its own files and their tests. */
#ifndef BLOCKDEV_VFIO_USER_VFIO_USER_INTERNAL_H
#define BLOCKDEV_VFIO_USER_VFIO_USER_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/nvme/nvme_iova.h"
#include "blockdev/transport.h"
#include "blockdev/vfio_user/vfio_user_spec.h"

#ifdef __cplusplus
extern "C" {
#endif

#define VFIO_USER_MAX_FDS     8u    /* taken with one message, and announced to the server */
#define VFIO_USER_MAX_COMMAND 256u  /* bytes of payload we send */
#define VFIO_USER_MAX_REPLY   4096u /* bytes of payload we take */
#define VFIO_USER_MAX_AREAS   64u   /* of one region */

/* Buffer for a function's error in words. */
struct vfio_user_why {
    char *text;
    size_t len;
};
/* Returns err. */
__attribute__((format(printf, 3, 4))) int vfio_user_fail(const struct vfio_user_why *why, int err,
                                                         const char *format, ...);

/*
 * Time for which register accesses find a server silent before the connection is ended, unless
 * another is given: a reset waits for it. Maps and unmaps alone never end it.
 */
#define VFIO_USER_SILENCE_MS 20000u
/* Time beyond the deadline in which a message that has begun to come must be complete. */
#define VFIO_USER_REST_MS 20000u
/* How long a register access or a reset waits at a time for the late reply to another command. */
#define VFIO_USER_LATE_MS 100u
/* The same of a map or unmap, once the reply is late by another deadline. */
#define VFIO_USER_MOMENT_MS 1u

/* One connection. No locks inside: one call at a time. */
struct vfio_user_conn {
    int fd;
    unsigned timeout_ms; /* of each call */
    unsigned silence_ms; /* of vfio_user_opts; 0 while it is opened: no reply may be late */
    uint16_t id;         /* of the last command */
    bool late;           /* its reply is still to come: atomic, read without the lock */
    uint16_t late_command;
    uint64_t late_since; /* ns, while late: when its deadline passed */
    uint64_t read_since; /* ns, while late: when a register was first accessed; 0: never */
    bool gone;           /* broken for good: shut down, nothing is sent or read any more */
    const char *trouble; /* what the server did wrong when it is gone by -EPROTO */
};

struct vfio_user_fds {
    int fd[VFIO_USER_MAX_FDS];
    unsigned n;
};
void vfio_user_close_fds(struct vfio_user_fds *fds);

/* A command and its reply. */
struct vfio_user_msg {
    uint16_t command;
    const void *payload;
    size_t len;
    int fd; /* sent along; -1: none */
    void *reply;
    size_t reply_max, reply_len;
    struct vfio_user_fds *fds; /* which come with the reply: the caller's after success; or NULL */
    bool counts; /* a register access or a reset: a silent server is given up at some time */
    /* For vfio_user_exchange(), not for the connection: */
    unsigned late_ms; /* how long it waits for the late reply to an earlier command */
    uint64_t iova;    /* of the DMA region that it maps or unmaps */
};

/*
 * Sends the command and waits for its reply; no earlier reply is late. 0. The server's errno,
 * positive, when it refuses: the connection is as good as before. -EAGAIN: the reply is late, and
 * vfio_user_take_late() must take it before the next command. Otherwise the connection is gone:
 * -ETIMEDOUT (only while it is opened), -ECONNRESET (the server closed it), -EPROTO (it broke the
 * protocol), -EIO (it was gone before).
 */
int vfio_user_call(struct vfio_user_conn *c, struct vfio_user_msg *m);
/*
 * Waits up to ms for the late reply, and drops it: 0, the server's errno, -EAGAIN: it has not come.
 * Otherwise the connection is gone, as above; -ETIMEDOUT: calls that count (vfio_user_msg) found
 * the server silent for silence_ms.
 */
int vfio_user_take_late(struct vfio_user_conn *c, unsigned ms, bool counts);
/* Ends the connection because of what a reply says; trouble is a constant. Returns -EPROTO. */
int vfio_user_break(struct vfio_user_conn *c, const char *trouble);
/* Puts the reason of a call's rc, which is not 0, into why; returns -ETIMEDOUT or -EPROTO. */
int vfio_user_explain(const struct vfio_user_conn *c, uint16_t command, int rc,
                      const struct vfio_user_why *why);

/*
 * Properties of the server, parsed from the payloads of its replies. Each function checks every
 * field that it uses: 0, -EPROTO (invalid), -ENOTSUP (cannot be used).
 */
struct vfio_user_limits {
    uint32_t max_dma_maps;
};
int vfio_user_parse_version(const void *payload, size_t len, struct vfio_user_limits *out,
                            const struct vfio_user_why *why);

int vfio_user_parse_device(const void *payload, size_t len, bool *can_reset,
                           const struct vfio_user_why *why);

/* areas: what can be mapped; inside the region, not empty, no two overlap. */
struct vfio_user_region {
    uint64_t size;
    uint64_t offset; /* of the region in its file */
    unsigned n_areas;
    struct vfio_user_sparse_area areas[VFIO_USER_MAX_AREAS];
};
int vfio_user_parse_region(const void *payload, size_t len, uint32_t index,
                           struct vfio_user_region *out, const struct vfio_user_why *why);

/* The doorbells in BAR0 as a part of a file: whole pages. */
struct vfio_user_doorbells {
    unsigned area; /* which area of the region: tells which descriptor */
    uint64_t file_offset;
    size_t len;
};
int vfio_user_find_doorbells(const struct vfio_user_region *bar0, struct vfio_user_doorbells *out,
                             const struct vfio_user_why *why);

struct vfio_user {
    struct nvme_transport t;
    bool can_reset;
    pthread_mutex_t lock; /* protects all below: one message at a time, and the map of regions */
    struct vfio_user_conn conn;
    struct nvme_iova iova;
    uint64_t late_iova; /* of the DMA_MAP or DMA_UNMAP whose reply is late */
    uint64_t abandoned; /* a map whose caller has not waited, to be unmapped next; 0: none */
};

/*
 * vfio_user.c. The first three with the lock held, or before another thread has the transport.
 */
/*
 * Takes the late reply to an earlier command, and unmaps what an earlier map has left behind; then
 * sends the command: vfio_user_call(). -EAGAIN also when an earlier reply is still to come, and the
 * command was not sent. Detaches the doorbells when the connection ends.
 */
int vfio_user_exchange(struct vfio_user *u, struct vfio_user_msg *m);
/* REGION_READ or REGION_WRITE of up to 8 bytes; *data is set on success only. */
int vfio_user_access(struct vfio_user *u, uint16_t command, uint32_t region, uint64_t offset,
                     void *data, uint32_t count);
int vfio_user_command_on(struct vfio_user *u); /* the PCI command register */
void vfio_user_close(struct nvme_transport *t);
extern const struct nvme_transport_ops vfio_user_ops;

/*
 * vfio_user_open() from a connected socket on, which is taken: closed by the transport, or
 * here when it fails.
 */
int vfio_user_start(int socket, unsigned timeout_ms, struct nvme_transport **out,
                    const struct vfio_user_why *why);

#ifdef __cplusplus
}
#endif

#endif
