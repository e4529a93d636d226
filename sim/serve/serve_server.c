/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs the server: its socket, one client at a time, and signals. */
#include "sim/serve/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <nvme/types.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "support/clock.h"

#define BEGUN_MS       2000 /* time limit of a first or partial message */
#define SEND_MS        2000 /* time limit for sending a reply */
#define MISTAKES_SHOWN 16u

struct server {
    struct serve_session session;
    struct serve_message in;
    struct serve_reply out;
    int listener, signals, torn;
    int client;        /* -1 without a client */
    uint64_t deadline; /* ms; 0 without a deadline */
    bool stop;
};

static void server_say(const char *object, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void server_say(const char *object, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "%s: %s: ", program_invocation_short_name, object);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* Removes the socket file of a killed server, which has no listener. */
static int remove_stale(const struct sockaddr_un *sa)
{
    struct stat st;
    int fd, rc;

    if (lstat(sa->sun_path, &st) != 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(st.st_mode))
        return -EEXIST;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    rc = connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) == 0 ? 0 : errno;
    close(fd);
    if (rc != ECONNREFUSED)
        return -EADDRINUSE;
    return unlink(sa->sun_path) == 0 ? 0 : -errno;
}

static int open_listener(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof(sa.sun_path))
        return -ENAMETOOLONG;
    memcpy(sa.sun_path, path, strlen(path));
    int rc = remove_stale(&sa);
    if (rc)
        return rc;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    mode_t old = umask(077); /* a connection gives read and write access to the drive */
    rc = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 ? 0 : -errno;
    umask(old);
    if (rc == 0 && listen(fd, 8) != 0)
        rc = -errno;
    if (rc) {
        close(fd);
        return rc;
    }
    return fd;
}

/* Blocks the signals in all threads, since later ones inherit the mask. */
static int open_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Starts a controller in the state after power-on for the next client. */
static void start_session(struct server *s, struct nvme_transport *t)
{
    s->session.t = t;
    serve_session_start(&s->session);
    if (s->session.o->stuck)
        sim_stick(s->session.sim);
}

/*
 * Resets the controller first, because a client that disconnects without a
 * disable is not a mistake of a driver.
 */
static void unplug(struct server *s)
{
    s->session.t->ops->write(s->session.t, NVME_REG_CC, 0, 4);
    s->session.t->ops->close(s->session.t);
    s->session.t = NULL;
    sim_set_interrupts(s->session.sim, 0, s->session.o->cfg.vectors, NULL);
    serve_dma_forget();
}

static int end_client(struct server *s)
{
    struct nvme_transport *t;

    close(s->client);
    s->client = -1;
    s->deadline = 0;
    serve_message_done(&s->in);
    /* The client may still have the old doorbells mapped. */
    unplug(s);
    int rc = sim_attach(s->session.sim, &t);
    if (rc) {
        server_say("controller", "cannot be started again: %s", strerror(-rc));
        return rc;
    }
    start_session(s, t);
    return 0;
}

