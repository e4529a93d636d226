/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the descriptor socket: connections, tokens, and the thread that
 * serves them.
 */
#include "fusefs/daemon/ioctl/fdsocket.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "blockdev/vfio/device_mem.h"
#include "cuda/gq.h"
#include "fusefs/daemon/base/closer.h"
#include "fusefs/daemon/base/ledger.h"
#include "gpunvme/gpunvme_ioctl.h"
#include "support/clock.h"
#include "support/fd_message.h"
#include "support/minmax.h"

#define MAX_TOKENS  256
#define ROOT_TOKENS 32 /* reserved for root */
/*
 * Maximum number of descriptors in the tokens of all users. It is lowered to
 * half of RLIMIT_NOFILE, because buffers and files need descriptors, too. One in
 * ROOT_PART is reserved for root.
 */
#define MAX_DESCRIPTORS 16384u
#define ROOT_PART       4u
/*
 * Numbers of /dev/nvidiactl. CUDA uses descriptors of it as handles of memory
 * (cuMemExportToShareableHandle).
 */
#define NVIDIA_MAJOR         195u
#define NVIDIA_CONTROL_MINOR 255u
/* Maximum number of connections that have sent the cookie, and the number reserved for root. */
#define MAX_CONNECTIONS  64
#define ROOT_CONNECTIONS 8
/* Maximum number of other connections. No ledger counts them: a new one ends another. */
#define STRANGERS  32
#define ENTRIES    (MAX_CONNECTIONS + STRANGERS)
#define LIFETIME_S 10 /* of a token, and of a connection without messages */
/*
 * Send buffer of a connection, with room for a few unread replies. Unread
 * replies hold descriptors in flight, which count against this process's limit.
 */
#define REPLY_BYTES 4096

struct token {
    uint64_t value; /* 0 in a free entry */
    struct fd_message *fds;
    uid_t uid;
    time_t expires;
};

struct connection {
    int fd; /* -1 in a free entry */
    uid_t uid;
    time_t expires;
    uint64_t number; /* increases with every connection */
    bool authorised; /* the cookie has been received; charged to uid */
};

struct fdsocket {
    int listener;
    int stop; /* eventfd */
    pthread_t thread;
    uint64_t cookie;
    char name[64];
    pthread_mutex_t lock;
    /* Protected by lock. The ledgers charge the user of a token. */
    struct token tokens[MAX_TOKENS];
    struct ledger tokens_held, descriptors_held;
    /* Used by the thread only. */
    struct ledger authorised;
    uint64_t accepted; /* connections so far */
    struct connection connections[ENTRIES];
    struct closer closer;
    struct fdsocket_handler handler;
};

/*
 * The kernel answers this call without the file's driver. The last close of
 * such a file takes as long as the driver needs to free the memory.
 */
static bool is_handle_of_cuda(int fd)
{
    struct statx file;

    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &file) == 0 &&
           S_ISCHR(file.stx_mode) && file.stx_rdev_major == NVIDIA_MAJOR &&
           file.stx_rdev_minor == NVIDIA_CONTROL_MINOR;
}

/*
 * Returns true for a memfd and for a handle of device memory, whose close(2) does not block. Only a
 * memfd has seals. hugetlbfs is excluded, because a huge page that is missing at a fault raises
 * SIGBUS in the daemon.
 */
static bool is_memory(int fd)
{
    struct statfs fs;

    if (fcntl(fd, F_GET_SEALS) >= 0)
        return fstatfs(fd, &fs) == 0 && fs.f_type != HUGETLBFS_MAGIC;
    return device_mem_is_handle(fd) || is_handle_of_cuda(fd);
}

/* --- Segments --------------------------------------------------------------------------------- */

static_assert(GPUNVME_MEMORY_SEGMENTS_MAX == GQ_SEGMENTS &&
                  1 + 2 * GPUNVME_MEMORY_SEGMENTS_MAX <= FD_MESSAGE_MAX,
              "one message has all descriptors");

