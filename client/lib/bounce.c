/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the bounce path of the library. This file manages the options and
 * the pipeline of a connection, and checks arguments.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "client/lib/call_stats.h"
#include "client/lib/client_internal.h"
#include "client/lib/nvtx_range.h"
#include "client/lib/pipeline.h"

#define DEFAULT_THREADS 8 /* the mount serves that many transfers at once */
#define DEFAULT_CHUNK   ((size_t)2 << 20)
#define MAX_CHUNK       ((size_t)256 << 20)

static unsigned default_threads(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    if (n < 2) /* one half is filled while the other one is emptied */
        return 2;
    return n < DEFAULT_THREADS ? (unsigned)n : DEFAULT_THREADS;
}

int bounce_set_options(struct connection *g, const struct gpunvme_options *options)
{
    if (options->path > GPUNVME_PATH_BOUNCE || options->threads > PIPELINE_MAX_THREADS ||
        options->chunk % 4096 || options->chunk > MAX_CHUNK)
        return gpunvme_fail(-EINVAL, "path, threads or chunk out of range");
    g->options = *options;
    if (!g->options.threads)
        g->options.threads = default_threads();
    if (!g->options.chunk)
        g->options.chunk = DEFAULT_CHUNK;
    pipeline_free(g->pipeline);
    g->pipeline = NULL;
    return 0;
}

/* Returns the pipeline, which the first transfer creates. */
static int get_pipeline(struct connection *g, struct pipeline **out)
{
    int err = 0;

    *out = g->pipeline;
    if (*out)
        return 0;
    pthread_mutex_lock(&g->lock);
    *out = g->pipeline;
    if (!*out)
        err = pipeline_new(g, g->options.threads, g->options.chunk, out);
    if (!err)
        g->pipeline = *out;
    pthread_mutex_unlock(&g->lock);
    return err;
}

int gpunvme_warm_pipeline(struct connection *g, int device)
{
    struct cuda_driver *cu;
    struct pipeline *p;
    int err = gpunvme_cuda(g, &cu);

    if (!err)
        err = get_pipeline(g, &p);
    return err ? err : pipeline_warm(p, cu, device);
}

static int check_mount(const struct connection *g, int fd)
{
    struct statx st;

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) != 0)
        return gpunvme_fail(-errno, "transfer: %s", strerror(errno));
    if (makedev(st.stx_dev_major, st.stx_dev_minor) != g->dev)
        return gpunvme_fail(-ENOTTY, "not a file of the buffer's mount");
    return 0;
}

/*
 * Applies the checks of the mount's ioctls, because otherwise the accepted arguments would depend
 * on the length. read(2) and READ refuse a known file that is not open for reading.
 */
static int bounce_check_file(const struct connection *g, const struct range *r)
{
    if (r->known && !r->write)
        return 0;
    int flags = fcntl(r->fd, F_GETFL);
    if (flags < 0)
        return gpunvme_fail(-errno, "transfer: %s", strerror(errno));
    int err = g->fd >= 0 && !r->known ? check_mount(g, r->fd) : 0;
    if (err)
        return err;
    int mode = flags & O_ACCMODE;
    if ((flags & O_PATH) || mode == (r->write ? O_RDONLY : O_WRONLY))
        return gpunvme_fail(-EBADF, "the file is not open for that");
    if (r->write && (flags & O_APPEND))
        return gpunvme_fail(-EBADF, "the file is open with O_APPEND");
    return 0;
}

static int bounce_check_range(const struct gpunvme_buffer *b, const struct range *r)
{
    if (r->buffer_offset > b->len || r->len > b->len - r->buffer_offset)
        return gpunvme_fail(-ERANGE, "transfer past the end of the buffer");
    if (r->file_offset > INT64_MAX || r->len > INT64_MAX - r->file_offset)
        return gpunvme_fail(-EOVERFLOW, "transfer past the largest offset of a file");
    return 0;
}

