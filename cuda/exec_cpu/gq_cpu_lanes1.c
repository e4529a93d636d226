/* SPDX-License-Identifier: BSD-2-Clause */
/* Compiles the queue protocol for a host thread with one lane, the fast form. */
#define GQ_LANES     1u
#define GQ_CPU_DRIVE gq_cpu_drive_1
#include "cuda/exec_cpu/gq_cpu_drive.h"
