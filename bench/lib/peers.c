/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads a file into GPU memory in the ways that exist without this project. */
#include "bench/lib/peers.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/lib/bench_report.h"

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

const struct peer peers[] = {
    {"pread + pinned, 1 thread", pread_threads, 1},
    {"mmap + copy", map_and_copy, 0},
    {"pread + pinned, 4 threads", pread_threads, 4},
    {"pread + pinned, 16 threads", pread_threads, 16},
    {NULL, NULL, 0},
};
