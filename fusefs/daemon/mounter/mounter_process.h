/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Defines the messages between the daemon and its mounter, over a stream socket
 * between them.
 */
#ifndef FUSEFS_DAEMON_MOUNTER_MOUNTER_PROCESS_H
#define FUSEFS_DAEMON_MOUNTER_MOUNTER_PROCESS_H

#include <stdint.h>

#include "fusefs/daemon/mounter/mounter.h"

/* Limit of the targets of one request. */
#define MOUNTER_TARGETS_MAX 65536u

enum mounter_ask {
    MOUNTER_MOUNT,           /* value: bytes of read-ahead; the answer carries the connection */
    MOUNTER_MOUNT_READ_ONLY, /* like MOUNTER_MOUNT, with the option ro */
    MOUNTER_UNMOUNT,
    MOUNTER_DETACH, /* lazy unmount */
    MOUNTER_ABORT,
    MOUNTER_WRITE_BACK, /* value: seconds; followed by `count` struct sync_target */
};

struct mounter_request {
    uint32_t ask; /* enum mounter_ask */
    uint32_t value;
    uint32_t count;
};

struct mounter_answer {
    int32_t err; /* 0 or -errno */
    uint32_t readahead;
    struct reason why;
};

/* The ends of sockets that the process serves. */
struct mounter_sockets {
    int requests;
    int logs;    /* for log_relay() */
    int callers; /* for callers_serve() */
};
/* Serves the sockets until the daemon has closed its ends, then exits. */
_Noreturn void mounter_serve(const struct mounter_sockets *sockets, const struct options *opts,
                             const struct fuse_args *args);
/*
 * These functions transfer all bytes. They return 0 or -errno, which is -EPIPE
 * at the end of the stream.
 */
int mounter_receive(int socket, void *data, size_t len);
int mounter_send(int socket, const void *data, size_t len);

#endif
