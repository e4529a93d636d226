/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads by the persistent kernel (client/lib/direct_service.h) without a GPU: the driver's
 * functions are fakes, and each block is a thread. It serves commands as the block does, and serves
 * other reads, when the test lets it, from their own fields.
 */
#ifndef TESTS_CLIENT_LIB_SERVICE_RIG_H
#define TESTS_CLIENT_LIB_SERVICE_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "client/device/gd_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct service_rig;

/* command_ns: the drive's deadline, which waits are counted in. */
int service_rig_open(uint64_t command_ns, struct service_rig **out);
/* Returns false, and frees nothing, if a block is held or stuck. */
bool service_rig_close(struct service_rig *r);
/* What direct_service_read() says of len bytes at offset. */
int64_t service_rig_read(struct service_rig *r, uint64_t len, uint64_t offset);

/* The same of one that kernels of its own are launched for. */
int64_t service_rig_long_read(struct service_rig *r, uint64_t len, uint64_t offset);
/*
 * What a launch says from now on: 1 it was, 0 it was not, -errno. A kernel that was launched reads
 * at once, or, if it is held, when it is let; whether it is wanted then.
 */
void service_rig_set_launch(struct service_rig *r, int says, bool held);
bool service_rig_let_launched(struct service_rig *r);
/* Kernels for long reads that were launched, and the bytes they have read. */
unsigned service_rig_parts(const struct service_rig *r);
uint64_t service_rig_part_bytes(const struct service_rig *r);

/* Of a read that is one command, len bytes to byte `at` of the buffer; -ENOTSUP: it is not. */
int64_t service_rig_command(struct service_rig *r, const struct gpunvme_device_file *f,
                            const struct gd_buffer *b, uint64_t at, uint64_t len, uint64_t offset);

bool service_rig_has_left(const struct service_rig *r);
void service_rig_settle(struct service_rig *r);

/* Reads that are no commands: that were begun, and the bytes of all. Launches that worked. */
unsigned service_rig_reads(const struct service_rig *r);
uint64_t service_rig_bytes(const struct service_rig *r);
unsigned service_rig_launches(const struct service_rig *r);

/* What a read from this offset on runs into: -errno. */
void service_rig_fail_from(struct service_rig *r, uint64_t offset, int err);
/* A launch takes nothing until it is let. */
void service_rig_hold(struct service_rig *r, bool hold);
/* The block's clock: stops so much later than it is now, and goes on with the machine's. */
void service_rig_stop_clock(struct service_rig *r, uint64_t later_ns);
void service_rig_run_clock(struct service_rig *r);
unsigned service_rig_clock_polls(const struct service_rig *r);
/* A read that is begun does not end until it is let. */
void service_rig_stick(struct service_rig *r, bool stick);
void service_rig_fail_launches(struct service_rig *r, int err);
/* Kernels that were left in the stream end. */
void service_rig_end_stream(struct service_rig *r);
/* From now on the driver says, when it is asked, that the context has failed: "what CUDA says". */
void service_rig_fail_stream(struct service_rig *r);
/* How often it was asked. */
unsigned service_rig_checks(const struct service_rig *r);
/* The page that host and block share. */
void *service_rig_page(const struct service_rig *r);
/* Streams, kernels and mappings that are there. */
int service_rig_held(const struct service_rig *r);

#ifdef __cplusplus
}
#endif

#endif