static void take_client(struct server *s)
{
    const struct timeval limit = {.tv_sec = SEND_MS / 1000};
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return; /* the client has gone, or no descriptor is free; it may retry */
    if (s->client >= 0) {
        close(fd);
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    s->client = fd;
    s->deadline = now_ms() + BEGUN_MS;
}

static void show_mistake(const struct server *s, unsigned before)
{
    if (s->session.mistakes != before && s->session.mistakes <= MISTAKES_SHOWN)
        server_say("client", "%s", s->session.last_mistake);
}

/*
 * Handles a message and sends the reply. Returns false if the connection must
 * end. The descriptors of the message are closed before the reply is sent.
 */
static bool server_answer(struct server *s)
{
    const struct vfio_user_header head = s->in.header;
    unsigned before = s->session.mistakes;
    bool go_on = serve_session_handle(&s->session, &s->in, &s->out);

    show_mistake(s, before);
    serve_message_done(&s->in);
    s->deadline = 0;
    if (head.flags & VFIO_USER_NO_REPLY)
        return go_on;
    return serve_message_reply(s->client, &head, &s->out) == 0 && go_on;
}

/*
 * Sends an error reply before the connection is closed. The size in the header
 * is invalid, so later messages cannot be found.
 */
static void reject(struct server *s)
{
    s->out.error = EPROTO;
    serve_mistake(&s->session, "a message of %u bytes", s->in.header.size);
    server_say("client", "%s", s->session.last_mistake);
    serve_message_reply(s->client, &s->in.header, &s->out);
}

static int serve_client(struct server *s)
{
    int rc = serve_message_receive(s->client, &s->in);

    if (rc == 1 && server_answer(s))
        return 0;
    if (rc == 0) {
        if (s->in.have && !s->deadline)
            s->deadline = now_ms() + BEGUN_MS;
        return 0;
    }
    if (rc == -EPROTO)
        reject(s);
    return end_client(s);
}

static void server_take_signal(struct server *s)
{
    struct signalfd_siginfo info;

    if (read(s->signals, &info, sizeof(info)) != sizeof(info))
        return;
    if (info.ssi_signo == SIGUSR1)
        sim_stick(s->session.sim);
    else if (info.ssi_signo == SIGUSR2)
        sim_remove(s->session.sim);
    else
        s->stop = true;
}

static int drop_torn(struct server *s)
{
    eventfd_t n;

    eventfd_read(s->torn, &n);
    if (s->client < 0)
        return 0;
    serve_mistake(&s->session, "a file shrank while it was mapped");
    server_say("client", "%s", s->session.last_mistake);
    return end_client(s);
}

static int time_left(const struct server *s)
{
    uint64_t now = now_ms();

    if (!s->deadline)
        return -1;
    return s->deadline > now ? (int)(s->deadline - now) : 0;
}

/*
 * Returns true if the client has neither sent data nor hung up. poll() may have
 * checked the client before it hung up, and the listener after the next
 * connection, which is then not a second client.
 */
static bool is_quiet(int client)
{
    struct pollfd p = {.fd = client, .events = POLLIN};

    return poll(&p, 1, 0) == 0;
}

static int turn(struct server *s)
{
    bool take = s->client < 0 || !s->session.o->wait_second;
    struct pollfd p[] = {
        {.fd = s->signals, .events = POLLIN},
        {.fd = s->torn, .events = POLLIN},
        {.fd = s->client, .events = POLLIN},
        {.fd = take ? s->listener : -1, .events = POLLIN},
    };
    int n = poll(p, 4, time_left(s));

    if (n < 0)
        return errno == EINTR ? 0 : -errno;
    if (n == 0 && s->client >= 0) {
        server_say("client", "no whole message in %d ms", BEGUN_MS);
        return end_client(s);
    }
    if (p[0].revents)
        server_take_signal(s);
    if (p[1].revents)
        return drop_torn(s);
    if (p[2].revents)
        return serve_client(s);
    if (p[3].revents && is_quiet(s->client))
        take_client(s);
    return 0;
}

/* Checks the images, so that the error message names the right one. */
static int check_images(const struct sim_config *c)
{
    for (unsigned i = 0; i < c->namespaces; i++) {
        const char *path = c->ns[i].path;
        int fd = path ? open(path, (c->ns[i].read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC) : -1;

        if (path && fd < 0) {
            int rc = -errno;
            server_say(path, "cannot be opened: %s", strerror(-rc));
            return rc;
        }
        if (fd >= 0)
            close(fd);
    }
    return 0;
}

static int start_sim(struct server *s)
{
    struct nvme_transport *t;
    int rc = check_images(&s->session.o->cfg);

    if (rc)
        return rc;
    rc = sim_create(&s->session.o->cfg, &s->session.sim, &t);
    if (rc) {
        server_say("controller", "cannot be made: %s",
                   rc == -EBUSY ? "another program has the image" : strerror(-rc));
        return rc;
    }
    for (unsigned i = 0; i < s->session.o->n_faults; i++)
        sim_add_fault(s->session.sim, &s->session.o->faults[i]);
    start_session(s, t);
    return 0;
}

static int server_report(const struct server *s)
{
    char text[4096];

    if (sim_violations(s->session.sim) + s->session.mistakes == 0)
        return 0;
    sim_violations_text(s->session.sim, text, sizeof(text));
    fputs(text, stderr);
    server_say("driver", "%llu mistakes, and %u of the protocol",
               (unsigned long long)sim_violations(s->session.sim), s->session.mistakes);
    return 1;
}

static int server_serve(struct server *s)
{
    int rc = 0;

    s->listener = open_listener(s->session.o->socket);
    if (s->listener < 0) {
        server_say(s->session.o->socket, "cannot listen there: %s", strerror(-s->listener));
        return s->listener;
    }
    printf("listening on %s\n", s->session.o->socket);
    fflush(stdout);
    while (!s->stop && rc == 0)
        rc = turn(s);
    unlink(s->session.o->socket);
    close(s->listener);
    if (s->client >= 0)
        close(s->client);
    serve_message_done(&s->in);
    return rc;
}

int serve_server_run(const struct serve_options *o)
{
    struct server *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->session.o = o;
    s->client = -1;
    s->signals = open_signals();
    int rc = s->signals < 0 ? s->signals : serve_dma_guard(&s->torn);
    if (rc == 0)
        rc = start_sim(s);
    if (rc == 0) {
        rc = server_serve(s);
        if (s->session.t)
            unplug(s);
        if (rc == 0)
            rc = server_report(s);
        sim_free(s->session.sim);
    }
    if (s->signals >= 0)
        close(s->signals);
    free(s);
    return rc;
}
