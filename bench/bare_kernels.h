/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Bare loop: warps that post commands which were made before, on leased queues, and poll for their
 * completions. No file, no staging, no copy: what the controller gives.
 */
#ifndef BENCH_BARE_KERNELS_H
#define BENCH_BARE_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_device_file;
struct pattern_pieces;
struct bare_loop;

/*
 * A command for each of the pieces, into `room` bytes of registered memory from `to` on, which are
 * used in turn. -ENOTSUP: a piece takes more than one command; -ENOMEM, -EIO.
 */
int bare_loop_open(const struct gpunvme_device_file *file, const struct pattern_pieces *p, void *to,
                   uint64_t room, struct bare_loop **out);
/* All commands once, by `queues` warps with a leased queue each. -EIO: one of them failed. */
int bare_loop_run(struct bare_loop *b, unsigned queues);
void bare_loop_close(struct bare_loop *b);

#ifdef __cplusplus
}
#endif

#endif
