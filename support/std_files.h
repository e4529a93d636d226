/* SPDX-License-Identifier: BSD-2-Clause */
/* Standard input, output and error of a program that was started without one of them. */
#ifndef SUPPORT_STD_FILES_H
#define SUPPORT_STD_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/*
 * A device would be opened as the descriptor that is missing, and messages be written to it. What
 * takes its place refuses reads and writes (EBADF), as a closed descriptor does. 0 or -errno;
 * called before anything is opened.
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

#endif
