/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares what the files of admin commands share. All controller threads are
 * paused while these functions run.
 */
#ifndef SIM_SIM_ADMIN_H
#define SIM_SIM_ADMIN_H

#include "sim/sim_internal.h"

struct admin {
    struct sim *s;
    struct sim_thread *th;
    const struct nvme_sqe *sqe;
    uint32_t result; /* dword 0 of the completion */
};

/* sim_dptr.c */
/* Reports a mistake of the driver. Returns the status. */
uint16_t sim_admin_flagged(struct admin *a, enum sim_event e, uint16_t status);

/* sim_identify.c, sim_log.c, sim_features.c: return a status. */
uint16_t sim_identify(struct admin *a);
uint16_t sim_get_log_page(struct admin *a);
uint16_t sim_features(struct admin *a); /* sets or gets one */
/* Returns true if the feature is supported. */
bool sim_feature_known(const struct sim *s, uint32_t fid);

/*
 * Returns the length of the data of Set or Get Features in bytes. Only a host
 * identifier has data.
 */
static inline size_t sim_feature_bytes(const struct nvme_sqe *sqe)
{
    if ((sqe->cdw10 & 0xff) != NVME_FEAT_HOST_ID)
        return 0;
    return sqe->cdw11 & NVME_HOST_ID_LONG ? SIM_HOST_ID : SIM_HOST_ID / 2;
}

/* Returns the bytes of a Get Log Page command, whose count of dwords is 0-based. */
static inline uint64_t sim_log_bytes(const struct nvme_sqe *sqe)
{
    return ((sqe->cdw10 >> 16 | (uint64_t)(sqe->cdw11 & 0xffff) << 16) + 1) * 4;
}

#endif
