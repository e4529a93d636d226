/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CIDs of a shared queue (gq_shared.h), as plain data in the executor's memory;
 * C11 and CUDA.
 */
#ifndef CUDA_QUEUE_GQ_CIDS_H
#define CUDA_QUEUE_GQ_CIDS_H

#include <stdint.h>

#include "cuda/queue/gq_work.h"

#define GQ_CID_WORDS 32u
#define GQ_MAX_CIDS  (GQ_CID_WORDS * 32u)

/* States of a CID, in addition to GQ_ENDED | status. */
#define GQ_CID_PENDING 0x10000u
#define GQ_CID_POSTED  0x30000u /* includes the bit of PENDING; 15:0: the CID as it was posted */
#define GQ_CID_LEFT    0x40000u /* added to PENDING or POSTED */

/*
 * The CIDs of a queue, in the executor's memory. Zeroed at the start, except
 * the bits of `taken` beyond the last CID, the pointers and n_cids.
 */
struct gq_cids {
    uint32_t taken[GQ_CID_WORDS];   /* one bit per CID: claimed */
    uint32_t pending[GQ_CID_WORDS]; /* one bit per CID: to be posted */
    uint32_t lost;                  /* number of CIDs in state LEFT; if not 0, no CID is claimed */
    uint32_t n_cids;                /* at most depth - 1 and GQ_MAX_CIDS */
    struct gq_cmd *cmds;            /* arrays of n_cids elements */
    uint32_t *states;
};

#endif
