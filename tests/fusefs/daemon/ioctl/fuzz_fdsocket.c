/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fuzz target of the descriptor socket: the input becomes one client's messages
 * of any length, with and without descriptors.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fusefs/daemon/ioctl/fdsocket.h"
#include "gpunvme/gpunvme_ioctl.h"
#include "support/fd_message.h"

#define LEASE_ID 7u
#define MAX_FDS  7u /* of one message; all bits set */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz {
    struct fdsocket *socket;
    int memory;
};

/*
 * Returns as many descriptors as it reports, as struct fdsocket_handler
 * requires.
 */
static int answer(void *context, const struct gpunvme_request *request, uid_t uid,
                  struct gpunvme_reply *reply, int fds[2])
{
    const struct fuzz *f = context;
    int n = request->what == GPUNVME_ASK_QUEUE ? 2 : 1;

    if (uid != getuid() || request->id != LEASE_ID)
        return -ENOENT;
    *reply = (struct gpunvme_reply){.len = request->index};
    for (int i = 0; i < n; i++)
        fds[i] = dup(f->memory);
    return n;
}

static struct fuzz *start(void)
{
    struct fuzz *f = calloc(1, sizeof(*f));

    if (!f)
        abort();
    f->memory = memfd_create("fuzz", MFD_CLOEXEC);
    if (f->memory < 0 ||
        fdsocket_open(fdsocket_listen(), &(struct fdsocket_handler){answer, f}, &f->socket) != 0)
        abort();
    return f;
}

static int connect_to(const char *name)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 5};
    size_t len = strlen(name);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(addr.sun_path + 1, name + 1, len - 1);
    if (s < 0 ||
        connect(s, (struct sockaddr *)&addr,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) != 0 ||
        setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0)
        abort();
    return s;
}

/* n descriptors of one file. */
static void send_with_fds(int s, const void *data, size_t len, int fd, unsigned n)
{
    int fds[MAX_FDS];

    for (unsigned i = 0; i < n; i++)
        fds[i] = fd;
    (void)!fd_message_send(s, data, len, fds, n, MSG_DONTWAIT);
}

/*
 * Receives until the server closes the connection, which it must; tokens are
 * used, since their number is limited.
 */
static void take_answers(const struct fuzz *f, int s)
{
    uint64_t words[6];
    ssize_t n;

    do {
        struct fd_message in = {.n = 0};
        int fd;

        n = fd_message_receive(s, words, sizeof(words), &in, 4, 0);
        if (n < 0 && errno == EAGAIN)
            abort();
        fd_message_close(&in);
        for (ssize_t i = 0; i < n / 8; i++) {
            if (fdsocket_take(f->socket, words[i], getuid(), &fd) == 0)
                close(fd);
        }
    } while (n > 0);
}

/* A message starts with a byte for its descriptors and one for its length. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz *f;

    if (!f)
        f = start();
    int s = connect_to(fdsocket_name(f->socket));
    const uint64_t cookie = fdsocket_cookie(f->socket);
    if (size % 8 != 0) /* otherwise without authorization */
        send_with_fds(s, &cookie, sizeof(cookie), -1, 0);
    for (size_t at = 0; at + 2 <= size;) {
        unsigned n = data[at] & MAX_FDS, len = data[at + 1];
        int fd = data[at] & 8 ? STDERR_FILENO : f->memory;

        at += 2;
        len = len < size - at ? len : (unsigned)(size - at);
        send_with_fds(s, data + at, len, fd, n);
        at += len;
    }
    shutdown(s, SHUT_WR);
    take_answers(f, s);
    close(s);
    return 0;
}
