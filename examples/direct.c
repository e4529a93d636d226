/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads a file in units of 4 KiB on the direct path, which makes no call into
 * the daemon, and prints the mean time of a read. The mount must have the
 * option direct=.
 *
 *     example_direct /mnt/table.bin
 */
#include <errno.h>
#include <fcntl.h>
#include <gpunvme/gpunvme.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096

static int failed(const char *object, const char *why)
{
    fprintf(stderr, "example_direct: %s: %s\n", object, why);
    return -1;
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Compares a block in host memory with the result of pread(2) at an offset. */
static int compare(int fd, const void *block, ssize_t n, uint64_t offset)
{
    char expected[BLOCK];

    if (pread(fd, expected, BLOCK, (off_t)offset) != n || memcmp(block, expected, (size_t)n) != 0)
        return failed("file", "the direct path and pread(2) differ");
    return 0;
}

static int read_blocks(struct gpunvme_file *f, int fd, void *block)
{
    const uint64_t size = (uint64_t)gpunvme_file_size(f);
    uint64_t reads = 0;
    double spent = 0;

    for (uint64_t at = 0; at < size; at += BLOCK, reads++) {
        double begin = seconds();
        ssize_t n = gpunvme_read(f, block, BLOCK, at, NULL);

        spent += seconds() - begin;
        if (n < 0)
            return failed("file", strerror((int)-n));
        if (compare(fd, block, n, at))
            return -1;
    }
    printf("%" PRIu64 " reads, %.1f us each\n", reads, reads ? spent * 1e6 / (double)reads : 0);
    return 0;
}

/*
 * Measures the reads. gpunvme_close() closes the file, ends the leases and frees
 * the memory.
 */
static int run(const char *name, int fd)
{
    struct gpunvme *g;
    struct gpunvme_file *f;
    void *block;
    int rc;

    if (gpunvme_open(NULL, &g))
        return failed("library", gpunvme_error());
    if (gpunvme_file_open(g, fd, GPUNVME_FILE_DIRECT, &f) || gpunvme_alloc_host(f, BLOCK, &block))
        rc = failed(name, gpunvme_error());
    else
        rc = read_blocks(f, fd, block);
    gpunvme_close(g);
    return rc;
}

int main(int argc, char **argv)
{
    int fd, rc;

    if (argc != 2) {
        fprintf(stderr, "usage: example_direct FILE\n");
        return 2;
    }
    fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        failed(argv[1], strerror(errno));
        return 1;
    }
    rc = run(argv[1], fd);
    close(fd);
    return rc ? 1 : 0;
}
