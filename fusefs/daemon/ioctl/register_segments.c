/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads tables of segments. */
#include "fusefs/daemon/ioctl/register_segments.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpunvme/gpunvme_ioctl.h"

static_assert(GPUNVME_MEMORY_SEGMENTS_MAX == GQ_SEGMENTS &&
                  1 + 2 * GPUNVME_MEMORY_SEGMENTS_MAX <= FDSOCKET_FDS,
              "one message has all descriptors");

/* Only a memfd has seals. A read from it does not block. */
static int read_table(int fd, struct gpunvme_memory_segment *table)
{
    struct stat st;

    if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &st))
        return -EINVAL;
    if (st.st_size <= 0 || (size_t)st.st_size % sizeof(*table) ||
        (size_t)st.st_size > GPUNVME_MEMORY_SEGMENTS_MAX * sizeof(*table))
        return -EINVAL;
    if (pread(fd, table, (size_t)st.st_size, 0) != st.st_size)
        return -EINVAL;
    return (int)((size_t)st.st_size / sizeof(*table));
}

int register_segments_read(const struct fdsocket_fds *fds, struct gq_segment *out)
{
    struct gpunvme_memory_segment table[GPUNVME_MEMORY_SEGMENTS_MAX];
    int n = fds->n ? read_table(fds->at[0], table) : -EINVAL;
    size_t next = 1;

    for (int i = 0; i < n; i++) {
        bool exported = table[i].flags == GPUNVME_MEMORY_EXPORTED;

        if ((table[i].flags && !exported) || table[i].reserved || next + exported >= fds->n)
            return -EINVAL;
        out[i] = (struct gq_segment){.fd = fds->at[next],
                                     .exported = exported ? fds->at[next + 1] : -1,
                                     .offset = table[i].offset,
                                     .len = table[i].len};
        next += 1 + (size_t)exported;
    }
    return n < 0 || next == fds->n ? n : -EINVAL;
}
