/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads by a block, a warp, or the converged threads of a warp: CUDA only. The contracts are those
 * of gpunvme_device.h.
 */
#ifndef CLIENT_DEVICE_GD_PREAD_H
#define CLIENT_DEVICE_GD_PREAD_H

#ifndef __CUDACC__
#error "gd_pread.h is for CUDA C++"
#endif

#include "client/device/gd_single.h"

/*
 * Returns the number of queues for one read of len bytes: at least one, even
 * for a lease without queues, which gd_take() reports. Each queue keeps 32
 * commands in flight. Warps that poll host memory slow down the data, and more
 * than eight of them made long reads slower.
 */
GQ_FN uint32_t gd_queues_for(uint32_t n_queues, uint32_t max_command, uint64_t len)
{
    uint32_t most = n_queues < GD_READ_QUEUES ? n_queues : GD_READ_QUEUES;
    uint64_t commands = len >> gq_prefix_ones(gd_unit(max_command) - 1);
    uint64_t want = commands / GD_QUEUE_COMMANDS + 1;

    if (want < most)
        return (uint32_t)want;
    return most ? most : 1;
}

struct gd_pread {
    const struct gd_buffer *known; /* the buffer around dst; NULL: to be found */
    uint64_t dst, len, offset;
    bool defers;                /* gd_reader.defers */
    struct gq_dealing *dealing; /* gd_reader.dealing */
};

/*
 * Reads part `rank` of `groups` parts of a read of p.len bytes, which is not 0
 * and ends before the file does.
 */
GQ_FN int gd_pread_part(struct gq_group group, const struct gpunvme_device_file *f,
                        struct gd_pread p, uint32_t rank, uint32_t groups)
{
    struct gd_reader self = {.group = group, .file = f, .defers = p.defers, .dealing = p.dealing};
    struct gd_reader *w = &self;
    struct gd_extents extents;
    struct gd_table table;
    struct gd_buffer b;
    int err = 0;

    if (f->set.n_queues == 0)
        return -ESTALE;
    if (p.known)
        b = *p.known;
    else
        gd_load_table(w, 0, &table);
    gd_load_extents(w, &extents);
    /*
     * Adjacent groups take adjacent queues, because a controller assigns its
     * queues to its processors in turn.
     */
    err = groups > 1 ? gd_take_from(w, gd_sm() * groups + rank) : gd_take(w);
    if (err)
        return err;
    if (!p.known)
        err = gd_find_buffer(w, &table, p.dst, p.len, &b);
    if (!err)
        return gd_read(w, &b, &extents,
                       {.file_offset = p.offset, .at = p.dst - b.addr, .len = p.len}, rank, groups);
    gd_give(w);
    return err;
}

GD_LOAD_STRUCT(gd_load_file, gpunvme_device_file)

/*
 * Called by all threads of a block. Loads the file to shared memory, so that no
 * thread needs registers for the struct.
 */
GQ_FN void gd_share_file(const struct gpunvme_device_file *file, struct gpunvme_device_file *to)
{
    uint32_t threads = blockDim.x * blockDim.y * blockDim.z;
    uint32_t me = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const uint64_t *from = (const uint64_t *)file;

    for (uint32_t i = me; i < sizeof(*to) / sizeof(uint64_t); i += threads)
        ((uint64_t *)to)[i] = gd_load64(&from[i]);
}

/* Returns the group of the threads of a warp that are in the mask. */
GQ_FN struct gq_group gd_group(uint32_t mask)
{
    return (struct gq_group){mask, (uint32_t)__popc(mask & ((1u << gq_thread()) - 1u)),
                             (uint32_t)__popc(mask)};
}

/*
 * A thread of a block, and the groups of the block that read. A block of less
 * than a warp is one group.
 */
struct gd_block {
    uint32_t threads, me, groups;
};

/*
 * Returns the block for a read of len bytes. The first warps read, each its
 * part.
 */
GQ_FN struct gd_block gd_block_for(uint32_t n_queues, uint32_t max_command, uint64_t len)
{
    uint32_t threads = blockDim.x * blockDim.y * blockDim.z;
    uint32_t warps = threads < GQ_LANES ? 1 : threads / GQ_LANES;
    uint32_t queues = gd_queues_for(n_queues, max_command, len);

    return (struct gd_block){threads,
                             threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z),
                             queues < warps ? queues : warps};
}

/*
 * Returns the block for queues of the set. If all data is staged, commands are
 * short and each warp copies what its queue reads, so a read has more queues. A
 * read of GD_QUEUE_COMMANDS commands has exactly one.
 */
GQ_FN struct gd_block gd_block_of(const struct gd_set *s, uint64_t len)
{
    if (s->lane_bytes == GD_STAGED_ALL && len)
        return gd_block_for(s->n_queues, s->lane_bytes, len - 1);
    return gd_block_for(s->n_queues, s->max_command, len);
}

/* Returns the calling warp's group. */
GQ_FN struct gq_group gd_group_of(struct gd_block k)
{
    return k.threads < GQ_LANES ? gd_group((1u << k.threads) - 1u) : gq_whole_group();
}

/*
 * Reads the calling warp's part like gd_pread_part(), or does nothing if it has
 * none.
 */
GQ_FN int gd_pread_share(struct gd_block k, const struct gpunvme_device_file *f, struct gd_pread p)
{
    uint32_t rank = k.me / GQ_LANES;

    if (p.len == 0 || rank >= k.groups)
        return 0;
    return gd_pread_part(gd_group_of(k), f, p, rank, k.groups);
}

/*
 * Returns the least error of all parts, after a barrier. Threads may still load
 * errs when this returns, so the caller passes another barrier before the next
 * call.
 */
GQ_FN int gd_worst(struct gd_block k, int err)
{
    __shared__ int errs[GD_READ_QUEUES];

    if (k.me % GQ_LANES == 0 && k.me / GQ_LANES < k.groups)
        errs[k.me / GQ_LANES] = err;
    __syncthreads();
    err = 0;
    for (uint32_t i = 0; i < k.groups; i++)
        err = errs[i] < err ? errs[i] : err;
    return err;
}

/*
 * p.len is the requested length. All threads pass the same two barriers, also
 * after an error. *f may have been stored to shared memory before the first
 * one.
 */
GQ_FN int64_t gd_pread_block(const struct gpunvme_device_file *f, struct gd_pread p)
{
    __shared__ struct gq_dealing dealing;
    struct gd_block k;
    int err;

    if (threadIdx.x == 0)
        dealing.next = dealing.left = 0;
    __syncthreads();
    p.len = gq_read_bytes(&f->map, p.offset, p.len);
    p.dealing = &dealing;
    k = gd_block_of(&f->set, p.len);
    err = gd_worst(k, gd_pread_share(k, f, p));
    return err ? err : (int64_t)p.len;
}

#endif
