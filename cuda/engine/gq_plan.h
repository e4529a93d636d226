/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A plan cuts a request into NVMe commands at extents, at partial LBAs and at
 * the maximum length of a command. It works chunk by chunk, so that memory
 * stays bounded.
 */
#ifndef CUDA_ENGINE_GQ_PLAN_H
#define CUDA_ENGINE_GQ_PLAN_H

#include "cuda/engine/gq_region.h"
#include "cuda/gq_exec.h"

/* Parameters of a plan, the same for all its chunks. */
struct gq_plan_env {
    enum gq_op op;
    uint32_t lba_size;
    uint32_t max_command; /* bytes, a multiple of lba_size */
    uint64_t ns_bytes;
    const struct gq_region *buffer;
    uint64_t buffer_head; /* bytes from the region's start to stream position 0 */
    const struct gq_region *staging;
    bool staged; /* the controller does not reach the buffer: all bytes are staged */
};

/* A cursor over the request's extents. */
struct gq_plan {
    struct gq_plan_env env;
    const struct gq_file_extent *extents;
    size_t n_extents;
    uint64_t end;    /* end of the last extent in the file */
    size_t extent;   /* index of the extent that contains the next byte */
    uint64_t within; /* offset of the next byte in that extent */
    uint64_t pos;    /* stream position of the next byte */
    uint64_t len;    /* bytes of the transfer */
    uint32_t cmds;   /* maximum of the next chunk; grows, so that the first one starts early */
    uint64_t part;   /* a chunk of this many bytes gets no further command */
};

/*
 * Checks extents and ranges. Returns 0, or -EINVAL if extents are not
 * ascending, not whole LBAs or beyond the namespace, if a range is outside of
 * the extents, or for a violation of gq_request's rules for writes.
 */
int gq_plan_start(struct gq_plan *p, const struct gq_plan_env *env, const struct gq_request *req);

/*
 * Fills a chunk, whose counters are reset, with as much as fits. The chunk owns
 * staging bytes [staging_off, staging_off + staging_len). Returns false if no
 * bytes were left.
 */
bool gq_plan_next(struct gq_plan *p, struct gq_chunk *chunk, uint64_t staging_off,
                  uint64_t staging_len);

/*
 * True for a read of 16 KiB or less in one extent: staged, it is one command
 * and one copy, unless the staging is very small.
 */
bool gq_plan_is_short_read(const struct gq_plan *p);

/* Estimates the number of commands, to choose the number of queues. */
uint64_t gq_plan_estimate(const struct gq_plan *p);

#endif
