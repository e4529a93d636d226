/* SPDX-License-Identifier: BSD-2-Clause */
/* Replaces a mount by a socket and an ioctl that record the messages of REGISTER. */
#ifndef TESTS_CLIENT_LIB_SEGMENTS_RIG_H
#define TESTS_CLIENT_LIB_SEGMENTS_RIG_H

#include <stdint.h>
#include <sys/cdefs.h>

#include "gpunvme/gpunvme_ioctl.h"

__BEGIN_DECLS

struct segments_rig;
struct connection;
struct gpunvme_buffer;

#define SEGMENTS_RIG_TOKEN 0x1234567890abcdefull

struct segments_rig_seen {
    uint32_t kind; /* 0: nothing was registered */
    uint64_t offset, len, token;
    int descriptors;   /* of the message */
    uint32_t segments; /* elements of the table in the first one */
    struct gpunvme_memory_segment table[8];
};

/* Opens a connection to a mount with a CUDA executor. Returns NULL on an error. */
struct segments_rig *segments_rig_open(unsigned tier, const char *transport);
struct connection *segments_rig_connection(struct segments_rig *r);
/* Closes the buffer and the mount. Returns the record, which is valid until the next open. */
const struct segments_rig_seen *segments_rig_close(struct segments_rig *r,
                                                   struct gpunvme_buffer *b);

__END_DECLS

#endif
