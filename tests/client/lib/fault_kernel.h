/* SPDX-License-Identifier: BSD-2-Clause */
/* A kernel that ends the CUDA context of its process by a fault. */
#ifndef TESTS_CLIENT_LIB_FAULT_KERNEL_H
#define TESTS_CLIENT_LIB_FAULT_KERNEL_H

#ifdef __cplusplus
extern "C" {
#endif

/* Stores to an address without memory. Returns CUDA's error, or 0 if there is none. */
int fault_kernel_run(void);

#ifdef __cplusplus
}
#endif

#endif
