/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Long reads into memory that the controller does not reach. One block reads on each queue, and its
 * copy warps copy what its first warp has read.
 */
#include "client/device/device_image.h"
#include "client/device/gd_launch.h"
#include "client/lib/direct.h"
#include "support/minmax.h"

#define KERNEL "gpunvme_direct_read_staged"
#define WARP   32u

int direct_staged_open(struct gpunvme_direct *d)
{
    if (!d->space.cuda || !staged_image() || d->g->info.lease_tier >= 2)
        return 0;
    int err =
        cuda_driver_load(d->space.cuda, d->space.device, staged_image(), KERNEL, &d->staged_kernel);
    return err ? err
               : direct_slots_open(d, &d->parts, sizeof(struct gd_parts),
                                   offsetof(struct gd_parts, runs));
}

void direct_staged_close(struct gpunvme_direct *d)
{
    direct_slots_close(d, &d->parts);
    if (d->space.cuda)
        cuda_driver_unload(d->space.cuda, d->space.device, &d->staged_kernel);
}

/* Returns one block for as many bytes as its lanes have in flight. */
static unsigned direct_staged_blocks_for(const struct gd_launch *l)
{
    const struct gd_set *set = &l->file.set;
    uint64_t want = l->len / (GD_GROUP * (uint64_t)set->lane_bytes) + 1;

    return (unsigned)min_u64(want, min_u64(set->n_queues, GD_STAGED_QUEUES));
}

/* Copy warps compare nothing. A kernel that runs after them compares whole blocks. */
static bool suits_sums(const struct gd_launch *l)
{
    return !l->file.sums.words ||
           ((l->offset | l->len) % GQ_SUM_BLOCK == 0 && direct_compare_pays(l));
}

bool direct_staged_takes(const struct gpunvme_direct *d, const struct gd_launch *l)
{
    return d->staged_kernel.function && GD_STAGES(&l->buffer) && l->len > l->file.set.lane_bytes &&
           suits_sums(l);
}

/*
 * Takes the words of the blocks. Returns false if the read has a check and there are none; without
 * a check the read runs without words.
 */
static bool take_words(struct gpunvme_direct *d, struct gd_launch *l, unsigned blocks, void *stream)
{
    l->check = direct_check_take(d, &l->file, stream);
    if (l->file.sums.words && !l->check)
        return false;
    if (blocks > 1 && !cuda_driver_is_captured(d->space.cuda, stream))
        l->parts = (struct gd_parts *)(uintptr_t)direct_slots_take(d, &d->parts);
    if (blocks == 1 || l->parts || !l->check)
        return true;
    direct_check_give_back(d, l->check);
    l->check = NULL;
    return false;
}

static int lib_direct_staged_launch(struct gpunvme_direct *d, struct gd_launch *l, unsigned blocks,
                                    void *stream)
{
    void *args[] = {l};

    return cuda_driver_launch_blocks(d->space.cuda, d->space.device, &d->staged_kernel, blocks,
                                     (1 + GD_COPY_WARPS) * WARP, stream, args);
}

/*
 * Launches the read without words, since a captured read may run in two instances of a graph at
 * once, which would share them. A block then does not know whether the read has ended: it stores
 * only an error, between a launch that begins the read and one that ends it.
 */
static int launch_without_words(struct gpunvme_direct *d, struct gd_launch *l, unsigned blocks,
                                void *stream)
{
    static const enum gd_step steps[] = {GD_BEGINS, GD_READS, GD_ENDS};
    int err = 0;

    for (unsigned i = 0; i < 3 && !err; i++) {
        l->step = steps[i];
        err = lib_direct_staged_launch(d, l, l->step == GD_READS ? blocks : 1, stream);
    }
    if (err)
        return direct_give_up(d, NULL, stream, direct_patience_ns(&l->file.set, l->len), err);
    return 1;
}

int direct_staged_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    unsigned blocks = direct_staged_blocks_for(l);

    l->unit = gd_staged_unit(&l->file.set, l->len);
    if (!take_words(d, l, blocks, stream))
        return 0;
    if (blocks > 1 && !l->parts)
        return l->cancel ? 0 : launch_without_words(d, l, blocks, stream);
    int err = lib_direct_staged_launch(d, l, blocks, stream);
    if (err) {
        direct_slots_give_back(d, &d->parts, (uintptr_t)l->parts);
        direct_check_give_back(d, l->check);
    } else if (l->check) {
        err = direct_conclude(d, l, stream);
    }
    return err ? err : 1;
}
