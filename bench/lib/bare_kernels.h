/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The bare loop: warps post commands that were made before on leased queues, and poll for their
 * completions. It shows what the controller gives or takes, without a file, staging or locks.
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
 * Makes a command for each of the pieces, between the file and `room` bytes of registered memory
 * from `at` on, which are used in turn. With is_write the file is written, at places that have
 * blocks. A piece that lies in two extents takes two commands. Returns -ENOTSUP if more than one of
 * 64 pieces does, or if one needs more commands, -ENOMEM or -EIO.
 */
int bare_loop_open(const struct gpunvme_device_file *file, const struct pattern_pieces *p, void *at,
                   uint64_t room, bool is_write, struct bare_loop **out);
/*
 * Runs all commands once by `queues` warps, each with a leased queue that it keeps full. Returns
 * -EIO if a command failed.
 */
int bare_loop_time(struct bare_loop *b, unsigned queues, double *seconds);
/*
 * Runs all commands once by `warps` warps, each with a leased queue and one command at a time.
 * `on` is GPU memory for all pieces, to which the warp copies the bytes; if it is NULL they stay
 * in `room`. Stores the microseconds of each command unless micros is NULL. Returns -EIO if a
 * command failed, -ENOTSUP if a piece takes two commands, or -ENOMEM.
 */
int bare_loop_one_by_one(struct bare_loop *b, unsigned warps, void *on, double *seconds,
                         double *micros);
void bare_loop_close(struct bare_loop *b);

#ifdef __cplusplus
}
#endif

#endif
