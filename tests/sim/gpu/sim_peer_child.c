/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The other process of sim_peer_test: a copy kernel over the mailboxes of
 * descriptor 3, for media of descriptor 4, with its own buffer. Writes the
 * handle and address of the buffer and the address of the media to stdout,
 * copies until it reads a byte from stdin, then writes the contents of the
 * buffer to stdout.
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim/gpu/sim_copy_kernel.h"
#include "tests/cuda/gq_test_mem.h"

#define MAX_SETS 16u

struct set {
    struct sim_keeper keeper;
    cudaStream_t streams[SIM_KEEPER_STREAMS];
};

static struct set sets[MAX_SETS];
static unsigned n_sets;
static bool stopping;

static int run(void *ctx, const struct sim_copy_kernel_launch *l, unsigned blocks, unsigned stream)
{
    struct set *s = ctx;

    return sim_copy_kernel_run(l, blocks, s->streams[stream]) == cudaSuccess ? 0 : -1;
}

/* Polls without sleep: sleeping is tested without a GPU. */
static void *serve(void *arg)
{
    int err = 0;

    while (!err && !__atomic_load_n(&stopping, __ATOMIC_RELAXED)) {
        for (unsigned i = 0; i < n_sets && !err; i++)
            err = sim_keeper_peek(&sets[i].keeper);
    }
    return arg;
}

static void *share(int fd, size_t len, int rights, unsigned flags, void **there)
{
    void *at = mmap(NULL, len, rights, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED || cudaHostRegister(at, len, cudaHostRegisterMapped | flags) ||
        cudaHostGetDevicePointer(there, at, 0)) {
        fprintf(stderr, "descriptor %d: %s\n", fd, cudaGetErrorString(cudaGetLastError()));
        return NULL;
    }
    return at;
}

static bool open_sets(struct sim_mailbox_head *head, const char *there, unsigned blocks)
{
    bool ok = n_sets <= MAX_SETS && sim_copy_kernel_load() == cudaSuccess;

    for (unsigned i = 0; i < n_sets && ok; i++) {
        struct sim_mailboxes *m = sim_mailbox_set(head, i);

        sim_keeper_init(&sets[i].keeper, m,
                        (uint64_t)(uintptr_t)there + (uint64_t)((char *)m - (char *)head), blocks,
                        400000);
        sets[i].keeper.run = run;
        sets[i].keeper.ctx = &sets[i];
        for (unsigned k = 0; k < SIM_KEEPER_STREAMS && ok; k++)
            ok = cudaStreamCreateWithFlags(&sets[i].streams[k], cudaStreamNonBlocking) ==
                 cudaSuccess;
    }
    return ok;
}

static int tell(const struct test_mem *m, const void *media)
{
    unsigned char ipc[64];
    uint64_t at[2] = {(uint64_t)(uintptr_t)m->addr, (uint64_t)(uintptr_t)media};

    return !test_mem_export(m, ipc) || fwrite(ipc, sizeof(ipc), 1, stdout) != 1 ||
           fwrite(at, sizeof(at), 1, stdout) != 1 || fflush(stdout);
}

static int serve_until_told(struct test_mem *m, const void *media, unsigned char *copy)
{
    pthread_t thread;
    int byte;

    memset(copy, 0xa5, m->len);
    test_mem_write(m, 0, copy, m->len);
    if (pthread_create(&thread, NULL, serve, NULL))
        return 1;
    byte = tell(m, media) ? EOF : getchar();
    __atomic_store_n(&stopping, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    if (byte == EOF)
        return 1;
    test_mem_read(m, 0, copy, m->len);
    return fwrite(copy, m->len, 1, stdout) != 1 || fflush(stdout);
}

/* sim_peer_child SETS BLOCKS LEN_OF_MAILBOXES LEN_OF_MEDIA LEN */
int main(int argc, char **argv)
{
    struct test_mem m;
    struct sim_mailbox_head *head;
    void *slots, *media;
    unsigned char *copy;
    int rc;

    if (argc != 6 || !test_mem_alloc(true, strtoul(argv[5], NULL, 10), &m))
        return 1;
    n_sets = (unsigned)strtoul(argv[1], NULL, 10);
    head = share(3, strtoul(argv[3], NULL, 10), PROT_READ | PROT_WRITE, 0, &slots);
    if (!head ||
        !share(4, strtoul(argv[4], NULL, 10), PROT_READ, cudaHostRegisterReadOnly, &media) ||
        !open_sets(head, slots, (unsigned)strtoul(argv[2], NULL, 10)))
        return 1;
    copy = malloc(m.len);
    rc = copy ? serve_until_told(&m, media, copy) : 1;
    free(copy);
    return rc;
}
