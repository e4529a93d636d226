/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A program that has only the installed gpunvme: connects to a folder that is no gpunvmefs mount.
 */
#include <gpunvme/gpunvme.h>
#include <stdio.h>

int main(void)
{
    struct connection *g = NULL;
    int rc = connection_open("/", &g);

    if (rc == 0) {
        connection_close(g);
        fprintf(stderr, "uses_library: /: taken for a gpunvmefs mount\n");
        return 1;
    }
    return gpunvme_error()[0] == '\0';
}
