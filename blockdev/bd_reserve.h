/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reserves a namespace that several hosts reach for the host that writes to it
 * (NVMe reservations). Decides when to reserve, and explains errors.
 * Multi-mount protection (FORMAT.md 4.5) is used in addition, and where a
 * controller has no reservations.
 */
#ifndef BLOCKDEV_BD_RESERVE_H
#define BLOCKDEV_BD_RESERVE_H

#include <sys/cdefs.h>

#include "blockdev/device.h"
#include "support/reason.h"

__BEGIN_DECLS

enum bd_reserve {
    /*
     * Reserves a namespace that other hosts may reach, if its controller has
     * reservations.
     */
    BD_RESERVE_AUTO,
    BD_RESERVE_OFF,
    BD_RESERVE_REQUIRE, /* a controller without reservations is an error */
    BD_RESERVE_PREEMPT, /* as REQUIRE; takes the reservation away from another host */
};

/*
 * Reserves the namespace for this host before its first write (nvme_reserve()).
 * Returns 1 if this host has reserved it. Returns 0 if it is used without a
 * reservation; `why` then has a sentence if that is unexpected. Otherwise
 * stores a sentence in `why` and returns -EBUSY if another host has the
 * reservation, -ENOTSUP, or the error of a command.
 */
int bd_reserve(struct nvme_ctrlr *c, uint32_t nsid, enum bd_reserve how, struct reason *why);

/*
 * Reserves a block device that the kernel drives. The function returns the same
 * values as bd_reserve(). The reservation ends when the device is closed.
 * host_id is the result of bd_host_id(). Its first bytes are the key of this host.
 */
int bd_reserve_disk(struct bd_dev *dev, const uint8_t host_id[16], enum bd_reserve how,
                    struct reason *why);

/*
 * Stores the host identifier (nvme_transport.host_id) for a device. It is
 * derived from the machine's ID and the name of the device, so the controller
 * takes a program that opens the device after a crash for the same host. It is
 * all zero if the machine has no ID. Call it before a sandbox is entered.
 */
void bd_host_id(const struct bd_name *name, uint8_t id[16]);

__END_DECLS

#endif
