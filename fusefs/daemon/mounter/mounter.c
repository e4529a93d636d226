/* SPDX-License-Identifier: BSD-2-Clause */
/* Sends requests of the daemon to the mounter. */
#include "fusefs/daemon/mounter/mounter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/mounter/mounter_process.h"
#include "fusefs/daemon/mounter/writeback.h"
#include "fusefs/daemon/state/daemon.h"
#include "support/child.h"
#include "support/fd_message.h"
#include "support/wait.h"

/*
 * The wait for the end of the process, which only closes its files then, is
 * limited to this time.
 */
#define END_MS 5000

/*
 * Opens the connections to the process: its ends in *theirs, the daemon's ends
 * in *m and *logs.
 */
static int mounter_open_sockets(struct mounter *m, int *logs, struct mounter_sockets *theirs)
{
    int ends[2], log_ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return -errno;
    int err = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, log_ends) == 0 ? 0 : -errno;
    if (err)
        goto close_ends;
    err = callers_open(&m->callers, &theirs->callers);
    if (err)
        goto close_logs;
    m->socket = ends[0];
    *logs = log_ends[0];
    theirs->requests = ends[1];
    theirs->logs = log_ends[1];
    return 0;
close_logs:
    close(log_ends[0]);
    close(log_ends[1]);
close_ends:
    close(ends[0]);
    close(ends[1]);
    return err;
}

static void mounter_close_theirs(const struct mounter_sockets *theirs)
{
    close(theirs->requests);
    close(theirs->logs);
    close(theirs->callers);
}

int mounter_start(struct mounter *m, const struct options *opts, const struct fuse_args *args,
                  int spare)
{
    struct mounter_sockets theirs = {-1, -1, -1};
    int logs = -1;

    *m = (struct mounter){.socket = -1};
    int err = mounter_open_sockets(m, &logs, &theirs);
    if (err)
        return err;
    m->pid = fork();
    if (m->pid == 0) {
        close(m->socket);
        close(logs);
        callers_close(&m->callers);
        if (spare >= 0)
            close(spare);
        mounter_serve(&theirs, opts, args);
    }
    err = m->pid < 0 ? -errno : 0;
    mounter_close_theirs(&theirs);
    log_through(logs);
    if (err)
        mounter_end(m);
    return err;
}

/*
 * Receives an answer, and stores the descriptor that it carries, or -1, in *fd.
 */
static int receive_answer(const struct mounter *m, struct mounter_answer *answer, int *fd)
{
    struct fd_message in = {.n = 0};

    *fd = -1;
    ssize_t n =
        TEMP_FAILURE_RETRY(fd_message_receive(m->socket, answer, sizeof(*answer), &in, 1, 0));
    if (n <= 0)
        return n == 0 ? -EPIPE : -errno;
    if (in.n)
        *fd = in.fd[0];
    return mounter_receive(m->socket, (char *)answer + n, sizeof(*answer) - (size_t)n);
}

static int ask(const struct mounter *m, const struct mounter_request *request, const void *more,
               size_t len, struct mounter_answer *answer, int *fd)
{
    int err = mounter_send(m->socket, request, sizeof(*request));

    if (!err && len)
        err = mounter_send(m->socket, more, len);
    if (!err)
        err = receive_answer(m, answer, fd);
    return err ? err : answer->err;
}

int mounter_mount(const struct mounter *m, bool read_only, int *fd, uint32_t *readahead,
                  struct reason *why)
{
    const struct mounter_request request = {
        .ask = read_only ? MOUNTER_MOUNT_READ_ONLY : MOUNTER_MOUNT, .value = *readahead};
    struct mounter_answer answer = {0};
    int err = ask(m, &request, NULL, 0, &answer, fd);

    *readahead = answer.readahead;
    answer.why.text[sizeof(answer.why.text) - 1] = '\0';
    *why = answer.why;
    return !err && *fd < 0 ? -EIO : err;
}

int mounter_unmount_begin(const struct mounter *m, bool lazily)
{
    const struct mounter_request request = {.ask = lazily ? MOUNTER_DETACH : MOUNTER_UNMOUNT};

    return mounter_send(m->socket, &request, sizeof(request));
}

int mounter_unmount_end(const struct mounter *m)
{
    struct mounter_answer answer;
    int fd;
    int err = receive_answer(m, &answer, &fd);

    return err ? err : answer.err;
}

int mounter_unmount(const struct mounter *m, bool lazily)
{
    int err = mounter_unmount_begin(m, lazily);

    return err ? err : mounter_unmount_end(m);
}

int mounter_abort(const struct mounter *m)
{
    const struct mounter_request request = {.ask = MOUNTER_ABORT};
    struct mounter_answer answer;
    int fd;

    return ask(m, &request, NULL, 0, &answer, &fd);
}

/* Calls writeback_files() with the mountpoint. */
static int mounter_ask_writeback(const struct mounter *m, const struct sync_target *targets,
                                 size_t count, unsigned seconds)
{
    uint32_t n = count < MOUNTER_TARGETS_MAX ? (uint32_t)count : MOUNTER_TARGETS_MAX;
    const struct mounter_request request = {
        .ask = MOUNTER_WRITE_BACK, .value = seconds, .count = n};
    struct mounter_answer answer;
    int fd;
    int err = ask(m, &request, targets, n * sizeof(*targets), &answer, &fd);

    return !err && n < count ? -E2BIG : err;
}

void mounter_end(struct mounter *m)
{
    if (m->socket < 0)
        return;
    log_through(-1);
    callers_close(&m->callers);
    close(m->socket);
    if (m->pid > 0)
        child_wait(m->pid, END_MS, NULL);
    *m = (struct mounter){.socket = -1};
}

/* --- Dirty files ----------------------------------------------------------------------------- */

/*
 * A page becomes dirty through a writable mapping, which keeps its file open,
 * or, with writeback_cache, through a descriptor that is open for writing.
 */
static bool may_be_dirty(const struct daemon *d, const struct open_file *file)
{
    return file_writes(file) && (d->writeback_cache || (file->flags & O_ACCMODE) == O_RDWR);
}

static struct sync_target *list_targets(struct daemon *d, size_t *count)
{
    size_t n = 0;
    size_t room = 0;

    pthread_mutex_lock(&d->files_lock);
    for (struct open_file *f = LIST_FIRST(&d->files); f; f = LIST_NEXT(f, entry))
        room += may_be_dirty(d, f);
    struct sync_target *targets = malloc((room + 1) * sizeof(*targets));
    for (struct open_file *f = LIST_FIRST(&d->files); targets && f; f = LIST_NEXT(f, entry)) {
        if (may_be_dirty(d, f))
            targets[n++] = (struct sync_target){.ino = ffs_ino(f->inode),
                                                .generation = ffs_generation(f->inode)};
    }
    pthread_mutex_unlock(&d->files_lock);
    *count = n;
    return targets;
}

void mounter_write_back_files(struct daemon *d, unsigned seconds)
{
    size_t count = 0;
    struct sync_target *targets = list_targets(d, &count);
    int err = mounter_ask_writeback(d->mounter, targets, targets ? count : 0, seconds);

    free(targets);
    if (err)
        log_line(LOG_WARNING, "%s: pages changed through mappings may be lost: %s",
                 d->opts->mountpoint, strerror(-err));
}
