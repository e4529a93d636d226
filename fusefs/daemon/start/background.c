/* SPDX-License-Identifier: BSD-2-Clause */
/* Forks into the background; the child reports through a pipe. */
#include "fusefs/daemon/start/background.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/start/mount_options.h"
#include "support/std_files.h"

/*
 * EOF without a byte means that the child ended before it reported. Its wait
 * status then decides.
 */
static int wait_for_verdict(int fd, pid_t child)
{
    unsigned char status;

    if (TEMP_FAILURE_RETRY(read(fd, &status, 1)) == 1)
        return status;
    int how = 0;
    if (waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) != 0)
        return WEXITSTATUS(how);
    return EXIT_SYSTEM;
}

static pid_t background_child;

static void background_pass_on(int number)
{
    kill(background_child, number);
}

/* A child that outlives its parent would mount later, when nobody expects it. */
static void pass_on_signals(pid_t child)
{
    const struct sigaction action = {.sa_handler = background_pass_on, .sa_flags = SA_RESTART};
    const int signals[] = {SIGTERM, SIGINT};
    sigset_t set;

    background_child = child;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        sigaction(signals[i], &action, NULL);
        sigaddset(&set, signals[i]);
    }
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

int background_start(int *status_fd)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return -errno;
    pid_t child = fork();
    if (child < 0) {
        int err = -errno;
        close(fds[0]);
        close(fds[1]);
        return err;
    }
    if (child > 0) {
        close(fds[1]);
        pass_on_signals(child);
        _exit(wait_for_verdict(fds[0], child));
    }
    close(fds[0]);
    setsid();
    log_in_background();
    *status_fd = fds[1];
    return chdir("/") == 0 ? 0 : -errno;
}

static void background_report(int status_fd, unsigned char status)
{
    ssize_t n = write(status_fd, &status, 1);

    (void)n; /* EPIPE: the parent was killed; nothing depends on its status */
    close(status_fd);
}

void background_ready(int status_fd)
{
    log_to_syslog();
    std_files_leave();
    background_report(status_fd, 0);
}

void background_failed(int status_fd, int status)
{
    background_report(status_fd, (unsigned char)status);
}