/* --- Transfers ------------------------------------------------------------------------------- */

/*
 * Ignores captures of this thread: pinning and waiting would invalidate a capture of the
 * application, which cannot know that its transfer takes the pipeline.
 */
static struct cuda_driver *ignore_captures(const struct gpunvme_buffer *b, int *mode)
{
    struct cuda_driver *cuda = b->device == CUDA_NO_DEVICE ? NULL : b->owner->cuda;

    *mode = cuda ? cuda_driver_ignore_captures(cuda) : 0;
    return cuda;
}

size_t gpunvme_transfer_bounced(struct gpunvme_buffer *b, const struct range *r,
                                struct gpunvme_result *result, int *err)
{
    struct cuda_driver *cuda;
    struct pipeline *p;
    int mode;

    *err = bounce_check_range(b, r);
    if (!*err)
        *err = bounce_check_file(b->owner, r);
    if (*err)
        return 0;
    uint64_t begun = now_ns();
    nvtx_range_begin(r->write ? "write, bounced" : "read, bounced", r->len);
    cuda = ignore_captures(b, &mode);
    *err = get_pipeline(b->owner, &p);
    size_t done = *err ? 0 : pipeline_run(p, b, r, result, err);
    if (cuda)
        cuda_driver_heed_captures(cuda, mode);
    nvtx_range_end();
    if (done)
        result->path = GPUNVME_PATH_BOUNCE;
    unsigned op = r->write ? GPUNVME_OP_WRITE : GPUNVME_OP_READ;
    call_stats_count(b->owner, op, GPUNVME_PATH_BOUNCE, done, begun);
    call_stats_pipeline(b->owner, op, done);
    return done;
}

/* --- Lists ----------------------------------------------------------------------------------- */

/*
 * Reads the pieces that are too long for a part of a list, one after another.
 * All threads take part in each read.
 */
static int read_long_pieces(struct pipeline *pipeline, const struct staging_list *l,
                            uint64_t *bytes, struct gpunvme_result *result)
{
    int err = 0;

    for (size_t i = 0; i < l->n; i++) {
        struct gpunvme_piece *p = &l->pieces[i];
        struct range r = range_of_piece(l->fd, p);
        if (p->result != -E2BIG)
            continue;
        size_t done = err == -EINTR ? 0 : pipeline_run(pipeline, l->b, &r, result, &err);
        p->result = err == -EINTR ? -ECANCELED : err ? err : (int32_t)done;
        *bytes += done;
    }
    return err == -EINTR ? err : 0;
}

int gpunvme_readv_bounced(struct gpunvme_buffer *b, int fd, struct gpunvme_piece *pieces, size_t n,
                          struct gpunvme_result *result)
{
    struct staging_list l = {.b = b, .fd = fd, .pieces = pieces, .n = n};
    struct cuda_driver *cuda;
    struct pipeline *p;
    uint64_t bytes = 0, begun = now_ns();
    int err = bounce_check_file(b->owner, &(struct range){.fd = fd}), mode;

    for (size_t i = 0; i < n; i++)
        pieces[i].result = -ECANCELED;
    if (err)
        return err;
    nvtx_range_begin("readv, bounced", n);
    cuda = ignore_captures(b, &mode);
    err = get_pipeline(b->owner, &p);
    if (!err)
        err = pipeline_readv(p, &l, &bytes, result);
    if (!err)
        err = read_long_pieces(p, &l, &bytes, result);
    if (cuda)
        cuda_driver_heed_captures(cuda, mode);
    nvtx_range_end();
    if (bytes)
        result->path = GPUNVME_PATH_BOUNCE;
    call_stats_count(b->owner, GPUNVME_OP_READV, GPUNVME_PATH_BOUNCE, bytes, begun);
    call_stats_pipeline(b->owner, GPUNVME_OP_READV, bytes);
    return err;
}
