/* SPDX-License-Identifier: BSD-2-Clause */
/* The options of a simulated controller, as a mount is given them: "threads:8:lba:512". */
#ifndef SIM_SIM_OPTIONS_H
#define SIM_SIM_OPTIONS_H

#include <stddef.h>

#include "sim/sim.h"

/*
 * Sets the fields of *cfg that the text names by KEY:VALUE pairs, and the threads if it does not
 * name them; changes no other fields. text: NULL means no options. 0, or -EINVAL with a sentence
 * in why.
 */
int sim_options_parse(const char *text, struct sim_config *cfg, char *why, size_t len);

#endif