/* Only a memfd has seals. A read from it does not block. */
static int fdsocket_read_table(int fd, struct gpunvme_memory_segment *table)
{
    struct stat st;

    if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &st))
        return -EINVAL;
    if (st.st_size <= 0 || (size_t)st.st_size % sizeof(*table) ||
        (size_t)st.st_size > GPUNVME_MEMORY_SEGMENTS_MAX * sizeof(*table))
        return -EINVAL;
    if (pread(fd, table, (size_t)st.st_size, 0) != st.st_size)
        return -EINVAL;
    return (int)((size_t)st.st_size / sizeof(*table));
}

int fdsocket_segments(const struct fd_message *fds, struct gq_segment *out)
{
    struct gpunvme_memory_segment table[GPUNVME_MEMORY_SEGMENTS_MAX];
    int n = fds->n ? fdsocket_read_table(fds->fd[0], table) : -EINVAL;
    size_t next = 1;

    for (int i = 0; i < n; i++) {
        bool exported = table[i].flags == GPUNVME_MEMORY_EXPORTED;

        if ((table[i].flags && !exported) || table[i].reserved || next + exported >= fds->n)
            return -EINVAL;
        out[i] = (struct gq_segment){.fd = fds->fd[next],
                                     .exported = exported ? fds->fd[next + 1] : -1,
                                     .offset = table[i].offset,
                                     .len = table[i].len};
        next += 1 + (size_t)exported;
    }
    return n < 0 || next == fds->n ? n : -EINVAL;
}

/* --- Tokens ----------------------------------------------------------------------------------- */

/* Ends the charge of a token and frees its entry. The caller owns the descriptors. */
static void token_end(struct fdsocket *s, struct token *t)
{
    ledger_give(&s->tokens_held, t->uid, 1);
    ledger_give(&s->descriptors_held, t->uid, t->fds->n);
    free(t->fds);
    *t = (struct token){0};
}

static void token_clear(struct fdsocket *s, struct token *t)
{
    struct fd_message fds = *t->fds;

    token_end(s, t);
    fd_message_close(&fds);
}

static struct token *free_token(struct fdsocket *s, time_t at)
{
    struct token *found = NULL;

    for (size_t i = 0; i < MAX_TOKENS; i++) {
        struct token *t = &s->tokens[i];
        if (t->value && t->expires <= at)
            token_clear(s, t);
        if (!t->value && !found)
            found = t;
    }
    return found;
}

static bool token_charge(struct fdsocket *s, uid_t uid, size_t n_fds)
{
    if (!ledger_take(&s->tokens_held, uid, 1))
        return false;
    if (ledger_take(&s->descriptors_held, uid, n_fds))
        return true;
    ledger_give(&s->tokens_held, uid, 1);
    return false;
}

/*
 * Returns a token for the descriptors, or 0 if the user or the table has too
 * many.
 */
static uint64_t token_make(struct fdsocket *s, struct fd_message *fds, uid_t uid)
{
    uint64_t value = 0;

    if (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value) || value == 0)
        return 0;
    time_t at = now_s();
    pthread_mutex_lock(&s->lock);
    struct token *t = free_token(s, at);
    bool charged = t && token_charge(s, uid, fds->n);
    if (charged)
        *t = (struct token){.value = value, .fds = fds, .uid = uid, .expires = at + LIFETIME_S};
    pthread_mutex_unlock(&s->lock);
    return charged ? value : 0;
}

int fdsocket_take_all(struct fdsocket *s, uint64_t token, uid_t uid, struct fd_message *out)
{
    int err = -ENOENT;
    time_t at = now_s();

    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < MAX_TOKENS && token != 0; i++) {
        struct token *t = &s->tokens[i];
        if (t->value != token || t->expires <= at)
            continue;
        err = t->uid == uid ? 0 : -EACCES;
        if (!err) {
            *out = *t->fds;
            token_end(s, t);
        }
        break;
    }
    pthread_mutex_unlock(&s->lock);
    return err;
}

