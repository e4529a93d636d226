/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lets the driver's thread that rings a doorbell execute the commands itself.
 */
#ifndef SIM_SIM_LENT_H
#define SIM_SIM_LENT_H

#include <stdint.h>

#include "blockdev/transport.h"

/* Implements kick() of the transport. */
void sim_kick_queue(struct nvme_transport *t, uint16_t qid);

#endif
