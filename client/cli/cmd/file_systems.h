/* SPDX-License-Identifier: BSD-2-Clause */
/* The file systems that `gpunvme list` names: those that are mounted, and those on devices. */
#ifndef CLIENT_CLI_CMD_FILE_SYSTEMS_H
#define CLIENT_CLI_CMD_FILE_SYSTEMS_H

#include <stdbool.h>

#include "client/cli/common/mounts.h"
#include "client/cli/common/out.h"

/* "device", "label", "uuid", "bytes", "mounted_on". */
void cli_file_systems_begin(struct cli_table *t);
/*
 * False when out of memory. A mount that does not answer within 5 s is reported, and has neither
 * label nor UUID.
 */
bool cli_file_systems_mounted(struct cli_table *t, const struct cli_mounts *mounts);
/*
 * The file system on a device that is not mounted here, read from its superblock. 0; -ENODATA when
 * there is none; -ENOMEM; or another -errno with a sentence in why.
 */
int cli_file_systems_add(struct cli_table *t, const char *device, char *why, size_t len);

#endif
