/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads a file into GPU memory in the ways that exist without this project. */
#include "bench/lib/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/lib/bench_report.h"

#ifdef HAVE_LIBURING
#include <liburing.h>
#endif
#ifdef HAVE_CUFILE
#include <cufile.h>
#endif

int peers_open(struct peer_job *job)
{
    int err = 0;

    for (unsigned i = 0; i < 2 * PEER_THREADS && !err; i++)
        err = bench_stream_open(&job->streams[i], job->to->on_gpu, PEER_CHUNK);
    return err;
}

void peers_close(struct peer_job *job)
{
    for (unsigned i = 0; i < 2 * PEER_THREADS; i++)
        bench_stream_close(&job->streams[i]);
}

static int map_and_copy(struct peer_job *job, unsigned threads)
{
    void *map = mmap(NULL, job->size, PROT_READ, MAP_SHARED, job->fd, 0);
    int err;

    (void)threads;
    if (map == MAP_FAILED)
        return -errno;
    err = bench_copy_to(job->to, 0, map, job->size);
    munmap(map, job->size);
    return err;
}

struct readers {
    struct peer_job *job;
    _Atomic uint64_t next; /* offset of the next free chunk */
};

static int peers_read_chunk(struct peer_job *job, struct bench_stream *stream, uint64_t at)
{
    ssize_t n;
    int err = bench_stream_wait(stream);

    if (err)
        return err;
    n = pread(job->fd, stream->buffer, PEER_CHUNK, (off_t)at);
    if (n != (ssize_t)PEER_CHUNK)
        return n < 0 ? -errno : -EIO;
    return bench_stream_copy(stream, job->to, at, PEER_CHUNK);
}

/* Called by a thread with two streams. It reads into one while it copies from the other. */
static int peers_read_chunks(void *of, unsigned thread)
{
    struct readers *r = of;
    struct bench_stream *streams = &r->job->streams[2 * thread];
    uint64_t at;
    int err = 0;

    for (unsigned turn = 0; !err; turn++) {
        at = atomic_fetch_add(&r->next, PEER_CHUNK);
        if (at >= r->job->size)
            break;
        err = peers_read_chunk(r->job, &streams[turn % 2], at);
    }
    for (unsigned i = 0; i < 2; i++) {
        int end = bench_stream_wait(&streams[i]);

        err = err ? err : end;
    }
    return err;
}

static int pread_threads(struct peer_job *job, unsigned threads)
{
    return bench_run_threads(threads, peers_read_chunks, &(struct readers){.job = job});
}

#ifdef HAVE_LIBURING
#define RING_STREAMS (2 * PEER_THREADS)

static int ring_read(struct io_uring *ring, struct peer_job *job, unsigned stream, uint64_t at)
{
    struct io_uring_sqe *sqe;
    int err = bench_stream_wait(&job->streams[stream]);

    if (err)
        return err;
    sqe = io_uring_get_sqe(ring);
    if (!sqe)
        return -EBUSY;
    io_uring_prep_read(sqe, job->fd, job->streams[stream].buffer, PEER_CHUNK, at);
    /* Threads of the ring read, because this one would copy bytes that are in the page cache. */
    io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
    io_uring_sqe_set_data64(sqe, at / PEER_CHUNK * RING_STREAMS + stream);
    err = io_uring_submit(ring);
    return err < 0 ? err : 0;
}

/* Takes a completion. Returns its stream or -errno. */
static int peers_ring_take(struct io_uring *ring, struct peer_job *job)
{
    struct io_uring_cqe *cqe;
    int err = io_uring_wait_cqe(ring, &cqe), stream;
    uint64_t at;

    if (err)
        return err;
    stream = (int)(io_uring_cqe_get_data64(cqe) % RING_STREAMS);
    at = io_uring_cqe_get_data64(cqe) / RING_STREAMS * PEER_CHUNK;
    err = cqe->res == (int)PEER_CHUNK ? 0 : cqe->res < 0 ? cqe->res : -EIO;
    io_uring_cqe_seen(ring, cqe);
    if (!err)
        err = bench_stream_copy(&job->streams[stream], job->to, at, PEER_CHUNK);
    return err ? err : stream;
}

static int ring_read_all(struct io_uring *ring, struct peer_job *job)
{
    unsigned pending = 0;
    uint64_t at = 0;
    int err = 0, stream;

    for (; pending < RING_STREAMS && at < job->size && !err; at += PEER_CHUNK)
        err = ring_read(ring, job, pending++, at);
    while (pending > 0 && !err) {
        stream = peers_ring_take(ring, job);
        pending--;
        err = stream < 0 ? stream : 0;
        if (!err && at < job->size) {
            err = ring_read(ring, job, (unsigned)stream, at);
            at += PEER_CHUNK;
            pending++;
        }
    }
    return err;
}

static int uring(struct peer_job *job, unsigned threads)
{
    struct io_uring ring;
    int err = io_uring_queue_init(RING_STREAMS, &ring, 0), end;

    (void)threads;
    if (err)
        return err == -ENOSYS || err == -EPERM ? -ENOTSUP : err;
    err = ring_read_all(&ring, job);
    io_uring_queue_exit(&ring);
    for (unsigned i = 0; i < RING_STREAMS; i++) {
        end = bench_stream_wait(&job->streams[i]);
        err = err ? err : end;
    }
    return err;
}
#else
static int uring(struct peer_job *job, unsigned threads)
{
    (void)job, (void)threads;
    return -ENOTSUP;
}
#endif

#ifdef HAVE_CUFILE
static int cufile_read_all(struct peer_job *job, CUfileHandle_t handle)
{
    uint64_t at = 0;

    while (at < job->size) {
        ssize_t n = cuFileRead(handle, job->to->addr, job->size - at, (off_t)at, (off_t)at);

        if (n <= 0)
            return -EIO;
        at += (uint64_t)n;
    }
    return 0;
}

static int cufile(struct peer_job *job, unsigned threads)
{
    CUfileDescr_t descr;
    CUfileHandle_t handle;
    int fd, err = -ENOTSUP;

    (void)threads;
    if (!job->to->on_gpu)
        return -ENOTSUP;
    fd = open(job->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0)
        fd = open(job->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    memset(&descr, 0, sizeof(descr));
    descr.handle.fd = fd;
    descr.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    if (cuFileHandleRegister(&handle, &descr).err == CU_FILE_SUCCESS) {
        err = cufile_read_all(job, handle);
        cuFileHandleDeregister(handle);
    }
    close(fd);
    return err;
}
#else
static int cufile(struct peer_job *job, unsigned threads)
{
    (void)job, (void)threads;
    return -ENOTSUP;
}
#endif

const struct peer peers[] = {
    {"pread + pinned, 1 thread", pread_threads, 1},
    {"mmap + copy", map_and_copy, 0},
    {"pread + pinned, 4 threads", pread_threads, 4},
    {"pread + pinned, 16 threads", pread_threads, 16},
    {"io_uring + pinned", uring, 0},
    {"cuFile", cufile, 0},
    {NULL, NULL, 0},
};