int fdsocket_take(struct fdsocket *s, uint64_t token, uid_t uid, int *fd)
{
    struct fd_message fds;
    int err = fdsocket_take_all(s, token, uid, &fds);

    if (err)
        return err;
    *fd = fds.fd[0];
    for (size_t i = 1; i < fds.n; i++)
        close(fds.fd[i]);
    return 0;
}

/* Keeps the descriptors of memory, and closes all others. */
static void keep_memory(struct fdsocket *s, struct fd_message *in, uid_t uid)
{
    int rest[FD_MESSAGE_MAX];
    size_t n = 0, n_rest = 0;

    for (size_t i = 0; i < in->n; i++) {
        if (is_memory(in->fd[i]))
            in->fd[n++] = in->fd[i];
        else
            rest[n_rest++] = in->fd[i];
    }
    in->n = n;
    closer_close(&s->closer, rest, n_rest, uid);
}

/*
 * Closes a connection. After shutdown(2) the peer can queue nothing more, and
 * with an empty queue close(2) does not block.
 */
static void fdsocket_discard(int fd)
{
    char byte;

    shutdown(fd, SHUT_RDWR);
    if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
        close(fd);
    else
        closer_discard(fd);
}

/* The function owns the descriptors, also after an error. */
static bool send_token(struct fdsocket *s, struct connection *c, struct fd_message *fds)
{
    struct fd_message *held = malloc(sizeof(*held));
    uint64_t token = 0;

    if (held) {
        *held = *fds;
        token = token_make(s, held, c->uid);
    }
    if (!token) {
        fd_message_close(fds);
        free(held);
        return false;
    }
    return send(c->fd, &token, sizeof(token), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           (ssize_t)sizeof(token);
}

static bool serve_request(struct fdsocket *s, struct connection *c,
                          const struct gpunvme_request *request)
{
    struct gpunvme_reply reply = {0};
    int fds[2];

    if (!s->handler.serve)
        return false;
    int n = s->handler.serve(s->handler.context, request, c->uid, &reply, fds);
    if (n <= 0)
        return false;
    bool sent = fd_message_send(c->fd, &reply, sizeof(reply), fds, (size_t)n, MSG_DONTWAIT) ==
                (ssize_t)sizeof(reply);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    return sent;
}

union message {
    uint64_t word;
    struct gpunvme_request request;
};

/*
 * Receives at most len bytes, and the memory descriptors sent with them. The
 * buffer has room for all descriptors of a message. The kernel would close the
 * others in this thread.
 */
static ssize_t fdsocket_receive(struct fdsocket *s, struct connection *c, union message *in,
                                size_t len, struct fd_message *fds)
{
    ssize_t n = fd_message_receive(c->fd, in, len, fds, FD_MESSAGE_MAX, MSG_DONTWAIT);

    if (fds->n)
        keep_memory(s, fds, c->uid);
    return n;
}

/*
 * Receives the cookie. It is first compared in the queue, since receiving a
 * message would pass its descriptors to this process.
 */
static bool authorise(struct fdsocket *s, struct connection *c)
{
    union message in = {.request.what = 0};
    struct fd_message fds = {.n = 0};
    ssize_t n = recv(c->fd, &in.word, sizeof(in.word), MSG_PEEK | MSG_DONTWAIT);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n != (ssize_t)sizeof(in.word) || in.word != s->cookie)
        return false;
    fdsocket_receive(s, c, &in, sizeof(in.word), &fds);
    c->authorised = !fds.n && ledger_take(&s->authorised, c->uid, 1);
    fd_message_close(&fds);
    return c->authorised;
}

/*
 * Serves one message: 8 zero bytes with descriptors, or a struct
 * gpunvme_request without one. Returns false to end the connection.
 */
