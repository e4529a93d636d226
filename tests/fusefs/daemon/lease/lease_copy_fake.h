/* SPDX-License-Identifier: BSD-2-Clause */
/* Hooks for copy kernels of leases, without a GPU. */
#ifndef TESTS_DAEMON_LEASE_COPY_FAKE_H
#define TESTS_DAEMON_LEASE_COPY_FAKE_H

#include "cuda/gq_copies.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of the process. Buffers have no windows, as none lies in GPU memory. */
struct gq_copies *lease_copy_fake(void);

#ifdef __cplusplus
}
#endif

#endif
