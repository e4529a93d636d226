/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The other process of the IPC test: allocates GPU memory, writes its handle to stdout, waits for
 * a byte on stdin, then writes what the memory holds to stdout.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/gq_test_mem.h"

static int serve(struct test_mem *m, unsigned char *copy)
{
    unsigned char ipc[64];

    memset(copy, 0xa5, m->len);
    test_mem_write(m, 0, copy, m->len);
    if (!test_mem_export(m, ipc) || fwrite(ipc, sizeof(ipc), 1, stdout) != 1 || fflush(stdout))
        return 1;
    if (getchar() == EOF)
        return 1;
    test_mem_read(m, 0, copy, m->len);
    return fwrite(copy, m->len, 1, stdout) != 1 || fflush(stdout);
}

int main(int argc, char **argv)
{
    struct test_mem m;
    unsigned char *copy;
    int err = 1;

    if (argc != 2 || !test_mem_alloc(true, strtoul(argv[1], NULL, 10), &m))
        return 1;
    copy = malloc(m.len);
    if (copy)
        err = serve(&m, copy);
    free(copy);
    test_mem_free(&m);
    return err;
}
