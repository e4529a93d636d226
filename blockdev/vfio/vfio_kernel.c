/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opens nodes of VFIO and reads the replies of its ioctls, for all of the
 * kernel's interfaces.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>

#include "blockdev/vfio/vfio_internal.h"
#include "support/clock.h"
#include "support/wait.h"

#define POLL_MS 10u

int vfio_query(int fd, unsigned long request, size_t fixed, void *answer)
{
    uint32_t *argsz = answer; /* the first field of every such struct */
    uint32_t told;

    *argsz = (uint32_t)fixed;
    if (ioctl(fd, request, answer))
        return -errno;
    if (*argsz > VFIO_ANSWER)
        return -E2BIG;
    if (*argsz <= fixed)
        return 0;
    /*
     * The kernel has reported the full size of the reply, which may have grown
     * since.
     */
    told = *argsz;
    if (ioctl(fd, request, answer))
        return -errno;
    return *argsz > told ? -E2BIG : 0;
}

const void *vfio_find_cap(const void *answer, size_t len, uint32_t first, uint16_t id, size_t min)
{
    struct vfio_info_cap_header cap;

    /* Offsets must ascend, so that a chain cannot be a loop. */
    for (uint32_t at = first, next; at && at < len && len - at >= sizeof(cap); at = next) {
        memcpy(&cap, (const char *)answer + at, sizeof(cap));
        if (cap.id == id)
            return len - at >= min ? (const char *)answer + at : NULL;
        next = cap.next > at ? cap.next : 0;
    }
    return NULL;
}

bool vfio_wait_turn(uint64_t deadline)
{
    if (now_ns() > deadline)
        return false;
    wait_ms(POLL_MS);
    return true;
}

int vfio_open_node(const char *path, struct reason *why)
{
    uint64_t deadline = deadline_after_ms(VFIO_TURN_MS);
    int fd;

    while ((fd = open(path, O_RDWR | O_CLOEXEC)) < 0 && errno == EBUSY)
        if (!vfio_wait_turn(deadline))
            break;
    if (fd >= 0)
        return fd;
    switch (errno) {
    case ENOENT:
    case ENXIO:
        return reason_set(why, -ENOTSUP,
                          "%s is missing: run modprobe vfio-pci and bind the drive again", path);
    case EACCES:
    case EPERM:
        return reason_set(why, -EACCES, "no rights on %s: run as root, or chown it to the user",
                          path);
    case EBUSY:
        return reason_set(why, -EBUSY, "another program uses it (%s is busy)", path);
    }
    return reason_set(why, -errno, "%s: %s", path, strerror(errno));
}
