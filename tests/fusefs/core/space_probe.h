/* SPDX-License-Identifier: BSD-2-Clause */
/* What tests of space look at inside of a mounted file system. */
#ifndef TESTS_FUSEFS_SPACE_PROBE_H
#define TESTS_FUSEFS_SPACE_PROBE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ffs;

/* Does no thread hold the lock of metadata? */
bool space_is_unlocked(struct ffs *fs);
/* Groups that have a map of their own. */
size_t space_maps(struct ffs *fs);

#ifdef __cplusplus
}
#endif

#endif
