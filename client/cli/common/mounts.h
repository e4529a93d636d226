/* SPDX-License-Identifier: BSD-2-Clause */
/* Lists the gpunvmefs mounts that this process sees. */
#ifndef CLIENT_CLI_COMMON_MOUNTS_H
#define CLIENT_CLI_COMMON_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct cli_mount {
    char *device; /* the device string of the mount */
    char *point;
    char *options;
};

struct cli_mounts {
    struct cli_mount *all;
    size_t n;
};

#define CLI_MOUNTS "/proc/self/mounts"
/* Time in which the daemon of a mount must answer, in milliseconds. */
#define CLI_ANSWER_MS 5000

/* Returns true if a mount of this type is one of gpunvmefs, with a block device or not. */
bool cli_mount_is_ours(const char *type);
/*
 * Reads a table such as CLI_MOUNTS. Returns 0, -ENOMEM, or an error of open(2).
 */
int cli_mounts_read(const char *table, struct cli_mounts *out);
void cli_mounts_free(struct cli_mounts *m);
/* Returns the mount of this PCI address or device node, or NULL. */
const struct cli_mount *cli_mounts_find(const struct cli_mounts *m, const char *bdf,
                                        const char *node);
/*
 * Returns false if the daemon of the mount at this path does not answer within
 * CLI_ANSWER_MS. An error counts as an answer. A child process sends the
 * request, because a request that a stopped daemon has read cannot be aborted;
 * the child exits when the mount ends.
 */
bool cli_mount_answers(const char *path);

__END_DECLS

#endif
