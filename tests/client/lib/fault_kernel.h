/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs a kernel whose fault ends the CUDA context of the calling process. */
#ifndef TESTS_CLIENT_LIB_FAULT_KERNEL_H
#define TESTS_CLIENT_LIB_FAULT_KERNEL_H

#include <sys/cdefs.h>

__BEGIN_DECLS

/* Runs a kernel that stores to an unmapped address. Returns the error that CUDA reports, or 0. */
int fault_kernel_run(void);

__END_DECLS

#endif
