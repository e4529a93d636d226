/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Bare loop: warps that post commands which were made before, on leased queues, and poll for their
 * completions. No file, no staging, no copy: what the controller gives, or takes.
 */
#ifndef BENCH_LIB_BARE_KERNELS_H
#define BENCH_LIB_BARE_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_device_file;
struct pattern_pieces;
struct bare_loop;

/*
 * A command for each of the pieces, between the file and `room` bytes of registered memory from
 * `at` on, which are used in turn. is_write: the file is written, at places that have blocks.
 * A piece is cut at the end of its extent, and its rest left out. -ENOTSUP: more than one of 64
 * would be, or takes more than one command for another reason; -ENOMEM, -EIO.
 */
int bare_loop_open(const struct gpunvme_device_file *file, const struct pattern_pieces *p, void *at,
                   uint64_t room, bool is_write, struct bare_loop **out);
/* All commands once by so many warps, each with a leased queue. -EIO: a command failed. */
int bare_loop_time(struct bare_loop *b, unsigned queues, double *seconds);
/*
 * Reads, one after the other, by one warp with one queue: microseconds of each. on: memory of the
 * GPU for all of them, to which the warp copies the bytes; NULL: they stay where they are, in
 * `room` for all. -EIO: a command failed; -ENOMEM.
 */
int bare_loop_latency(struct bare_loop *b, void *on, double *micros);
void bare_loop_close(struct bare_loop *b);

#ifdef __cplusplus
}
#endif

#endif
