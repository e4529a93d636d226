/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads of the direct path from inside a kernel of the benchmark's. */
#ifndef BENCH_LIB_DIRECT_KERNELS_H
#define BENCH_LIB_DIRECT_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_device_file;
struct pattern_pieces;

/*
 * One warp reads the pieces, one after the other, to memory of a registered buffer: microseconds of
 * each, as the GPU sees them. -EIO: a read failed; -ENOMEM.
 */
int kernel_direct_reads(const struct gpunvme_device_file *file, const struct pattern_pieces *p,
                        void *to, double *micros);

/* What such a read does where one command serves it, in this order. */
enum direct_phase {
    DIRECT_FILE, /* loads the file's fields */
    DIRECT_TAKE, /* takes a queue and looks after the leases, loads the table of buffers, extents */
    DIRECT_FIND, /* finds the buffer in the table */
    DIRECT_MAKE, /* finds the extent, makes the command */
    DIRECT_SEND, /* stores it, up to its doorbell */
    DIRECT_WAIT, /* until the completion is seen */
    DIRECT_GIVE, /* unlocks the queue */
    DIRECT_CLOCK, /* and no part of it: one look at the clock, of which each look takes one */
    DIRECT_PHASES
};

/* The same reads with stamps in between: DIRECT_PHASES * pieces, those of one phase together. */
int kernel_direct_phases(const struct gpunvme_device_file *file, const struct pattern_pieces *p,
                         void *to, double *micros);

#ifdef __cplusplus
}
#endif

#endif
