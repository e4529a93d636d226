/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writes a file of a gpunvmefs mount from a registered buffer. The bytes of an
 * ordinary file are copied to the buffer, and the drive reads them from there.
 *
 *     example_write /tmp/model.bin /mnt/model.bin
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
    fprintf(stderr, "example_write: %s: %s\n", object, why);
    return -1;
}

/*
 * Writes n bytes of memory at an offset of the file. A write may be short,
 * so it is repeated.
 */
static int write_all(struct gpunvme_file *f, const char *memory, size_t n, uint64_t offset)
{
    for (size_t done = 0; done < n;) {
        ssize_t written = gpunvme_write(f, memory + done, n - done, offset + done, NULL);

        if (written <= 0)
            return failed("file", gpunvme_error());
        done += (size_t)written;
    }
    return 0;
}

static int copy(struct gpunvme *g, struct gpunvme_file *f, void *memory, int in, char *host)
{
    uint64_t bytes = 0;
    ssize_t n;

    while ((n = read(in, host, CHUNK)) > 0) {
        if (gpunvme_copy_in(g, memory, host, (size_t)n))
            return failed("memory", gpunvme_error());
        if (write_all(f, memory, (size_t)n, bytes))
            return -1;
        bytes += (uint64_t)n;
    }
    if (n < 0)
        return failed("source", strerror(errno));
    if (fsync(gpunvme_file_fd(f))) /* until then a crash may lose the bytes */
        return failed("file", strerror(errno));
    printf("%" PRIu64 " bytes\n", bytes);
    return 0;
}

/* Writes the file. gpunvme_close() also closes it and frees the memory. */
static int write_file(int in, int out)
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
    else if (gpunvme_file_open(g, out, 0, &f) || gpunvme_alloc(f, CHUNK, &memory))
        failed("memory", gpunvme_error());
    else
        rc = copy(g, f, memory, in, host);
    free(host);
    gpunvme_close(g);
    return rc;
}

int main(int argc, char **argv)
{
    int in, out, rc = -1;

    if (argc != 3) {
        fprintf(stderr, "usage: example_write SOURCE FILE\n");
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
        rc = write_file(in, out);
        close(out);
    }
    close(in);
    return rc ? 1 : 0;
}
