/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device on which a file system is created. Functions report their error
 * and return 0 or -1.
 */
#ifndef MKFS_TARGET_H
#define MKFS_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "mkfs/tool.h"

struct target {
    const struct tool_device *device;
    struct bd_opened opened; /* dev holds the lock; NULL in a dry run on a missing file */
    int fd;                  /* the file or block device; for a controller a copy of its ends */
    bool created;            /* this process created the file and removes it on failure */
};

/*
 * Opens the device. A missing file is created if bytes is not 0, except in a
 * dry run.
 */
int target_open(struct target *t, const struct tool_device *device, uint64_t bytes, bool dry_run);
/*
 * May also be called after target_open() has failed. Removes a file that it
 * created if `failed`.
 */
void target_close(struct target *t, bool failed);

/* Refuses a device with a signature unless `force` is set. */
int target_refuse_signature(const struct target *t, bool force);
/*
 * Returns the size of the device after preparation for a file system of
 * `wanted` bytes (0 means its current size).
 */
uint64_t target_bytes(const struct target *t, uint64_t wanted);
/* Refuses a file whose file system has no room for `bytes`. */
int target_check_room(const struct target *t, uint64_t bytes);
/* Removes old signatures and extends a file that is too short. */
int target_prepare(struct target *t, uint64_t wanted);

#endif
