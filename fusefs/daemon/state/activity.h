/* SPDX-License-Identifier: BSD-2-Clause */
/* Counts the bytes that each open file description has moved. */
#ifndef FUSEFS_DAEMON_STATE_ACTIVITY_H
#define FUSEFS_DAEMON_STATE_ACTIVITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpunvme/gpunvme_ioctl.h"

struct daemon;
struct open_file;

/* Number of closed descriptions that are still reported. */
#define ACTIVITY_CLOSED 64u

enum activity_path { ACTIVITY_GPU, ACTIVITY_BOUNCE, ACTIVITY_KERNEL, ACTIVITY_PATHS };

/*
 * Counters of an open file. Accesses are relaxed, since each counter is
 * independent and orders no other memory.
 */
struct activity {
    uint64_t id;             /* larger than those of earlier descriptions */
    _Atomic uint64_t caller; /* of the last request: uid << 32 | pid */
    _Atomic uint64_t calls;
    _Atomic uint64_t bytes[ACTIVITY_PATHS][2]; /* read, written */
};

/* Protected by daemon.files_lock. */
struct activity_log {
    uint64_t last_id;
    struct gpunvme_open_file closed[ACTIVITY_CLOSED]; /* id is 0 in a free entry */
    unsigned next;                                    /* entry to overwrite next */
};

/* Called at OPEN with the lock held. */
void activity_begin(struct activity_log *log, struct activity *a);
/* Called at RELEASE with the lock held. */
void activity_end(struct activity_log *log, const struct open_file *file);

/*
 * Sets the caller. pid is 0 for write-back by the kernel, which leaves the
 * caller unchanged.
 */
void activity_caller(struct activity *a, uid_t uid, pid_t pid);
/* Counts one call. A call of 0 bytes is not counted. */
void activity_add(struct activity *a, enum activity_path path, bool written, uint64_t bytes);

/*
 * Returns whether uid may see the activity of a process of owner. Root sees
 * everything, and a user sees its own processes.
 */
bool activity_visible(uid_t uid, uint32_t owner);
/* Reports the files that uid may see. */
int activity_files(struct daemon *d, uid_t uid, struct gpunvme_ioc_open_files *arg);

#endif
