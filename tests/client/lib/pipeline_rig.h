/* SPDX-License-Identifier: BSD-2-Clause */
// The bounce pipeline without a mount: any file, host memory, staging filled by read(2).
#ifndef TESTS_CLIENT_LIB_PIPELINE_RIG_H
#define TESTS_CLIENT_LIB_PIPELINE_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "gpunvme/gpunvme_ioctl.h"

__BEGIN_DECLS

struct rig;

/* NULL when it cannot be made. The buffer is the memory [addr, +len). */
struct rig *rig_new(unsigned threads, size_t chunk, void *addr, size_t len);
void rig_free(struct rig *r);
/* Bytes moved; *err as pipeline_run() leaves it. From any thread. */
size_t rig_read(struct rig *r, int fd, size_t buffer_offset, uint64_t offset, size_t len, int *err);
size_t rig_write(struct rig *r, int fd, size_t buffer_offset, uint64_t offset, size_t len,
                 int *err);
/* Reads a list, as pipeline_readv() does. *bytes may be NULL. */
int rig_readv(struct rig *r, int fd, struct gpunvme_piece *pieces, size_t n, uint64_t *bytes);
/* As buffer_unregister() does to transfers under way; undone with false. */
void rig_end_buffer(struct rig *r, bool ending);
/* So many of the next reads and writes of files are interrupted. */
void rig_interrupt(unsigned calls);
/* Each of the next reads of files waits until this many have begun, at most five seconds. */
void rig_meet(unsigned reads);
/* Lanes made so far, all of them free. */
unsigned rig_staging(struct rig *r);

__END_DECLS

#endif
