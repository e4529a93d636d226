/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Handles standard input, output and error of a program, also of one that was
 * started without them.
 */
#ifndef SUPPORT_STD_FILES_H
#define SUPPORT_STD_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/*
 * Opens a descriptor for each missing standard descriptor. Without it a device
 * could get the number, and messages would be written to the device. The
 * descriptor refuses reads and writes (EBADF), as a closed one does.
 * Returns 0 or -errno. Must be called before anything else is opened.
 */
static inline int std_files_fill(void)
{
    int fd;

    do
        fd = open("/", O_PATH | O_DIRECTORY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd < 0)
        return -errno;
    close(fd);
    return 0;
}

/* Replaces all three by /dev/null, which closes the terminal or the pipes. */
static inline void std_files_leave(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = 0; fd <= STDERR_FILENO && null >= 0; fd++)
        dup2(null, fd);
    if (null > STDERR_FILENO)
        close(null);
}

#endif
