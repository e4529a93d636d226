/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads names from /proc, which shows the descriptors of their own processes to
 * users, and those of all processes to root.
 */
#ifndef CLIENT_CLI_CMD_ACTIVITY_NAMES_H
#define CLIENT_CLI_CMD_ACTIVITY_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * Returns the process of a thread and stores its command. Returns the thread
 * itself, with the command "-", if it has ended.
 */
pid_t cli_process_of(pid_t thread, char *command, size_t len);
/*
 * Finds a path under which the process has the file open. Returns false if
 * there is none.
 */
bool cli_path_of(pid_t process, dev_t dev, ino_t ino, char *path, size_t len);

#endif
