/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads a file of a gpunvmefs mount into memory of the mount and copies the
 * bytes from there to an ordinary file. It is GPU memory if the mount
 * has a GPU, and shared host memory otherwise.
 *
 *     example_read /mnt/model.bin /tmp/copy
 */
#include <errno.h>
#include <fcntl.h>
#include <gpunvme/gpunvme.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK ((size_t)16 << 20)

static int failed(const char *object, const char *why)
{
    fprintf(stderr, "example_read: %s: %s\n", object, why);
    return -1;
}

/* Appends n bytes of host memory to the copy. */
static int append(int out, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t written = write(out, bytes, n);

        if (written < 0)
            return failed("copy", strerror(errno));
        bytes += written;
        n -= (size_t)written;
    }
    return 0;
}

static int copy(struct gpunvme *g, struct gpunvme_file *f, void *memory, int out, char *host)
{
    struct gpunvme_result result = {0};
    uint64_t bytes = 0, commands = 0;
    ssize_t n;

    while ((n = gpunvme_read(f, memory, CHUNK, bytes, &result)) > 0) {
        if (gpunvme_copy_out(g, memory, host, (size_t)n))
            return failed("memory", gpunvme_error());
        if (append(out, host, (size_t)n))
            return -1;
        bytes += (uint64_t)n;
        commands += result.commands;
    }
    if (n < 0)
        return failed("file", gpunvme_error());
    printf("%" PRIu64 " bytes, %" PRIu64 " NVMe commands\n", bytes, commands);
    return 0;
}

/* Copies the file. gpunvme_close() also closes it and frees the memory. */
static int read_file(int in, int out)
{
    struct gpunvme *g;
    struct gpunvme_file *f;
    void *memory;
    char *host;
    int rc = -1;

    if (gpunvme_open(NULL, &g))
        return failed("library", gpunvme_error());
    host = malloc(CHUNK);
    if (!host)
        failed("memory", strerror(errno));
    else if (gpunvme_file_open(g, in, 0, &f) || gpunvme_alloc(f, CHUNK, &memory))
        failed("memory", gpunvme_error());
    else
        rc = copy(g, f, memory, out, host);
    free(host);
    gpunvme_close(g);
    return rc;
}

int main(int argc, char **argv)
{
    int in, out, rc = -1;

    if (argc != 3) {
        fprintf(stderr, "usage: example_read FILE COPY\n");
        return 2;
    }
    in = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (in < 0) {
        failed(argv[1], strerror(errno));
        return 1;
    }
    out = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (out < 0) {
        failed(argv[2], strerror(errno));
    } else {
        rc = read_file(in, out);
        if (close(out) && rc == 0)
            rc = failed(argv[2], strerror(errno));
    }
    close(in);
    return rc ? 1 : 0;
}
