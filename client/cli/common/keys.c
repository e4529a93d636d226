/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads keys of the terminal while a command waits. */
#include "client/cli/common/keys.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include "support/clock.h"

static volatile sig_atomic_t keys_signal;

static void keys_keep_signal(int number)
{
    keys_signal = number;
}

/* The signals arrive only in ppoll(2), so that none is missed before it. */
static void keys_catch_signals(struct cli_keys *k)
{
    struct sigaction action = {.sa_handler = keys_keep_signal};
    sigset_t ours;

    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    sigprocmask(SIG_BLOCK, &ours, &k->mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void cli_keys_begin(struct cli_keys *k)
{
    *k = (struct cli_keys){.on = false};
    if (!isatty(STDIN_FILENO) || tcgetpgrp(STDIN_FILENO) != getpgrp() ||
        tcgetattr(STDIN_FILENO, &k->before) != 0)
        return;
    struct termios keys = k->before;
    keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    keys_catch_signals(k);
    k->on = true;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
}

/* Reads keys. Returns true if one of them is q, or the terminal is gone. */
static bool keys_are_end(void)
{
    char keys[64];
    ssize_t n = read(STDIN_FILENO, keys, sizeof(keys));

    for (ssize_t i = 0; i < n; i++) {
        if (keys[i] == 'q' || keys[i] == 'Q')
            return true;
    }
    return n == 0 || (n < 0 && errno != EINTR);
}

bool cli_keys_wait(struct cli_keys *k, unsigned seconds)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    double until = now_seconds() + seconds, left;

    if (!k->on) {
        sleep(seconds);
        return false;
    }
    while (!keys_signal && (left = until - now_seconds()) > 0) {
        struct timespec t = {.tv_sec = (time_t)left,
                             .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
        if (ppoll(&in, 1, &t, &k->mask) > 0 && keys_are_end())
            return true;
    }
    return keys_signal != 0;
}

void cli_keys_end(struct cli_keys *k)
{
    if (!k->on)
        return;
    k->on = false;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &k->before);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &k->mask, NULL);
    if (keys_signal)
        raise(keys_signal);
}
