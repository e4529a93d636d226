/* SPDX-License-Identifier: BSD-2-Clause */
/* The ways in which people read a file into GPU memory today. */
#ifndef BENCH_LIB_PEERS_H
#define BENCH_LIB_PEERS_H

#include "bench/lib/memory.h"

#define PEER_THREADS 16u /* maximum number of threads */
#define PEER_CHUNK   ((size_t)4 << 20)

struct peer_job {
    int fd;        /* descriptor of the file, with page cache */
    uint64_t size; /* bytes, a multiple of PEER_CHUNK */
    const struct bench_memory *to;
    struct bench_stream streams[2 * PEER_THREADS]; /* of PEER_CHUNK */
};

struct peer {
    const char *name;
    int (*run)(struct peer_job *job, unsigned threads);
    unsigned threads; /* 0: the way has its own number */
};

/* The last one has the name NULL. The first one is pread with one thread. */
extern const struct peer peers[];

int peers_open(struct peer_job *job);
void peers_close(struct peer_job *job);

#endif
