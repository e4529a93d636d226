/* SPDX-License-Identifier: BSD-2-Clause */
/* Builds the table for the kernel that compares checksums, and reports blocks that differ. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/direct.h"
#include "cuda/gq_sum_fill.h"

#define WARP 32u

static int put_table(struct gpunvme_direct *d)
{
    struct gq_sum_table *t = malloc(sizeof(*t));
    uint64_t at;

    if (!t)
        return gpunvme_fail(-ENOMEM, "out of memory");
    gq_sum_fill(t);
    int err = memory_space_alloc(&d->space, sizeof(*t), &at);
    if (!err)
        err = memory_space_put(&d->space, at, t, sizeof(*t));
    free(t);
    if (err)
        memory_space_free(&d->space, at);
    else
        d->sum_table_at = at;
    return err;
}

int direct_sums_open(struct gpunvme_direct *d)
{
    int err = 0;

    if (!d->checks.at)
        err = direct_slots_open(d);
    return err || d->sum_table_at ? err : put_table(d);
}

void direct_sums_close(struct gpunvme_direct *d)
{
    direct_slots_close(d);
    memory_space_free(&d->space, d->sum_table_at);
}

/*
 * Reserves the words of a check. A captured read has no words, because a graph may run the read in
 * two instances at once, which would share the words.
 */
struct gd_check *direct_check_take(struct gpunvme_direct *d, const struct gpunvme_device_file *f,
                                   void *stream)
{
    if (!f->sums.words || cuda_driver_is_captured(d->space.cuda, stream))
        return NULL;
    return direct_slots_take(d);
}

/*
 * Ends a check. Its last kernel has set the words to 0 for the next one; otherwise they stay in
 * use.
 */
void direct_check_end(struct gpunvme_direct *d, const struct gd_check *check)
{
    uint64_t at = (uintptr_t)check + offsetof(struct gd_check, refused);
    const uint32_t refused = 0;

    if (check && memory_space_put(&d->space, at, &refused, sizeof(refused)) == 0)
        direct_slots_give_back(d, check);
}

/*
 * Returns the blocks of the launch: enough for one turn of each warp, or all that run at a time,
 * because pieces may be long.
 */
static unsigned direct_sums_blocks_for(const struct gd_launch *l)
{
    const uint64_t bytes = (uint64_t)GQ_SUM_BLOCK * GD_COMPARE_TURN * GD_COMPARE_WARPS;
    uint64_t want = (l->len + bytes - 1) / bytes;

    return l->list || want > GD_COMPARE_BLOCKS ? GD_COMPARE_BLOCKS : (unsigned)want;
}

int direct_compare(struct gpunvme_direct *d, const struct gd_launch *l, void *stream)
{
    struct gd_compare_launch c = {
        .sums = l->file.sums,
        .addr = l->list ? l->buffer.addr : l->addr,
        .list = l->list,
        .n = l->list ? l->n : 1,
        .read = {.file_offset = l->offset, .len = l->len},
        .check = l->check,
    };
    void *args[] = {&c};

    return cuda_driver_launch(d->space.cuda, d->space.device, &d->compare_kernel,
                              direct_sums_blocks_for(l), GD_COMPARE_WARPS * WARP, stream, args);
}

/*
 * Moves the bad block that kernels have found last into f->bad_block, so that a later error of the
 * drive is not attributed to that block. Stores 1 + the block's offset in *found, or 0 if there is
 * none. Returns 0 or -errno.
 */
static int take_bad_block(struct leased_file *f, uint64_t *found)
{
    const uint64_t none = 0;
    int err = memory_space_get(&f->d->space, found, f->bad_block_at, sizeof(*found));

    if (err || !*found)
        return err;
    __atomic_store_n(&f->bad_block, *found, __ATOMIC_RELAXED);
    return memory_space_put(&f->d->space, f->bad_block_at, &none, sizeof(none));
}

int direct_bad_block(struct leased_file *f, uint64_t *offset)
{
    uint64_t found;
    int err = take_bad_block(f, &found);

    if (err)
        return err;
    found = __atomic_exchange_n(&f->bad_block, 0, __ATOMIC_RELAXED);
    if (!found)
        return 0;
    *offset = found - 1;
    return 1;
}

int direct_say_failed(struct leased_file *f, int err)
{
    uint64_t found;

    if (err == -EIO && take_bad_block(f, &found) == 0 && found)
        return gpunvme_fail(err, "inode %llu: block %llu of the file does not match its checksum",
                            (unsigned long long)f->ino,
                            (unsigned long long)((found - 1) / GQ_SUM_BLOCK));
    return gpunvme_fail(err, "read through leased queues: %s", strerror(-err));
}
