/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Compiles the queue protocol for a host thread that executes a warp of 32
 * lanes in lockstep.
 */
#define GQ_LANES     32u
#define GQ_CPU_DRIVE gq_cpu_drive_32
#include "cuda/exec_cpu/gq_cpu_drive.h"
