/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls the ioctls of a connection's mount. */
#include <errno.h>
#include <sys/ioctl.h>

#include "client/lib/client_internal.h"

int gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size)
{
    struct gpunvme_abi *abi = arg;

    *abi = (struct gpunvme_abi){.size = size, .version = GPUNVME_ABI_VERSION};
    return ioctl(fd, request, arg) == 0 ? 0 : -errno;
}
