/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads many small pieces of a file in one call and compares each with pread(2).
 *
 *     example_readv /mnt/table.bin 10000 512
 */
#include <errno.h>
#include <fcntl.h>
#include <gpunvme/gpunvme.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct batch {
    const char *name; /* of the file, for messages */
    int fd;
    uint64_t file_size;
    size_t count;  /* number of pieces, at most GPUNVME_PIECES_MAX */
    uint32_t size; /* bytes per piece */
};

static int failed(const char *object, const char *why)
{
    fprintf(stderr, "example_readv: %s: %s\n", object, why);
    return -1;
}

/*
 * Sets piece i to go to element i of the buffer, from a pseudo-random multiple
 * of its size in the file.
 */
static void fill(const struct batch *a, struct gpunvme_piece *pieces)
{
    uint64_t slots = a->file_size / a->size, next = 1;

    for (size_t i = 0; i < a->count; i++) {
        next = next * 6364136223846793005u + 1442695040888963407u;
        pieces[i].file_offset = (next >> 16) % slots * a->size;
        pieces[i].buffer_offset = i * a->size;
        pieces[i].len = a->size;
    }
}

/* Compares each piece, whose result is a byte count or -errno. */
static int compare(const struct batch *a, const struct gpunvme_piece *pieces, const char *got,
                   char *expected)
{
    for (size_t i = 0; i < a->count; i++) {
        if (pieces[i].result < 0)
            return failed(a->name, strerror(-pieces[i].result));
        if (pread(a->fd, expected, a->size, (off_t)pieces[i].file_offset) != pieces[i].result)
            return failed(a->name, "a piece and pread(2) differ in length");
        if (memcmp(got + pieces[i].buffer_offset, expected, (size_t)pieces[i].result) != 0)
            return failed(a->name, "a piece and pread(2) differ");
    }
    return 0;
}

static int read_and_compare(const struct batch *a, struct gpunvme *g, struct gpunvme_file *f,
                            void *memory, struct gpunvme_piece *pieces)
{
    struct gpunvme_result result = {0};
    size_t bytes = a->count * a->size;
    char *got = malloc(bytes + a->size);
    int rc = -1;

    if (!got)
        return failed("memory", strerror(errno));
    fill(a, pieces);
    if (gpunvme_readv(f, memory, bytes, pieces, a->count, &result))
        failed(a->name, gpunvme_error());
    else if (gpunvme_copy_out(g, memory, got, bytes))
        failed("memory", gpunvme_error());
    else
        rc = compare(a, pieces, got, got + bytes);
    free(got);
    if (rc == 0)
        printf("%zu pieces, %" PRIu64 " NVMe commands\n", a->count, result.commands);
    return rc;
}

/*
 * Reads the pieces. The memory and the list end with the handle. A list from
 * gpunvme_pieces_alloc() is not copied.
 */
static int run(const struct batch *a)
{
    struct gpunvme *g;
    struct gpunvme_file *f;
    void *memory;
    struct gpunvme_piece *pieces;
    int rc;

    if (gpunvme_open(NULL, &g))
        return failed("library", gpunvme_error());
    if (gpunvme_file_open(g, a->fd, 0, &f) || gpunvme_alloc(f, a->count * a->size, &memory) ||
        gpunvme_pieces_alloc(f, a->count, &pieces))
        rc = failed("memory", gpunvme_error());
    else
        rc = read_and_compare(a, g, f, memory, pieces);
    gpunvme_close(g);
    return rc;
}

int main(int argc, char **argv)
{
    struct batch a = {0};
    struct stat st;
    int rc;

    if (argc == 4) {
        a.name = argv[1];
        a.count = strtoul(argv[2], NULL, 10);
        a.size = (uint32_t)strtoul(argv[3], NULL, 10);
    }
    if (a.count == 0 || a.count > GPUNVME_PIECES_MAX || a.size == 0 || a.size > 1u << 20) {
        fprintf(stderr, "usage: example_readv FILE COUNT SIZE\n");
        return 2;
    }
    a.fd = open(a.name, O_RDONLY | O_CLOEXEC);
    if (a.fd < 0) {
        failed(a.name, strerror(errno));
        return 1;
    }
    if (fstat(a.fd, &st) || (a.file_size = (uint64_t)st.st_size) < a.size)
        rc = failed(a.name, "shorter than a piece");
    else
        rc = run(&a);
    close(a.fd);
    return rc ? 1 : 0;
}