static bool serve_message(struct fdsocket *s, struct connection *c)
{
    union message in = {.request.what = 1};
    struct fd_message fds = {.n = 0};

    if (!c->authorised)
        return authorise(s, c);
    if (closer_is_busy(&s->closer, c->uid))
        return false;
    ssize_t n = fdsocket_receive(s, c, &in, sizeof(in), &fds);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    c->expires = now_s() + LIFETIME_S;
    if (fds.n && n == (ssize_t)sizeof(in.word) && in.word == 0)
        return send_token(s, c, &fds);
    if (fds.n) {
        fd_message_close(&fds);
        return false;
    }
    return n == (ssize_t)sizeof(in.request) && serve_request(s, c, &in.request);
}

static void connection_end(struct fdsocket *s, struct connection *c)
{
    if (c->authorised)
        ledger_give(&s->authorised, c->uid, 1);
    fdsocket_discard(c->fd);
    *c = (struct connection){.fd = -1};
}

static unsigned strangers_of(const struct fdsocket *s, uid_t uid)
{
    unsigned n = 0;

    for (size_t i = 0; i < ENTRIES; i++) {
        const struct connection *c = &s->connections[i];
        n += c->fd >= 0 && !c->authorised && c->uid == uid;
    }
    return n;
}

/*
 * Returns a free entry. If there is none, or too many connections have not sent
 * the cookie, one of these connections ends. It is the oldest of the user with
 * the most, so that many connections of one user do not end that of another.
 */
static struct connection *free_connection(struct fdsocket *s)
{
    struct connection *found = NULL, *oldest = NULL;
    unsigned strangers = 0, most = 0;

    for (size_t i = 0; i < ENTRIES; i++) {
        struct connection *c = &s->connections[i];
        if (c->fd < 0)
            found = c;
        if (c->fd < 0 || c->authorised)
            continue;
        strangers++;
        unsigned of_user = strangers_of(s, c->uid);
        if (!oldest || of_user > most || (of_user == most && c->number < oldest->number))
            oldest = c;
        most = of_user > most ? of_user : most;
    }
    if (strangers < STRANGERS)
        return found;
    connection_end(s, oldest);
    return oldest;
}

/*
 * Accepts a connection, and its cookie if that has arrived. Returns false if
 * descriptors or memory are exhausted; the connection then remains in the
 * listener's queue.
 */
static bool fdsocket_accept_one(struct fdsocket *s)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    int reply_bytes = REPLY_BYTES;
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &reply_bytes, sizeof(reply_bytes)) != 0) {
        fdsocket_discard(fd);
        return true;
    }
    struct connection *c = free_connection(s);
    *c = (struct connection){
        .fd = fd, .uid = peer.uid, .expires = now_s() + LIFETIME_S, .number = ++s->accepted};
    if (!authorise(s, c))
        connection_end(s, c);
    return true;
}

static void fdsocket_serve_connection(struct fdsocket *s, struct connection *c, short events)
{
    if (c->expires <= now_s() || (events && !serve_message(s, c)))
        connection_end(s, c);
}

/*
 * Entry 0 is the stop event, entry 1 the listener, and the rest are
 * connections. poll(2) skips fd -1. The listener is skipped for 1 s after
 * accept4(2) failed for lack of descriptors or memory.
 */
static void *fdsocket_serve(void *arg)
{
    struct fdsocket *s = arg;
    struct pollfd p[2 + ENTRIES];
    bool accepts = true;

    for (;;) {
        bool waiting = !accepts;
        p[0] = (struct pollfd){.fd = s->stop, .events = POLLIN};
        p[1] = (struct pollfd){.fd = accepts ? s->listener : -1, .events = POLLIN};
        for (size_t i = 0; i < ENTRIES; i++) {
            p[2 + i] = (struct pollfd){.fd = s->connections[i].fd, .events = POLLIN};
            waiting |= s->connections[i].fd >= 0;
        }
        if (poll(p, 2 + ENTRIES, waiting ? 1000 : -1) < 0 && errno != EINTR)
            return NULL;
        if (p[0].revents)
            return NULL;
        for (size_t i = 0; i < ENTRIES; i++) {
            if (s->connections[i].fd >= 0)
                fdsocket_serve_connection(s, &s->connections[i], p[2 + i].revents);
        }
        accepts = !p[1].revents || fdsocket_accept_one(s);
    }
}

