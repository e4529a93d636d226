/* SPDX-License-Identifier: BSD-2-Clause */
/* Cuts a request into chunks of commands and copies. */
#include "cuda/engine/gq_plan.h"

#include <errno.h>

#include "support/minmax.h"

/* One group of threads makes a copy, so a long copy is split among several. */
#define COPY_MAX (256u << 10)

/*
 * A read of at most this many bytes with partial LBAs is staged as a whole: one
 * command instead of three.
 */
#define STAGE_WHOLE (16u << 10)

#define FIRST_CHUNK_CMDS 1024u
/*
 * Chunk size of a transfer with a listener: large compared to a launch, small
 * compared to typical transfers.
 */
#define PART_BYTES (64u << 20)

static uint64_t extent_end(const struct gq_plan *p, size_t i)
{
    return i + 1 < p->n_extents ? p->extents[i + 1].offset : p->end;
}

static uint64_t extent_bytes(const struct gq_plan *p, size_t i)
{
    return extent_end(p, i) - p->extents[i].offset;
}

static int check_extent(const struct gq_plan *p, size_t i)
{
    const struct gq_file_extent *x = &p->extents[i];
    const struct gq_plan_env *env = &p->env;
    uint64_t bytes = extent_bytes(p, i);

    if (extent_end(p, i) <= x->offset || bytes % env->lba_size)
        return -EINVAL;
    if (x->lba == GQ_LBA_ZERO)
        return env->op == GQ_READ ? 0 : -EINVAL;
    if (bytes > env->ns_bytes || x->lba > (env->ns_bytes - bytes) / env->lba_size)
        return -EINVAL;
    return 0;
}

static int plan_check_request(const struct gq_plan *p, const struct gq_request *req, uint64_t start)
{
    for (size_t i = 0; i < p->n_extents; i++) {
        int err = check_extent(p, i);

        if (err)
            return err;
    }
    if (req->file_offset < start || req->file_offset > req->end ||
        req->len > req->end - req->file_offset)
        return -EINVAL;
    if (req->op == GQ_WRITE &&
        ((req->file_offset - start) % p->env.lba_size || req->len % p->env.lba_size))
        return -EINVAL;
    return 0;
}

int gq_plan_start(struct gq_plan *p, const struct gq_plan_env *env, const struct gq_request *req)
{
    uint64_t start = req->n_extents ? req->extents[0].offset : req->end;
    int err;

    *p = (struct gq_plan){
        .env = *env,
        .extents = req->extents,
        .n_extents = req->n_extents,
        .end = req->end,
        .within = req->file_offset - start,
        .len = req->len,
        .cmds = FIRST_CHUNK_CMDS,
        .part = req->listener ? PART_BYTES : UINT64_MAX,
    };
    err = plan_check_request(p, req, start);
    if (err)
        return err;
    while (p->extent < p->n_extents && p->within >= extent_bytes(p, p->extent))
        p->within -= extent_bytes(p, p->extent++);
    return 0;
}

bool gq_plan_is_short_read(const struct gq_plan *p)
{
    return p->env.op == GQ_READ && p->len <= STAGE_WHOLE &&
           p->extents[p->extent].lba != GQ_LBA_ZERO &&
           p->len <= extent_bytes(p, p->extent) - p->within;
}

uint64_t gq_plan_estimate(const struct gq_plan *p)
{
    uint64_t by_size = (p->len - p->pos + p->env.max_command - 1) / p->env.max_command;
    uint64_t by_extent = 0, bytes = 0;

    for (size_t i = p->extent; i < p->n_extents && bytes < p->len + p->within; i++) {
        bytes += extent_bytes(p, i);
        by_extent++;
    }
    return by_size > by_extent ? by_size : by_extent;
}

static void plan_add_copy(struct gq_chunk *chunk, uint64_t dst, uint64_t src, uint64_t len,
                          uint32_t cmd)
{
    assert(chunk->n_copies < GQ_CHUNK_COPIES);
    chunk->copies[chunk->n_copies++] =
        (struct gq_copy){.dst = dst, .src = src, .len = len, .cmd = cmd};
}

static void add_cmd(const struct gq_plan *p, struct gq_chunk *chunk, const struct gq_region *region,
                    uint64_t off, uint64_t dev, uint64_t len)
{
    struct gq_cmd *cmd = &chunk->cmds[chunk->n_cmds];

    assert(chunk->n_cmds < p->cmds && len && len <= p->env.max_command);
    assert(off % 4 == 0 && off + len <= region->pages * NVME_PAGE_SIZE);
    cmd->prp1 = region->iova + off;
    cmd->prp2 = gq_prp2(region->iova, region->prps.iova, off, len);
    cmd->slba = dev / p->env.lba_size;
    cmd->nlb = (uint32_t)(len / p->env.lba_size - 1);
    cmd->reserved = 0;
    chunk->results[chunk->n_cmds] = GQ_PENDING;
    chunk->stream[chunk->n_cmds] = p->pos;
    chunk->n_cmds++;
}

