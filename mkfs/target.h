/* SPDX-License-Identifier: BSD-2-Clause */
/* The device that becomes a file system. Functions report their error and return 0 or -1. */
#ifndef MKFS_TARGET_H
#define MKFS_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "mkfs/tool.h"

struct target {
    const struct tool_device *device;
    struct bd_opened opened; /* dev holds the lock; NULL: a dry run on a file that does not exist */
    int fd;                  /* the file or block device; of a controller: a copy of its ends */
    bool created;            /* the file, by us: goes away if we fail */
};

/* Opens it. A file that is missing is made when bytes is not 0 and this is no dry run. */
int target_open(struct target *t, const struct tool_device *device, uint64_t bytes, bool dry_run);
/* Also after target_open() has failed. */
void target_close(struct target *t, bool failed);

int target_refuse_signature(const struct target *t, bool force);
/* Its size, once it has been prepared for a file system of `wanted` bytes (0: as it is). */
uint64_t target_bytes(const struct target *t, uint64_t wanted);
/* Refuses a file that lies where there is no room for `bytes` of the file system's own. */
int target_check_room(const struct target *t, uint64_t bytes);
/* Wipes old signatures, makes a file long enough. */
int target_prepare(struct target *t, uint64_t wanted);

#endif
