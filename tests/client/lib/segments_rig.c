/* SPDX-License-Identifier: BSD-2-Clause */
/* Records what a client sends to register memory. */
#include "tests/client/lib/segments_rig.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/lib/client_internal.h"
#include "client/lib/connection.h"
#include "client/lib/cuda_driver.h"
#include "support/fd_message.h"

struct segments_rig {
    struct connection g;
    int listener;
    pthread_t thread;
};

static struct segments_rig_seen seen;

int __wrap_gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size)
{
    const struct gpunvme_ioc_register *reg = arg;

    (void)fd, (void)size;
    if (request != GPUNVME_IOC_REGISTER)
        return 0;
    seen.kind = reg->kind;
    seen.offset = reg->offset;
    seen.len = reg->len;
    seen.token = reg->token;
    return 0;
}

static void take_descriptors(const struct fd_message *in)
{
    ssize_t n = pread(in->fd[0], seen.table, sizeof(seen.table), 0);

    seen.descriptors = (int)in->n;
    seen.segments = n > 0 ? (uint32_t)((size_t)n / sizeof(seen.table[0])) : 0;
}

/* Receives the cookie and a message with descriptors. Returns true if they came. */
static bool receive(int s)
{
    struct fd_message in = {.n = 0};
    uint64_t word;

    if (recv(s, &word, sizeof(word), MSG_WAITALL) != (ssize_t)sizeof(word) ||
        fd_message_receive(s, &word, sizeof(word), &in, FD_MESSAGE_MAX, 0) !=
            (ssize_t)sizeof(word) ||
        !in.n)
        return false;
    take_descriptors(&in);
    fd_message_close(&in);
    return true;
}

static void *serve(void *arg)
{
    const struct segments_rig *r = arg;
    const uint64_t token = SEGMENTS_RIG_TOKEN;
    int s = accept(r->listener, NULL, NULL);

    if (s < 0) /* nothing was sent */
        return NULL;
    if (receive(s))
        (void)!write(s, &token, sizeof(token));
    close(s);
    return NULL;
}

static int start_server(struct segments_rig *r)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int n = snprintf(r->g.info.socket, sizeof(r->g.info.socket), "@segments-test-%d", getpid());

    memcpy(addr.sun_path, r->g.info.socket, (size_t)n);
    addr.sun_path[0] = '\0';
    r->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n);
    if (r->listener < 0 || bind(r->listener, (struct sockaddr *)&addr, len) ||
        listen(r->listener, 1))
        return -1;
    return pthread_create(&r->thread, NULL, serve, r);
}

struct segments_rig *segments_rig_open(unsigned tier, const char *transport)
{
    struct segments_rig *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    seen = (struct segments_rig_seen){0};
    pthread_mutex_init(&r->g.lock, NULL);
    pthread_cond_init(&r->g.unused, NULL);
    atomic_init(&r->g.calls_offered, true); /* this mount takes no counters */
    r->g.info.executor = GPUNVME_EXECUTOR_CUDA;
    r->g.info.tier = tier;
    snprintf(r->g.info.transport, sizeof(r->g.info.transport), "%s", transport);
    if (start_server(r) == 0 && cuda_driver_open(&r->g.cuda) == 0)
        return r;
    abort();
}

struct connection *segments_rig_connection(struct segments_rig *r)
{
    return &r->g;
}

const struct segments_rig_seen *segments_rig_close(struct segments_rig *r, struct gpunvme_buffer *b)
{
    buffer_unregister(b);
    shutdown(r->listener, SHUT_RDWR);
    pthread_join(r->thread, NULL);
    close(r->listener);
    cuda_driver_close(r->g.cuda);
    pthread_cond_destroy(&r->g.unused);
    pthread_mutex_destroy(&r->g.lock);
    free(r);
    return &seen;
}