/*
 * Returns true if the next command transfers directly to the buffer. left is
 * the rest of this extent in bytes.
 */
static bool is_direct(const struct gq_plan *p, uint64_t dev, uint64_t mem, uint64_t left)
{
    uint32_t lba = p->env.lba_size;

    if (p->env.staged || mem % 4 || dev % lba || left < lba)
        return false;
    return left % lba == 0 || left > STAGE_WHOLE;
}

static uint64_t step_direct(struct gq_plan *p, struct gq_chunk *chunk, uint64_t dev, uint64_t mem,
                            uint64_t left)
{
    uint32_t lba = p->env.lba_size;
    uint64_t n = min_u64(left - left % lba, p->env.max_command);

    if (chunk->n_cmds == p->cmds)
        return 0;
    n = gq_prp_clip(mem, n, lba);
    add_cmd(p, chunk, p->env.buffer, mem, dev, n);
    return n;
}

/*
 * Returns the number of bytes from dev on that are staged together: all that
 * remain, unless whole LBAs that can be read directly follow the first, partial
 * one.
 */
static uint64_t staged_length(const struct gq_plan *p, uint64_t dev, uint64_t mem, uint64_t left)
{
    uint32_t lba = p->env.lba_size;
    uint64_t head = lba - dev % lba;

    if (left > STAGE_WHOLE && (mem + head) % 4 == 0)
        return min_u64(left, head);
    return left;
}

/*
 * Adds a command through staging. staging_off and room give the chunk's part of
 * the region; chunk->staging_used counts the used bytes. Returns the bytes
 * planned, or 0 if the chunk is full.
 */
static uint64_t step_staged(struct gq_plan *p, struct gq_chunk *chunk, uint64_t dev, uint64_t mem,
                            uint64_t left, uint64_t staging_off, uint64_t room)
{
    const struct gq_region *staging = p->env.staging;
    uint32_t lba = p->env.lba_size;
    uint64_t lead = dev % lba, off = staging_off + chunk->staging_used;
    uint64_t cap = min_u64(min_u64(p->env.max_command, COPY_MAX), room / 8);
    uint64_t n, cover, buffer, staged;

    cap = cap < lba ? lba : cap - cap % lba;
    n = min_u64(staged_length(p, dev, mem, left), cap - lead);
    cover = gq_prp_clip(off, (lead + n + lba - 1) / lba * lba, lba);
    n = min_u64(n, cover - lead);
    if (chunk->n_cmds == p->cmds || chunk->n_copies == GQ_CHUNK_COPIES ||
        chunk->staging_used + cover > room)
        return 0;
    buffer = p->env.buffer->base + mem;
    staged = staging->base + off + lead;
    if (p->env.op == GQ_READ)
        plan_add_copy(chunk, buffer, staged, n, chunk->n_cmds);
    else
        plan_add_copy(chunk, staged, buffer, n, GQ_COPY_ALWAYS);
    add_cmd(p, chunk, staging, off, dev - lead, cover);
    chunk->staging_used += cover;
    return n;
}

static uint64_t step_zero(struct gq_plan *p, struct gq_chunk *chunk, uint64_t mem, uint64_t left)
{
    uint64_t n = min_u64(left, COPY_MAX);

    if (chunk->n_copies == GQ_CHUNK_COPIES)
        return 0;
    plan_add_copy(chunk, p->env.buffer->base + mem, 0, n, GQ_COPY_ALWAYS);
    return n;
}

bool gq_plan_next(struct gq_plan *p, struct gq_chunk *chunk, uint64_t staging_off,
                  uint64_t staging_len)
{
    chunk->n_cmds = chunk->n_copies = 0;
    chunk->staging_used = 0;
    chunk->start = p->pos;
    while (p->pos < p->len && p->pos - chunk->start < p->part) {
        const struct gq_file_extent *x = &p->extents[p->extent];
        uint64_t bytes = extent_bytes(p, p->extent);
        uint64_t left = min_u64(bytes - p->within, p->len - p->pos);
        uint64_t mem = p->env.buffer_head + p->pos;
        uint64_t dev = x->lba * p->env.lba_size + p->within;
        uint64_t n;

        if (x->lba == GQ_LBA_ZERO)
            n = step_zero(p, chunk, mem, left);
        else if (is_direct(p, dev, mem, left))
            n = step_direct(p, chunk, dev, mem, left);
        else
            n = step_staged(p, chunk, dev, mem, left, staging_off, staging_len);
        if (n == 0)
            break;
        p->pos += n;
        p->within += n;
        if (p->within == bytes) {
            p->within = 0;
            p->extent++;
        }
    }
    p->cmds = p->cmds < GQ_CHUNK_CMDS / 2 ? 2 * p->cmds : GQ_CHUNK_CMDS;
    chunk->end = p->pos;
    return chunk->end > chunk->start;
}
