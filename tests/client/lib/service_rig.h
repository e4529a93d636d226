/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads by the persistent kernel (client/lib/direct_service.h) without a GPU: the driver's
 * functions are fakes, and each block is a thread. It reads files through their queues. A read of
 * no file is made up of its own fields, when the test lets it.
 */
#ifndef TESTS_CLIENT_LIB_SERVICE_RIG_H
#define TESTS_CLIENT_LIB_SERVICE_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "client/device/gd_types.h"

#ifdef __cplusplus
#include <atomic>
#define SERVICE_RIG_ATOMIC(type) std::atomic<type>
extern "C" {
#else
#define SERVICE_RIG_ATOMIC(type) _Atomic(type)
#endif

struct service_rig {
    /* Kernels for long reads that were launched, and the bytes they have read. */
    SERVICE_RIG_ATOMIC(unsigned) parts;
    SERVICE_RIG_ATOMIC(uint64_t) part_bytes;
    /* The rig counts reads that have begun, their bytes, and launches without an error. */
    SERVICE_RIG_ATOMIC(unsigned) reads;
    SERVICE_RIG_ATOMIC(uint64_t) bytes;
    SERVICE_RIG_ATOMIC(unsigned) launches;
    SERVICE_RIG_ATOMIC(unsigned) checks; /* how often the driver was asked */
    SERVICE_RIG_ATOMIC(unsigned) clock_polls;
    SERVICE_RIG_ATOMIC(int) held; /* streams, kernels and mappings that are there */
    void *page;                   /* the page that host and block share */
    /* Set by the test: */
    SERVICE_RIG_ATOMIC(uint64_t) fail_from;
    SERVICE_RIG_ATOMIC(int) fail;            /* -errno */
    SERVICE_RIG_ATOMIC(int) fail_launches;   /* 0 or -errno */
    SERVICE_RIG_ATOMIC(bool) serves_first;   /* a launch that fails has served what was posted */
    SERVICE_RIG_ATOMIC(uint64_t) stopped_ns; /* time of the block's clock; 0: the machine's */
    SERVICE_RIG_ATOMIC(bool) hold;           /* a launch takes nothing */
    SERVICE_RIG_ATOMIC(bool) stick;          /* a read that is begun does not end */
    SERVICE_RIG_ATOMIC(bool) is_idle;        /* kernels that were left in the stream have ended */
    /* The driver says, when it is asked, that the context has failed: "what CUDA says". */
    SERVICE_RIG_ATOMIC(bool) fail_stream;
    int launch_says; /* by service_rig_set_launch() */
    bool holds_part;
};

/* command_ns: the drive's deadline, which waits are counted in. */
int service_rig_open(uint64_t command_ns, struct service_rig **out);
/* Returns false, and frees nothing, if a block is held or stuck. */
bool service_rig_close(struct service_rig *r);
/* What direct_service_read() says of len bytes at offset. */
int64_t service_rig_read(uint64_t len, uint64_t offset);

/* The same of one that kernels of its own are launched for. */
int64_t service_rig_long_read(struct service_rig *r, uint64_t len, uint64_t offset);
/*
 * What a launch says from now on: 1 it was, 0 it was not, -errno. A kernel that was launched reads
 * at once, or, if it is held, when it is let; whether it is wanted then.
 */
void service_rig_set_launch(struct service_rig *r, int says, bool held);
bool service_rig_let_launched(struct service_rig *r);

/* Returns what direct_service_read() returns for a file and an address in a registered buffer. */
int64_t service_rig_read_file(const struct gpunvme_device_file *f, uint64_t addr, uint64_t len,
                              uint64_t offset);

bool service_rig_has_left(void);
bool service_rig_settle(void);
bool service_rig_any_stuck(void);

/* A read from this offset on ends with the given -errno. */
void service_rig_fail_from(struct service_rig *r, uint64_t offset, int err);
/* The block's clock stops so much later than it is now. */
void service_rig_stop_clock(struct service_rig *r, uint64_t later_ns);

#ifdef __cplusplus
}
#endif

#endif
