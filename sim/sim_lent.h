/* SPDX-License-Identifier: BSD-2-Clause */
/* Commands that a thread of the driver executes. */
#ifndef SIM_SIM_LENT_H
#define SIM_SIM_LENT_H

#include <stdint.h>

#include "blockdev/transport.h"

/* As struct nvme_software has it. */
void sim_kick_queue(struct nvme_transport *t, uint16_t qid);

#endif
