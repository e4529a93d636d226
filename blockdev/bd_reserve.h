/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who may write to a namespace that several hosts reach: NVMe reservations, with
 * their policy and sentences. Multi-mount protection (FORMAT.md 4.5) exists
 * beside them, and also where a controller has none.
 */
#ifndef BLOCKDEV_BD_RESERVE_H
#define BLOCKDEV_BD_RESERVE_H

#include "blockdev/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum bd_reserve {
    /* A namespace that others may reach, if its controller has reservations. */
    BD_RESERVE_AUTO,
    BD_RESERVE_OFF,
    BD_RESERVE_REQUIRE, /* it is an error if there are none */
    BD_RESERVE_PREEMPT, /* as REQUIRE; takes the reservation away from another host */
};

/*
 * Reserves the namespace for this host before its first write
 * (nvme_reserve()). Returns 1 if it is reserved now, and 0 if it is not to be,
 * with a sentence in why if that is not as expected. Otherwise returns -errno
 * with a sentence in why: -EBUSY if another host has it, -ENOTSUP, or the error
 * of a command.
 */
int bd_reserve(struct nvme_ctrlr *c, uint32_t nsid, enum bd_reserve how, char *why, size_t len);

/*
 * Stores the host identifier (nvme_transport.host_id) for a device, derived from
 * the machine's ID and the name of the device: a program that opens it after a
 * crash of another one is the same host to the controller. It is all zero if the
 * machine has no ID. Call it before a sandbox is entered.
 */
void bd_host_id(const struct bd_name *name, uint8_t id[16]);

#ifdef __cplusplus
}
#endif

#endif
