/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The file systems that `gpunvme list` shows: mounted ones, and those on
 * devices.
 */
#ifndef CLIENT_CLI_CMD_FILE_SYSTEMS_H
#define CLIENT_CLI_CMD_FILE_SYSTEMS_H

#include <stdbool.h>

#include "client/cli/common/mounts.h"
#include "client/cli/common/out.h"

/*
 * Starts a table with the columns "device", "label", "uuid", "bytes" and
 * "mounted_on".
 */
void cli_file_systems_begin(struct cli_table *t);
/*
 * Adds the mounted file systems. Returns false if memory is exhausted. A mount
 * that does not answer within 5 s is reported and has neither label nor UUID in
 * the table.
 */
bool cli_file_systems_mounted(struct cli_table *t, const struct cli_mounts *mounts);
/*
 * Adds the file system of a device that is not mounted here, from its
 * superblock. Returns 0, -ENODATA if there is none, -ENOMEM, or another -errno
 * with a sentence in why.
 */
int cli_file_systems_add(struct cli_table *t, const char *device, char *why, size_t len);

#endif
