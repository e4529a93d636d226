/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Names from /proc, which shows a user the descriptors of its own processes,
 * and root those of all.
 */
#ifndef CLIENT_CLI_CMD_ACTIVITY_NAMES_H
#define CLIENT_CLI_CMD_ACTIVITY_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The process of a thread, and its command; the thread itself and "-" when it has ended. */
pid_t cli_process_of(pid_t thread, char *command, size_t len);
/* A path that the process has open for the file; false: none is found. */
bool cli_path_of(pid_t process, dev_t dev, ino_t ino, char *path, size_t len);

#endif
