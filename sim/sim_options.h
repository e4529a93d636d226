/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The options of a simulated controller in the form in which a mount receives
 * them: "threads:8:lba:512".
 */
#ifndef SIM_SIM_OPTIONS_H
#define SIM_SIM_OPTIONS_H

#include <stddef.h>

#include "sim/sim.h"

/*
 * Parses KEY:VALUE pairs. Sets the fields of *cfg that the text names, and the
 * number of threads in any case; no other field changes. A `text` of NULL means
 * no options. Returns 0, or -EINVAL with a sentence in why.
 */
int sim_options_parse(const char *text, struct sim_config *cfg, char *why, size_t len);

#endif
