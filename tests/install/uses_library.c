/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A program that has only the installed gpunvme: opens a direct file that no mount serves.
 */
#include <fcntl.h>
#include <gpunvme/gpunvme.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    struct gpunvme *g = NULL;
    struct gpunvme_file *f = NULL;
    int fd = open("/proc/self/exe", O_RDONLY);

    if (fd < 0 || gpunvme_open(NULL, &g) != 0)
        return 2;
    if (gpunvme_file_open(g, fd, GPUNVME_FILE_DIRECT, &f) == 0) {
        fprintf(stderr, "uses_library: /proc: taken for a gpunvmefs mount\n");
        return 1;
    }
    bool told = gpunvme_error()[0] != '\0';
    gpunvme_close(g);
    close(fd);
    return told ? 0 : 1;
}
