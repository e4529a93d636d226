/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads of the direct path that have several kernels, without a GPU: the library over a driver
 * whose functions are fakes. Kernels of the one stream run in a thread, one after another, when
 * they are let; one that reads fills the memory that the rig's reads go to.
 */
#ifndef TESTS_CLIENT_LIB_LAUNCH_RIG_H
#define TESTS_CLIENT_LIB_LAUNCH_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

#define LAUNCH_RIG_BYTES  (4u << 20) /* of the file */
#define LAUNCH_RIG_PIECES 64u

struct launch_rig;

/* stages: the drive does not reach the memory. sums: the file has checksums. */
struct launch_rig *launch_rig_open(bool stages, bool sums, uint64_t command_ns);
void launch_rig_close(struct launch_rig *r);

/* What direct_read_async() says of the whole file, and direct_readv_async() of all pieces. */
int launch_rig_read(struct launch_rig *r);
int launch_rig_list(struct launch_rig *r);
/* Until the stream is idle; *bytes of the read that ended last. */
int64_t launch_rig_result(struct launch_rig *r);

/* The nth launch from now on is refused; 1: the next one. */
void launch_rig_refuse(struct launch_rig *r, unsigned nth);
/* Kernels that are launched do not run until they are let. */
void launch_rig_hold(struct launch_rig *r, bool hold);
/* The stream is being captured: kernels do not run, and a query fails. */
void launch_rig_capture(struct launch_rig *r, bool on);
/* Comparisons find a block that differs. */
void launch_rig_differ(struct launch_rig *r, bool differs);

struct launch_rig_counts {
    unsigned launches, under_way; /* kernels so far, and those of them that have not ended */
    unsigned queries;
    unsigned dirty; /* kernels that found words of their check in use */
};
struct launch_rig_counts launch_rig_counts(struct launch_rig *r);

__END_DECLS

#endif
