/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements pairs of staging chunks, and the copies between a pair and a
 * buffer.
 */
#include "client/lib/staging_pair.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/shared_list.h"
#include "support/page.h"

int staging_pair_new(struct connection *g, size_t chunk, bool local, struct staging_pair **out)
{
    struct staging_pair *pair = calloc(1, sizeof(*pair));

    if (!pair)
        return gpunvme_fail(-ENOMEM, "out of memory");
    int err = buffer_alloc_staging(g, 2 * (chunk + PAGE_BYTES), local, &pair->staging);
    if (err) {
        free(pair);
        return err;
    }
    pair->device = CUDA_NO_DEVICE;
    pair->chunk = chunk;
    pair->halves[0].staging = pair->staging->addr;
    pair->halves[1].staging = pair->halves[0].staging + chunk + PAGE_BYTES;
    *out = pair;
    return 0;
}

static void detach(struct staging_pair *pair)
{
    if (pair->device == CUDA_NO_DEVICE)
        return;
    for (int i = 0; i < 2; i++) {
        if (pair->halves[i].stream)
            cuda_driver_stream_free(pair->cuda, pair->device, pair->halves[i].stream);
        pair->halves[i].stream = NULL;
    }
    /*
     * Unpins the memory before it is unmapped; otherwise the driver would keep the old pages for
     * its address.
     */
    cuda_driver_unpin(pair->cuda, pair->device, pair->staging->addr);
    pair->device = CUDA_NO_DEVICE;
}

void staging_pair_free(struct staging_pair *pair)
{
    detach(pair);
    if (pair->list)
        shared_list_free(pair->staging->owner, pair->list);
    else
        free(pair->halves[0].pieces);
    buffer_unregister(pair->staging);
    free(pair);
}

int staging_pair_make_pieces(struct staging_pair *pair)
{
    struct gpunvme_piece *pieces;

    if (pair->halves[0].pieces)
        return 0;
    if (pair->staging->shared && shared_list_new(pair->staging->owner, 2 * STAGING_PIECES,
                                                 GPUNVME_REGISTER_BOUNCE, &pair->list) == 0)
        pieces = pair->list->pieces;
    else
        pieces = calloc(2 * STAGING_PIECES, sizeof(*pieces));
    if (!pieces)
        return gpunvme_fail(-ENOMEM, "out of memory");
    pair->halves[0].pieces = pieces;
    pair->halves[1].pieces = pieces + STAGING_PIECES;
    return 0;
}

int staging_pair_attach(struct staging_pair *pair, struct cuda_driver *cuda, int device)
{
    if (pair->device == device)
        return 0;
    detach(pair);
    if (device == CUDA_NO_DEVICE)
        return 0;
    int err = cuda_driver_pin(cuda, device, pair->staging->addr, pair->staging->len);
    if (err)
        return err;
    pair->cuda = cuda;
    pair->device = device;
    for (int i = 0; i < 2 && !err; i++)
        err = cuda_driver_stream_new(cuda, device, false, &pair->halves[i].stream);
    if (err)
        detach(pair);
    return err;
}

/* The drive writes to the staging by DMA. */
static bool goes_by_ioctl(const struct staging_pair *pair, const struct half *s,
                          const struct range *r)
{
    if (r->write && pair->staging->owner->info.writeback_cache)
        return false;
    return pair->staging->shared && s->len >= STAGING_SYSCALL_BELOW;
}

void staging_pair_place(const struct staging_pair *pair, struct half *s, const struct range *r,
                        char *addr)
{
    bool in_place = pair->device == CUDA_NO_DEVICE && !goes_by_ioctl(pair, s, r);

    if (in_place && (uintptr_t)addr % PAGE_BYTES)
        in_place = !r->direct && !(fcntl(r->fd, F_GETFL) & O_DIRECT);
    s->data = in_place ? addr : s->staging;
}

int staging_pair_copy_start(struct staging_pair *pair, struct half *s, char *addr, bool to_half)
{
    char *dst = to_half ? s->data : addr;
    const char *src = to_half ? addr : s->data;

    if (dst == src)
        return 0;
    if (pair->device != CUDA_NO_DEVICE)
        return cuda_driver_copy_start(pair->cuda, pair->device, s->stream, (uintptr_t)dst,
                                      (uintptr_t)src, s->len);
    memcpy(dst, src, s->len);
    return 0;
}

int staging_pair_copy_wait(struct staging_pair *pair, struct half *s)
{
    return pair->device != CUDA_NO_DEVICE
               ? cuda_driver_copy_wait(pair->cuda, pair->device, s->stream)
               : 0;
}

/* Moves all bytes by repeated calls of read(2) or write(2). */
size_t staging_pair_move_by_syscall(const struct half *s, const struct range *r,
                                    uint64_t file_offset, int *err)
{
    size_t done = 0;
    ssize_t n = 1;

    *err = 0;
    while (done < s->len && n > 0) {
        off_t at = (off_t)(file_offset + done);
        /* Some file systems return EINTR for regular files. */
        n = TEMP_FAILURE_RETRY(r->write ? pwrite(r->fd, s->data + done, s->len - done, at)
                                        : pread(r->fd, s->data + done, s->len - done, at));
        done += n > 0 ? (size_t)n : 0;
    }
    if (n < 0)
        *err = gpunvme_fail(-errno, "%s: %s", r->write ? "write" : "read", strerror(errno));
    return done;
}

size_t staging_pair_move_file(struct staging_pair *pair, struct half *s, const struct range *r,
                              uint64_t file_offset, struct gpunvme_result *result, int *err)
{
    if (!goes_by_ioctl(pair, s, r))
        return staging_pair_move_by_syscall(s, r, file_offset, err);
    struct range part = *r;
    part.buffer_offset = (size_t)(s->data - (char *)pair->staging->addr);
    part.file_offset = file_offset;
    part.len = s->len;
    return gpunvme_transfer_shared(pair->staging, &part, 0, result, err);
}
