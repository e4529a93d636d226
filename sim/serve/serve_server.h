/* SPDX-License-Identifier: BSD-2-Clause */
/* Serves the controller: its socket, one client at a time, and signals. */
#ifndef SIM_SERVE_SERVE_SERVER_H
#define SIM_SERVE_SERVE_SERVER_H

#include "sim/serve/serve_options.h"

/*
 * Serves until SIGTERM or SIGINT. SIGUSR1 calls sim_stick(), and SIGUSR2
 * sim_remove(). Returns 0, -errno after an error message, or 1 if a driver made
 * mistakes, which have been printed.
 */
int serve_server_run(const struct serve_options *o);

#endif
