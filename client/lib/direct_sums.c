/* SPDX-License-Identifier: BSD-2-Clause */
/* Checksums of data on the direct path: where their table is, and blocks that differ. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/direct.h"
#include "cuda/gq_sum_fill.h"

int direct_sum_table(struct gpunvme_direct *d)
{
    uint64_t at;

    if (d->sum_table_at)
        return 0;
    struct gq_sum_table *t = malloc(sizeof(*t));
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

/* 1 + the offset of a block that did not match; 0: there was none. */
static int load_bad_block(struct gpunvme_file *f, uint64_t *out)
{
    *out = 0;
    return memory_space_get(&f->d->space, out, f->bad_block_at, sizeof(*out));
}

int gpunvme_file_bad_block(struct gpunvme_file *f, uint64_t *offset)
{
    const uint64_t none = 0;
    uint64_t found;
    int err = load_bad_block(f, &found);

    if (err || !found)
        return err;
    *offset = found - 1;
    err = memory_space_put(&f->d->space, f->bad_block_at, &none, sizeof(none));
    return err ? err : 1;
}

int direct_say_failed(struct gpunvme_file *f, int err)
{
    uint64_t found;

    if (err == -EIO && load_bad_block(f, &found) == 0 && found)
        return gpunvme_fail(err, "inode %llu: block %llu of the file does not match its checksum",
                            (unsigned long long)f->ino,
                            (unsigned long long)((found - 1) / GQ_SUM_BLOCK));
    return gpunvme_fail(err, "read through leased queues: %s", strerror(-err));
}
