/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fuzz entry of the server's messages: the input becomes a sequence of messages
 * to one session, most with valid headers, some with descriptors, over a real
 * socket and a real controller. Each message gets one reply of the announced
 * length. After the session no descriptor is open, and a reset has prepared the
 * controller for the next client.
 */
#include <fcntl.h>
#include <nvme/types.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "blockdev/nvme/nvme_spec.h"
#include "sim/serve/serve.h"
#include "support/fd_message.h"

#define FILE_BYTES 65536
#define MAX_FDS    11u
#define RAW        0x80 /* in the first byte: the rest is sent unchanged */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz {
    struct serve_session session;
    struct serve_message in;
    struct serve_reply out;
    int memory;
    int client, server; /* ends of the socket */
};

static void expect(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz_session: %s\n", what);
    abort();
}

/* Returns the lowest free descriptor, which is higher if one stays open. */
static int free_descriptor(void)
{
    int fd = fcntl(0, F_DUPFD_CLOEXEC, 0);

    close(fd);
    return fd;
}

static struct fuzz *start(void)
{
    static const struct serve_options options = {
        .cfg = {.ns = {{.bytes = 1 << 20, .lba_size = 4096}}, .io_queues = 2, .vectors = 3}};
    struct fuzz *f = calloc(1, sizeof(*f));
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    if (!f || fd < 0 || ftruncate(fd, FILE_BYTES) != 0 ||
        sim_create(&options.cfg, &f->session.sim, &f->session.t) != 0)
        abort();
    f->memory = fd;
    f->session.o = &options;
    return f;
}

/* n descriptors of the client's memory. */
static void send_with_fds(struct fuzz *f, const void *data, size_t len, unsigned n)
{
    int fds[MAX_FDS];

    for (unsigned i = 0; i < n; i++)
        fds[i] = f->memory;
    (void)!fd_message_send(f->client, data, len, fds, n, MSG_DONTWAIT);
}

/* Reads the single reply to a message with this header. */
static void expect_reply(struct fuzz *f, const struct vfio_user_header *to)
{
    static unsigned char bytes[sizeof(struct vfio_user_header) + MESSAGE_MAX_PAYLOAD + 1];
    struct vfio_user_header h;
    size_t have = 0;
    ssize_t n;

    while ((n = recv(f->client, bytes + have, sizeof(bytes) - have, MSG_DONTWAIT)) > 0)
        have += (size_t)n;
    expect(have >= sizeof(h), "a message without a reply");
    memcpy(&h, bytes, sizeof(h));
    expect(h.size == have, "a reply of another length");
    expect(h.id == to->id && h.command == to->command, "a reply to another message");
    expect(h.flags & VFIO_USER_TYPE_REPLY, "a reply that is none");
    expect(!(h.flags & VFIO_USER_ERROR) || (h.error != 0 && have == sizeof(h)), "a reply's error");
}

/* Handles all messages that were sent. False: the session has ended. */
static bool serve(struct fuzz *f)
{
    int rc;

    while ((rc = serve_message_receive(f->server, &f->in)) == 1) {
        const struct vfio_user_header to = f->in.header;
        bool go_on = serve_session_handle(&f->session, &f->in, &f->out);
        int sent = serve_message_reply(f->server, &to, &f->out);
        serve_message_done(&f->in);
        if (sent == 0)
            expect_reply(f, &to);
        if (!go_on || sent != 0)
            return false;
    }
    return rc == 0;
}

/*
 * Sends one message of [kind, descriptors, length, payload]. Returns the bytes
 * of input used.
 */
static size_t send_one(struct fuzz *f, const uint8_t *data, size_t size)
{
    _Alignas(8) uint8_t raw[sizeof(struct vfio_user_header) + UINT8_MAX];
    size_t len = data[2] < size - 3 ? data[2] : size - 3;
    unsigned fds = data[1] % (MAX_FDS + 1);

    if (data[0] & RAW) {
        if (len > 0)
            send_with_fds(f, data + 3, len, fds);
        return 3 + len;
    }
    struct vfio_user_header h = {.command = data[0] % 20,
                                 .size = (uint32_t)(sizeof(h) + len),
                                 .flags = data[1] & 0x80 ? VFIO_USER_NO_REPLY : 0};
    memcpy(raw, &h, sizeof(h));
    memcpy(raw + sizeof(h), data + 3, len);
    send_with_fds(f, raw, sizeof(h) + len, fds);
    return 3 + len;
}

static void end(struct fuzz *f)
{
    serve_message_done(&f->in);
    close(f->client);
    close(f->server);
    f->session.t->ops->write(f->session.t, NVME_REG_CC, 0, 4);
    f->session.t->ops->close(f->session.t);
    serve_dma_forget();
    if (sim_attach(f->session.sim, &f->session.t) != 0)
        abort();
    expect(f->session.t->ops->read(f->session.t, NVME_REG_CC, 4) == 0 &&
               f->session.t->ops->read(f->session.t, NVME_REG_CSTS, 4) == 0,
           "the controller is not as new");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz *f;
    int ends[2];

    if (size < 1)
        return 0;
    if (!f)
        f = start();
    const int before = free_descriptor();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        abort();
    f->client = ends[0];
    f->server = ends[1];
    serve_session_start(&f->session);
    f->session.greeted = data[0] & 1; /* otherwise most inputs would end at the version */
    f->session.peer_fds = 1;
    for (size_t at = 1; size - at > 3;) {
        at += send_one(f, data + at, size - at);
        if (!serve(f))
            break;
    }
    end(f);
    expect(free_descriptor() == before, "a descriptor is open");
    return 0;
}
