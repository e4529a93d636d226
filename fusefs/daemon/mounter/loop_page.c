/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Attaches a page of memory to a loop device.
 */
#include "fusefs/daemon/mounter/loop_page.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096u
/* Maximum attempts: another process may take the free device first. */
#define TRIES 16u

static int loop_page_make_page(void)
{
    int fd = memfd_create("gpunvmefs", MFD_CLOEXEC);

    if (fd < 0)
        return -errno;
    if (ftruncate(fd, PAGE) == 0)
        return fd;
    int err = -errno;
    close(fd);
    return err;
}

/*
 * Attaches the page to the device that the kernel reports as free. Returns a
 * descriptor, or -EBUSY if another process has taken the device.
 */
static int mounter_loop_page_attach(int control, int page)
{
    const struct loop_config config = {
        .fd = (unsigned)page, .block_size = PAGE, .info.lo_flags = LO_FLAGS_AUTOCLEAR};
    char path[32];
    int number = ioctl(control, LOOP_CTL_GET_FREE);

    if (number < 0)
        return -errno;
    snprintf(path, sizeof(path), "/dev/loop%d", number);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (ioctl(fd, LOOP_CONFIGURE, &config) == 0)
        return fd;
    int err = -errno;
    close(fd);
    return err;
}

int loop_page_attach(dev_t *device)
{
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    int page = control < 0 ? -errno : loop_page_make_page();
    int fd = page < 0 ? page : -EBUSY;
    struct stat st;

    for (unsigned i = 0; page >= 0 && fd == -EBUSY && i < TRIES; i++)
        fd = mounter_loop_page_attach(control, page);
    if (page >= 0)
        close(page);
    if (control >= 0)
        close(control);
    if (fd >= 0 && fstat(fd, &st) == 0)
        *device = st.st_rdev;
    return fd;
}
