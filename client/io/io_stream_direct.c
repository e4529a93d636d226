/* SPDX-License-Identifier: BSD-2-Clause */
/* A reader has a stream and a word of its own; the ring stays registered while the plan lasts. */
#include "client/io/io_stream_direct.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client/io/io.h"
#include "client/lib/direct.h"

#define WORDS_LEN 4096 /* a word for each reader */

struct direct_file {
    struct gpunvme_io_file *io_file;
    struct gpunvme_file *file;
};

struct io_stream_direct {
    struct gpunvme_io *io;
    struct gpunvme_direct *direct;
    struct direct_file *files;
    size_t n;
    struct region_use ring; /* held: the ring stays registered */
    bool has_ring;
    struct cuda_driver *cuda; /* NULL: the mount has no GPU */
    int device;
    int64_t *words;  /* results of the readers' reads, */
    uint64_t mapped; /* and where they are for the GPU; 0: not mapped */
    unsigned readers;
    void *streams[];
};

static struct gpunvme_file *find_file(const struct io_stream_direct *d,
                                      const struct gpunvme_io_file *io_file)
{
    for (size_t i = 0; i < d->n; i++) {
        if (d->files[i].io_file == io_file)
            return d->files[i].file;
    }
    return NULL;
}

static int open_files(struct io_stream_direct *d, const struct gpunvme_range *ranges, size_t n)
{
    d->files = calloc(n, sizeof(*d->files));
    if (!d->files)
        return gpunvme_fail(-ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        struct gpunvme_io_file *f = ranges[i].file;
        if (find_file(d, f))
            continue;
        int err = leased_file_open(d->direct, f->fd, false, &d->files[d->n].file);
        if (err)
            return err;
        d->files[d->n++].io_file = f;
    }
    return 0;
}

static int check_files(const struct gpunvme_range *ranges, size_t n)
{
    if (ranges[0].file->io->options.path == GPUNVME_PATH_BOUNCE)
        return gpunvme_fail(-ENOTSUP, "the options ask for the bounce path");
    for (size_t i = 0; i < n; i++) {
        if (ranges[i].file->why[0] || ranges[i].file->mount != ranges[0].file->mount)
            return gpunvme_fail(-ENOTSUP, "the direct path of a plan reads files of one mount");
    }
    return 0;
}

/* The ring as a buffer of the mount, which the direct path knows. */
static int hold_ring(struct io_stream_direct *d, struct gpunvme_io_file *f, void *ring, size_t len)
{
    int err = io_use(f, ring, len, &d->ring);

    if (err)
        return err;
    d->has_ring = true;
    const struct gpunvme_buffer *b = d->ring.buffer;
    if (b->owner != f->mount->g || !b->shared)
        return gpunvme_fail(-ENOTSUP, "the ring is not in memory that the mount reaches%s%s",
                            b->shared ? "" : ": ", b->shared ? "" : b->why_not);
    return 0;
}

/* On the GPU that has the kernels, wherever the ring is; none without a GPU. */
static int make_streams(struct io_stream_direct *d)
{
    d->cuda = d->direct->space.cuda;
    d->device = d->direct->space.device;
    if (!d->cuda)
        return 0;
    int err =
        cuda_driver_map(d->cuda, d->device, d->words, WORDS_LEN, CUDA_HOST_MEMORY, &d->mapped);
    for (unsigned i = 0; !err && i < d->readers; i++)
        err = cuda_driver_stream_urgent(d->cuda, d->device, &d->streams[i]);
    return err;
}

static int direct_start(struct io_stream_direct *d, const struct gpunvme_range *ranges, size_t n,
                        void *ring, size_t ring_len)
{
    void *words = mmap(NULL, WORDS_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int err = check_files(ranges, n);

    if (words == MAP_FAILED)
        return gpunvme_fail(-ENOMEM, "out of memory");
    d->words = words;
    if (!err)
        err = hold_ring(d, ranges[0].file, ring, ring_len);
    if (!err)
        err = gpunvme_direct_open(ranges[0].file->mount->g, NULL, &d->direct);
    if (!err)
        err = open_files(d, ranges, n);
    return err ? err : make_streams(d);
}

int io_stream_direct_open(struct gpunvme_io *io, const struct gpunvme_range *ranges, size_t n,
                          void *ring, size_t ring_len, unsigned readers,
                          struct io_stream_direct **out)
{
    struct io_stream_direct *d = calloc(1, sizeof(*d) + readers * sizeof(d->streams[0]));

    if (!d)
        return gpunvme_fail(-ENOMEM, "out of memory");
    d->io = io;
    d->readers = readers;
    int err = direct_start(d, ranges, n, ring, ring_len);
    if (err)
        io_stream_direct_close(d);
    else
        *out = d;
    return err;
}

ssize_t io_stream_direct_read(struct io_stream_direct *d, unsigned reader,
                              const struct gpunvme_range *r, void *to)
{
    int64_t *word = &d->words[reader];
    int64_t *for_gpu =
        d->mapped ? (int64_t *)(uintptr_t)(d->mapped + reader * sizeof(*word)) : word;
    int err = gpunvme_read_async(find_file(d, r->file), to, r->len, r->offset, d->streams[reader],
                                 for_gpu);

    if (!err && d->cuda)
        err = cuda_driver_copy_wait(d->cuda, d->device, d->streams[reader]);
    if (err)
        return err;
    int64_t n = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    return n < 0 ? gpunvme_fail((int)n, "direct path: error %d", (int)-n) : (ssize_t)n;
}

void io_stream_direct_close(struct io_stream_direct *d)
{
    if (!d)
        return;
    gpunvme_direct_close(d->direct);
    for (unsigned i = 0; d->cuda && i < d->readers; i++) {
        if (d->streams[i])
            cuda_driver_stream_free(d->cuda, d->device, d->streams[i]);
    }
    if (d->mapped)
        cuda_driver_unpin(d->cuda, d->device, d->words);
    if (d->has_ring)
        regions_release(d->io->regions, &d->ring);
    if (d->words)
        munmap(d->words, WORDS_LEN);
    free(d->files);
    free(d);
}
