/* SPDX-License-Identifier: BSD-2-Clause */
/* Parses faults on a command line, KIND[,KEY[=VALUE]]... (gpunvme-sim(1)). */
#ifndef SIM_SERVE_SERVE_FAULT_SPEC_H
#define SIM_SERVE_SERVE_FAULT_SPEC_H

#include "sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Returns 0, or -EINVAL with the reason in why, as a phrase to follow "--fault:
 * ".
 */
int serve_fault_parse(const char *spec, struct sim_fault *out, char *why, size_t len);

#ifdef __cplusplus
}
#endif

#endif
