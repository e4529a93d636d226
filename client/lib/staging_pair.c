/* SPDX-License-Identifier: BSD-2-Clause */
#include "client/lib/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Below this read(2) is faster than an ioctl, for the kernel reads ahead: 4 KiB in order 0.48 GB/s
 * against 0.08, 256 KiB 2.7 against 1.4 (bounce_bench, executor=cpu, two cores). With O_DIRECT the
 * two are about even: 64 KiB 0.74 against 0.92.
 */
#define READ_BELOW ((size_t)1 << 20)

/* Bytes: what file systems ask of memory for O_DIRECT is at most a page. */
#define DIRECT_ALIGN 4096u

int lane_new(struct gpunvme *g, size_t chunk, struct lane **out)
{
    struct lane *l = calloc(1, sizeof(*l));

    if (!l)
        return gpunvme_fail(-ENOMEM, "out of memory");
    int err = gpunvme_alloc_staging(g, 2 * chunk, &l->staging);
    if (err) {
        free(l);
        return err;
    }
    l->device = CUDA_NO_DEVICE;
    l->slots[0].staging = l->staging->addr;
    l->slots[1].staging = l->slots[0].staging + chunk;
    *out = l;
    return 0;
}

static void detach(struct lane *l)
{
    if (l->device == CUDA_NO_DEVICE)
        return;
    for (int i = 0; i < 2; i++) {
        if (l->slots[i].stream)
            cuda_driver_stream_free(l->cuda, l->device, l->slots[i].stream);
        l->slots[i].stream = NULL;
    }
    /* Before the memory is unmapped: the driver would go on meaning the old pages. */
    cuda_driver_unpin(l->cuda, l->device, l->staging->addr);
    l->device = CUDA_NO_DEVICE;
}

void lane_free(struct lane *l)
{
    detach(l);
    gpunvme_unregister(l->staging);
    free(l);
}

int lane_attach(struct lane *l, struct cuda_driver *cuda, int device)
{
    if (l->device == device)
        return 0;
    detach(l);
    if (device == CUDA_NO_DEVICE)
        return 0;
    int err = cuda_driver_pin(cuda, device, l->staging->addr, l->staging->len);
    if (err)
        return err;
    l->cuda = cuda;
    l->device = device;
    for (int i = 0; i < 2 && !err; i++)
        err = cuda_driver_stream_new(cuda, device, &l->slots[i].stream);
    if (err)
        detach(l);
    return err;
}

/* The drive fills the staging by itself. */
static bool goes_by_ioctl(const struct lane *l, const struct slot *s)
{
    return l->staging->shared && s->len >= READ_BELOW;
}

void lane_place(const struct lane *l, struct slot *s, const struct range *r, char *addr)
{
    bool in_place = l->device == CUDA_NO_DEVICE && !goes_by_ioctl(l, s);

    if (in_place && (uintptr_t)addr % DIRECT_ALIGN)
        in_place = !(fcntl(r->fd, F_GETFL) & O_DIRECT);
    s->data = in_place ? addr : s->staging;
}

int lane_copy_start(struct lane *l, struct slot *s, char *addr, bool to_slot)
{
    char *dst = to_slot ? s->data : addr;
    const char *src = to_slot ? addr : s->data;

    if (dst == src)
        return 0;
    if (l->device != CUDA_NO_DEVICE)
        return cuda_driver_copy_start(l->cuda, l->device, s->stream, (uintptr_t)dst, (uintptr_t)src,
                                      s->len);
    memcpy(dst, src, s->len);
    return 0;
}

int lane_copy_wait(struct lane *l, struct slot *s)
{
    return l->device != CUDA_NO_DEVICE ? cuda_driver_copy_wait(l->cuda, l->device, s->stream) : 0;
}

/* As read(2) and write(2) come to it, until all is moved. */
static size_t move_by_syscall(const struct slot *s, const struct range *r, uint64_t file_offset,
                              int *err)
{
    size_t done = 0;
    ssize_t n = 1;

    *err = 0;
    while (done < s->len && n > 0) {
        off_t at = (off_t)(file_offset + done);
        n = r->write ? pwrite(r->fd, s->data + done, s->len - done, at)
                     : pread(r->fd, s->data + done, s->len - done, at);
        if (n > 0)
            done += (size_t)n;
    }
    if (n < 0)
        *err = gpunvme_fail(-errno, "%s: %s", r->write ? "write" : "read", strerror(errno));
    return done;
}

size_t lane_move_file(struct lane *l, struct slot *s, const struct range *r, uint64_t file_offset,
                      struct gpunvme_result *result, int *err)
{
    if (!goes_by_ioctl(l, s))
        return move_by_syscall(s, r, file_offset, err);
    struct range part = *r;
    part.buffer_offset = (size_t)(s->data - (char *)l->staging->addr);
    part.file_offset = file_offset;
    part.len = s->len;
    return gpunvme_transfer_shared(l->staging, &part, 0, result, err);
}
