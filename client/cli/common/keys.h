/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the key q, which ends a command that repeats. */
#ifndef CLIENT_CLI_COMMON_KEYS_H
#define CLIENT_CLI_COMMON_KEYS_H

#include <signal.h>
#include <stdbool.h>
#include <termios.h>

struct cli_keys {
    bool on; /* keys are read; otherwise the functions only wait */
    struct termios before;
    sigset_t mask;
};

/*
 * Makes the terminal deliver keys at once and without an echo, if this process
 * is in the foreground of one. cli_keys_end() restores it, also after SIGINT or
 * SIGTERM, which end cli_keys_wait() and then the process.
 */
void cli_keys_begin(struct cli_keys *k);
/* Waits for the time, and returns true if the user ended the command earlier. */
bool cli_keys_wait(struct cli_keys *k, unsigned seconds);
void cli_keys_end(struct cli_keys *k);

#endif