int fdsocket_listen(void)
{
    uint64_t random[2];
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return -EIO;
    int n = snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1, "gpunvmefs/%016llx%016llx",
                     (unsigned long long)random[0], (unsigned long long)random[1]);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    if (bind(fd, (struct sockaddr *)&addr, len) == 0 && listen(fd, 64) == 0)
        return fd;
    int err = -errno;
    close(fd);
    return err;
}

/*
 * Stores the name of the listener, with @ in place of the zero byte before it.
 */
static int fdsocket_read_name(struct fdsocket *s)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(addr);

    if (getsockname(s->listener, (struct sockaddr *)&addr, &len) != 0)
        return -errno;
    int n = (int)(len - offsetof(struct sockaddr_un, sun_path)) - 1;
    snprintf(s->name, sizeof(s->name), "@%.*s", n, addr.sun_path + 1);
    return 0;
}

static void fdsocket_set_limits(struct fdsocket *s)
{
    struct rlimit limit;
    uint64_t descriptors = MAX_DESCRIPTORS;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        descriptors = min_u64(descriptors, limit.rlim_cur / 2);
    s->authorised = (struct ledger){.total = MAX_CONNECTIONS, .for_root = ROOT_CONNECTIONS};
    s->tokens_held = (struct ledger){.total = MAX_TOKENS, .for_root = ROOT_TOKENS};
    s->descriptors_held =
        (struct ledger){.total = descriptors, .for_root = descriptors / ROOT_PART};
}

int fdsocket_open(int listener, const struct fdsocket_handler *handler, struct fdsocket **out)
{
    struct fdsocket *s = calloc(1, sizeof(*s));

    if (!s) {
        close(listener);
        return -ENOMEM;
    }
    s->listener = listener;
    if (handler)
        s->handler = *handler;
    fdsocket_set_limits(s);
    for (size_t i = 0; i < ENTRIES; i++)
        s->connections[i].fd = -1;
    int err = fdsocket_read_name(s);
    if (!err && getrandom(&s->cookie, sizeof(s->cookie), 0) != (ssize_t)sizeof(s->cookie))
        err = -EIO;
    s->stop = eventfd(0, EFD_CLOEXEC);
    if (!err && s->stop < 0)
        err = -errno;
    pthread_mutex_init(&s->lock, NULL);
    if (!err)
        err = -pthread_create(&s->thread, NULL, fdsocket_serve, s);
    if (!err) {
        *out = s;
        return 0;
    }
    pthread_mutex_destroy(&s->lock);
    if (s->stop >= 0)
        close(s->stop);
    close(s->listener);
    free(s);
    return err;
}

void fdsocket_close(struct fdsocket *s)
{
    eventfd_write(s->stop, 1); /* cannot fail: the counter is far from its limit */
    pthread_join(s->thread, NULL);
    closer_end(&s->closer);
    for (size_t i = 0; i < MAX_TOKENS; i++) {
        if (s->tokens[i].value)
            token_clear(s, &s->tokens[i]);
    }
    for (size_t i = 0; i < ENTRIES; i++) {
        if (s->connections[i].fd >= 0)
            fdsocket_discard(s->connections[i].fd);
    }
    close(s->stop);
    closer_discard(s->listener); /* queued connections have queues, too */
    pthread_mutex_destroy(&s->lock);
    free(s);
}

const char *fdsocket_name(const struct fdsocket *s)
{
    return s->name;
}

uint64_t fdsocket_cookie(const struct fdsocket *s)
{
    return s->cookie;
}
