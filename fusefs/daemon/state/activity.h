/* SPDX-License-Identifier: BSD-2-Clause */
/* What each open file description moved. */
#ifndef FUSEFS_DAEMON_STATE_ACTIVITY_H
#define FUSEFS_DAEMON_STATE_ACTIVITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpunvme/gpunvme_ioctl.h"

struct daemon;
struct open_file;

/* Descriptions that were closed and are still reported. */
#define ACTIVITY_CLOSED 64u

enum activity_path { ACTIVITY_GPU, ACTIVITY_BOUNCE, ACTIVITY_KERNEL, ACTIVITY_PATHS };

/* Counters of an open file. Relaxed: each number is right by itself, and orders no other memory. */
struct activity {
    uint64_t id;             /* larger than those of descriptions opened before */
    _Atomic uint64_t caller; /* of the last request: uid << 32 | pid */
    _Atomic uint64_t calls;
    _Atomic uint64_t bytes[ACTIVITY_PATHS][2]; /* read, written */
};

/* Protected by daemon.files_lock. */
struct activity_log {
    uint64_t last_id;
    struct gpunvme_open_file closed[ACTIVITY_CLOSED]; /* id 0: free */
    unsigned next;                                    /* to be overwritten */
};

/* Called at OPEN with the lock held. */
void activity_begin(struct activity_log *log, struct activity *a);
/* Called at RELEASE with the lock held. */
void activity_end(struct activity_log *log, const struct open_file *file);

/* pid 0, of write-back by the kernel, leaves the caller as it is. */
void activity_caller(struct activity *a, uid_t uid, pid_t pid);
/* One call; 0 bytes are none. */
void activity_add(struct activity *a, enum activity_path path, bool written, uint64_t bytes);

/* May uid see what a process of owner did? Root sees everything, a user its own processes. */
bool activity_visible(uid_t uid, uint32_t owner);
/* The files that uid may see. */
int activity_files(struct daemon *d, uid_t uid, struct gpunvme_ioc_open_files *arg);

#endif
