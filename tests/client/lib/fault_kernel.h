/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs a kernel whose fault ends the CUDA context of the calling process. */
#ifndef TESTS_CLIENT_LIB_FAULT_KERNEL_H
#define TESTS_CLIENT_LIB_FAULT_KERNEL_H

#ifdef __cplusplus
extern "C" {
#endif

/* Runs a kernel that stores to an unmapped address. Returns the error that CUDA reports, or 0. */
int fault_kernel_run(void);

#ifdef __cplusplus
}
#endif

#endif
