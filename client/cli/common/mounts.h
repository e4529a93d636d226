/* SPDX-License-Identifier: BSD-2-Clause */
/* The mounts of gpunvmefs that this process sees. */
#ifndef CLIENT_CLI_COMMON_MOUNTS_H
#define CLIENT_CLI_COMMON_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cli_mount {
    char *device; /* the device string it was mounted with */
    char *point;
    char *options;
};

struct cli_mounts {
    struct cli_mount *all;
    size_t n;
};

#define CLI_MOUNTS "/proc/self/mounts"
/* Time for the daemon of a mount to answer, milliseconds. */
#define CLI_ANSWER_MS 5000

/* table: as CLI_MOUNTS. 0, -ENOMEM, or those of open(2). */
int cli_mounts_read(const char *table, struct cli_mounts *out);
void cli_mounts_free(struct cli_mounts *m);
/* The mount of the drive at this PCI address, or of this node; NULL when there is none. */
const struct cli_mount *cli_mounts_find(const struct cli_mounts *m, const char *bdf,
                                        const char *node);
/*
 * False when the daemon of the mount at this path does not answer within CLI_ANSWER_MS; an error is
 * an answer. A child process asks, because the caller of a request that a stopped daemon has read
 * cannot end it; that child ends with the mount.
 */
bool cli_mount_answers(const char *path);

#ifdef __cplusplus
}
#endif

#endif
