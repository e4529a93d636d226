/* SPDX-License-Identifier: BSD-2-Clause */
/* Sends segments of VMM memory over the mount's socket. */
#include "client/lib/segment_table.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/error.h"
#include "client/lib/socket.h"

static_assert(1 + 2 * GPUNVME_MEMORY_SEGMENTS_MAX <= SOCKET_SENT_FDS,
              "one message has all descriptors");

/* Returns a memfd with the table, or -errno. */
static int make_table(const struct cuda_segment *segments, unsigned n)
{
    struct gpunvme_memory_segment table[GPUNVME_MEMORY_SEGMENTS_MAX] = {{0}};
    int fd = memfd_create("gpunvme-segments", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    for (unsigned i = 0; i < n; i++) {
        table[i].len = segments[i].len;
        table[i].flags = segments[i].exported >= 0 ? GPUNVME_MEMORY_EXPORTED : 0;
    }
    if (write(fd, table, n * sizeof(table[0])) == (ssize_t)(n * sizeof(table[0])))
        return fd;
    close(fd);
    return -ENOMEM;
}

int segment_table_send(struct connection *g, const struct cuda_segment *segments, unsigned n,
                       uint64_t *token)
{
    int fds[1 + 2 * GPUNVME_MEMORY_SEGMENTS_MAX];
    unsigned used = 0;
    int table = make_table(segments, n);

    if (table < 0)
        return gpunvme_fail(table, "table of segments: %s", strerror(-table));
    fds[used++] = table;
    for (unsigned i = 0; i < n; i++) {
        fds[used++] = segments[i].handle;
        if (segments[i].exported >= 0)
            fds[used++] = segments[i].exported;
    }
    int err = socket_send_several(g, fds, used, token);
    close(table);
    return err;
}
