/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocates, registers and unregisters buffers, and copies to and from them. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/bar_range.h"
#include "client/lib/call_stats.h"
#include "client/lib/direct.h"
#include "client/lib/mount_gpu.h"
#include "client/lib/nvtx_range.h"
#include "client/lib/socket.h"
#include "support/fd_message.h"
#include "support/page.h"

/* Returns a buffer without memory, or NULL with the error in *err. */
static struct gpunvme_buffer *buffer_new(struct connection *g, size_t len, int *err)
{
    struct gpunvme_buffer *b = len ? calloc(1, sizeof(*b)) : NULL;

    *err = len ? 0 : gpunvme_fail(-EINVAL, "a buffer of 0 bytes");
    if (len && !b)
        *err = gpunvme_fail(-ENOMEM, "out of memory");
    if (!b)
        return NULL;
    b->owner = g;
    b->len = len;
    b->fd = -1;
    b->device = CUDA_NO_DEVICE;
    b->wanted = CUDA_NO_DEVICE;
    b->pinned_for = CUDA_NO_DEVICE;
    return b;
}

static void buffer_link(struct gpunvme_buffer *b)
{
    struct connection *g = b->owner;

    call_stats_share(g);
    pthread_mutex_lock(&g->lock);
    LIST_INSERT_HEAD(&g->buffers, b, entry);
    for (struct gpunvme_direct *d = LIST_FIRST(&g->directs); d; d = LIST_NEXT(d, entry))
        direct_buffer_add(d, b);
    pthread_mutex_unlock(&g->lock);
}

static void buffer_unlink(struct gpunvme_buffer *b)
{
    pthread_mutex_lock(&b->owner->lock);
    for (struct gpunvme_direct *d = LIST_FIRST(&b->owner->directs); d; d = LIST_NEXT(d, entry)) {
        direct_buffer_remove(d, b);
        b->in_reach = b->in_reach || (b->piece.slab && direct_queues_lost(d));
    }
    LIST_REMOVE(b, entry);
    pthread_mutex_unlock(&b->owner->lock);
}

static int register_failed(int err, size_t len)
{
    if (err == -EXDEV)
        return gpunvme_fail(err, "the memory is on a GPU that the mount does not serve (-o gpus=)");
    if (err == -ENODEV)
        return gpunvme_fail(err, "the mount's executor on this GPU does not run, see its log");
    if (err == -EMFILE)
        return gpunvme_fail(err, "the mount's limit of registered buffers is reached");
    if (err == -ENOSPC)
        return gpunvme_fail(err, "the drive can map no more memory: register fewer and larger "
                                 "buffers, or mount without p2p=require");
    return gpunvme_fail(err, "REGISTER of %zu bytes: %s", len, strerror(-err));
}

static int register_at_mount(struct gpunvme_buffer *b, struct gpunvme_ioc_register *reg)
{
    reg->len = b->len;
    int err = gpunvme_ioctl(b->owner->fd, GPUNVME_IOC_REGISTER, reg, sizeof(*reg));
    if (err)
        return register_failed(err, b->len);
    b->id = reg->id;
    b->key = reg->key;
    b->shared = true;
    return 0;
}

static bool takes_exports(const struct gpunvme_buffer *b)
{
    const struct gpunvme_ioc_info *info = &b->owner->info;

    return info->tier >= 2 && strcmp(info->transport, "vfio") == 0;
}

/*
 * Sends a dma-buf of the memory to a mount whose drive reaches GPU memory by
 * such handles. Data of memory without a dma-buf is staged.
 */
static void send_export(struct gpunvme_buffer *b, uint64_t *token)
{
    *token = 0;
    if (!takes_exports(b))
        return;
    int fd = cuda_driver_export_pages(b->owner->cuda, b->device, (uintptr_t)b->addr, b->len);
    if (fd < 0)
        return;
    if (socket_send_memory(b->owner, fd, token))
        *token = 0;
    close(fd);
}

static_assert(1 + 2 * GPUNVME_MEMORY_SEGMENTS_MAX <= FD_MESSAGE_MAX,
              "one message has all descriptors");

/* Returns a memfd with the table, or -errno. */
static int segment_table_new(const struct cuda_segment *segments, unsigned n)
{
    struct gpunvme_memory_segment table[GPUNVME_MEMORY_SEGMENTS_MAX] = {{0}};
    int fd = memfd_create("gpunvme-segments", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    for (unsigned i = 0; i < n; i++) {
        table[i].len = segments[i].len;
        table[i].flags = segments[i].exported >= 0 ? GPUNVME_MEMORY_EXPORTED : 0;
    }
    if (write(fd, table, n * sizeof(table[0])) == (ssize_t)(n * sizeof(table[0])))
        return fd;
    close(fd);
    return -ENOMEM;
}

/*
 * Sends a table of the segments with their descriptors, at most GPUNVME_MEMORY_SEGMENTS_MAX, and
 * stores the token for REGISTER.
 */
static int segment_table_send(struct connection *g, const struct cuda_segment *segments, unsigned n,
                              uint64_t *token)
{
    int fds[1 + 2 * GPUNVME_MEMORY_SEGMENTS_MAX];
    unsigned used = 0;
    int table = segment_table_new(segments, n);

    if (table < 0)
        return gpunvme_fail(table, "table of segments: %s", strerror(-table));
    fds[used++] = table;
    for (unsigned i = 0; i < n; i++) {
        fds[used++] = segments[i].handle;
        if (segments[i].exported >= 0)
            fds[used++] = segments[i].exported;
    }
    int err = socket_send_several(g, fds, used, token);
    close(table);
    return err;
}

static int register_segments(struct gpunvme_buffer *b, const struct cuda_segment *segments,
                             unsigned n, struct gpunvme_ioc_register *reg)
{
    int err = segment_table_send(b->owner, segments, n, &reg->token);

    if (err)
        return err;
    reg->kind = GPUNVME_MEM_SEGMENTS;
    reg->offset = (uintptr_t)b->addr - segments[0].base;
    return register_at_mount(b, reg);
}

/*
 * Registers VMM memory, segment by segment. Only memory that the caller registered is worth it,
 * because a mount has room for few segments and takes long to map them.
 */
static int register_vmm(struct gpunvme_buffer *b, struct gpunvme_ioc_register *reg)
{
    struct cuda_segment segments[GPUNVME_MEMORY_SEGMENTS_MAX];

    if (!b->held)
        return -ENOTSUP;
    int n = cuda_driver_export_segments(b->owner->cuda, b->device, (uintptr_t)b->addr, b->len,
                                        takes_exports(b), segments, GPUNVME_MEMORY_SEGMENTS_MAX);
    if (n < 0)
        return n;
    int err = register_segments(b, segments, (unsigned)n, reg);
    cuda_driver_close_segments(segments, (unsigned)n);
    return err;
}

static int register_cuda(struct gpunvme_buffer *b)
{
    struct cuda_driver *cu = b->owner->cuda;
    struct gpunvme_ioc_register reg = {.kind = GPUNVME_MEM_CUDA_IPC};
    int err = cuda_driver_uuid(cu, b->device, reg.gpu_uuid);

    if (err)
        return err;
    err = cuda_driver_export(cu, b->device, (uintptr_t)b->addr, b->len, reg.ipc, &reg.offset);
    if (err == -ENOTSUP)
        return register_vmm(b, &reg);
    if (err)
        return err;
    send_export(b, &reg.token);
    return register_at_mount(b, &reg);
}

/*
 * Finds out which device has the memory. Without a CUDA driver it is host memory. Transfers use
 * streams of their own, so copies that CUDA calls synchronous are made so.
 */
static int locate(struct gpunvme_buffer *b)
{
    struct cuda_driver *cu;

    if (gpunvme_cuda(b->owner, &cu))
        return 0;
    int err = cuda_driver_locate(cu, (uintptr_t)b->addr, &b->device);
    if (!err && b->device != CUDA_NO_DEVICE)
        cuda_driver_sync_copies(cu, b->device, (uintptr_t)b->addr);
    return err;
}

static int buffer_share(struct gpunvme_buffer *b)
{
    const struct gpunvme_ioc_info *info = &b->owner->info;

    if (b->owner->fd < 0)
        return gpunvme_fail(-ENOTSUP, "the file is not on a gpunvmefs mount");
    if (info->executor != GPUNVME_EXECUTOR_CUDA)
        return gpunvme_fail(-ENOTSUP, "this mount is served by the %s: use gpunvme_alloc()",
                            info->executor_name);
    if (b->device == CUDA_NO_DEVICE)
        return gpunvme_fail(-ENOTSUP, "host memory cannot be registered: use gpunvme_alloc_host()");
    return register_cuda(b);
}

/*
 * Returns true if the pipeline may serve a buffer that the mount refused. It may unless the caller
 * asked for the error.
 */
static bool may_persist(const struct gpunvme_buffer *b, int err)
{
    return b->owner->options.path != GPUNVME_PATH_GPU &&
           (err == -ENOTSUP || err == -EXDEV || err == -ENODEV);
}

int buffer_register_known(struct connection *g, void *addr, size_t len, bool is_host, bool held,
                          struct gpunvme_buffer **out)
{
    int err;
    struct gpunvme_buffer *b = buffer_new(g, len, &err);

    if (!b)
        return err;
    b->addr = addr;
    b->held = held;
    err = is_host ? 0 : locate(b);
    nvtx_range_begin("register", len);
    if (!err)
        err = buffer_share(b);
    nvtx_range_end();
    if (err && may_persist(b, err)) {
        snprintf(b->why_not, sizeof(b->why_not), "%s", gpunvme_error());
        err = 0;
    }
    if (err) {
        free(b);
        return err;
    }
    buffer_link(b);
    *out = b;
    return 0;
}

int buffer_register(struct connection *g, void *addr, size_t len, bool held,
                    struct gpunvme_buffer **out)
{
    return buffer_register_known(g, addr, len, false, held, out);
}

static int alloc_piece(struct gpunvme_buffer *b)
{
    int err = slab_alloc(&b->owner->slabs, b->len, &b->piece);

    if (err)
        return gpunvme_fail(err, "memory of %zu bytes: %s", b->len, strerror(-err));
    b->addr = b->piece.addr;
    b->fd = b->piece.fd;
    return 0;
}

static int alloc_host(struct gpunvme_buffer *b)
{
    if (slab_takes(b->len))
        return alloc_piece(b);
    b->fd = memfd_create("gpunvme-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    /* The drive maps whole pages, and a vfio-user server needs all of them in the file. */
    const size_t pages = page_whole(b->len);
    if (b->fd < 0 || ftruncate(b->fd, (off_t)pages) != 0)
        return gpunvme_fail(-errno, "memory of %zu bytes: %s", b->len, strerror(errno));
    void *addr = mmap(NULL, b->len, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
    if (addr == MAP_FAILED)
        return gpunvme_fail(-errno, "memory of %zu bytes: %s", b->len, strerror(errno));
    b->addr = addr;
    return 0;
}

static int share_memory(struct gpunvme_buffer *b, uint32_t kind, uint32_t flags)
{
    struct gpunvme_ioc_register reg = {.kind = kind, .flags = flags, .offset = b->piece.offset};

    if (b->owner->fd < 0)
        return gpunvme_fail(-ENOTSUP, "a handle without a mount shares no memory");
    int err = socket_send_memory(b->owner, b->fd, &reg.token);
    return err ? err : register_at_mount(b, &reg);
}

static int share_file(struct gpunvme_buffer *b)
{
    return share_memory(b, GPUNVME_MEM_FD,
                        (b->is_host ? GPUNVME_REGISTER_HOST : 0) |
                            (b->for_lease ? GPUNVME_REGISTER_STAGING : 0));
}

static int alloc_bar(struct gpunvme_buffer *b)
{
    struct bar_range range;
    int err = bar_range_alloc_set(b->len, &range);

    if (err)
        return gpunvme_fail(err, "GPUNVME_CPU_MEMORY: %zu bytes: %s", b->len, strerror(-err));
    b->addr = range.addr;
    b->fd = range.fd;
    b->piece.offset = range.offset;
    return share_memory(b, GPUNVME_MEM_DEVICE, 0);
}

/*
 * Allocates shared host memory, also in place of a GPU's memory, for which tests take the memory of
 * another device.
 */
static int alloc_shared(struct gpunvme_buffer *b)
{
    if (!b->is_host && bar_range_is_set())
        return alloc_bar(b);
    int err = alloc_host(b);
    return err ? err : share_file(b);
}

static int find_gpu(struct gpunvme_buffer *b, int *device)
{
    struct cuda_driver *cu;
    struct mount_gpu gpu = {.device = b->wanted};
    int err = b->wanted == CUDA_NO_DEVICE ? mount_gpu_choose(b->owner, &gpu)
                                          : gpunvme_cuda(b->owner, &cu);

    *device = gpu.device;
    return err;
}

static int alloc_cuda(struct gpunvme_buffer *b)
{
    uint64_t addr;
    int device;
    int err = find_gpu(b, &device);

    if (!err)
        err = cuda_driver_alloc(b->owner->cuda, device, b->len, &addr);
    if (err)
        return err;
    b->device = device;
    b->addr = (void *)(uintptr_t)addr;
    cuda_driver_sync_copies(b->owner->cuda, device, addr);
    return register_cuda(b);
}

/*
 * Pins the memory and maps it at the same address for kernels, because kernels and the host refer
 * to places in a buffer by one address.
 */
static int buffer_pin(struct gpunvme_buffer *b, int device)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (b->len + page - 1) / page * page;
    uint64_t mapped;
    int err = cuda_driver_map(b->owner->cuda, device, b->addr, whole, CUDA_HOST_MEMORY, &mapped);

    if (err)
        return err;
    b->pinned_for = device;
    if (mapped == (uintptr_t)b->addr)
        return 0;
    return gpunvme_fail(-ENOTSUP, "this GPU has host memory at other addresses than the host");
}

/* The memory is pinned before the mount pins it, so that its pages belong to this process. */
static int alloc_pinned(struct gpunvme_buffer *b)
{
    int device;
    int err = find_gpu(b, &device);

    if (!err)
        err = alloc_host(b);
    if (!err)
        err = buffer_pin(b, device);
    return err ? err : share_file(b);
}

/* If the mount refuses the memory, read(2) fills it. */
static int buffer_make_staging(struct gpunvme_buffer *b)
{
    int err = alloc_host(b);

    if (!err)
        (void)share_memory(b, GPUNVME_MEM_FD, GPUNVME_REGISTER_BOUNCE);
    return err;
}

static void buffer_free_memory(struct gpunvme_buffer *b)
{
    if (b->pinned_for != CUDA_NO_DEVICE)
        cuda_driver_unpin(b->owner->cuda, b->pinned_for, b->addr);
    if (b->piece.slab) {
        slab_free(&b->owner->slabs, &b->piece, b->len, b->in_reach);
        return;
    }
    if (b->allocated && b->device != CUDA_NO_DEVICE && b->addr)
        cuda_driver_free(b->owner->cuda, b->device, (uintptr_t)b->addr);
    else if (b->allocated && b->addr)
        munmap(b->addr, b->len);
    if (b->fd >= 0)
        close(b->fd);
}

/* `as` has the members that say what to allocate. */
static int alloc_like(struct connection *g, size_t len, const struct gpunvme_buffer *as,
                      int (*make)(struct gpunvme_buffer *b), struct gpunvme_buffer **out)
{
    int err;
    struct gpunvme_buffer *b = buffer_new(g, len, &err);

    if (!b)
        return err;
    b->allocated = true;
    b->is_host = as->is_host;
    b->for_lease = as->for_lease;
    b->wanted = as->wanted;
    err = make(b);
    if (err) {
        buffer_free_memory(b);
        free(b);
        return err;
    }
    buffer_link(b);
    *out = b;
    return 0;
}

int buffer_alloc_on(struct connection *g, size_t len, bool host, bool for_lease, int device,
                    struct gpunvme_buffer **out)
{
    const struct gpunvme_buffer as = {.is_host = host, .for_lease = for_lease, .wanted = device};
    bool cuda = g->info.executor == GPUNVME_EXECUTOR_CUDA;

    return alloc_like(g, len, &as, !cuda ? alloc_shared : host ? alloc_pinned : alloc_cuda, out);
}

int buffer_alloc(struct connection *g, size_t len, struct gpunvme_buffer **out)
{
    return buffer_alloc_on(g, len, false, false, CUDA_NO_DEVICE, out);
}

int buffer_alloc_host(struct connection *g, size_t len, struct gpunvme_buffer **out)
{
    return buffer_alloc_on(g, len, true, false, CUDA_NO_DEVICE, out);
}

int buffer_alloc_staging(struct connection *g, size_t len, bool local, struct gpunvme_buffer **out)
{
    const struct gpunvme_buffer as = {.wanted = CUDA_NO_DEVICE};

    return alloc_like(g, len, &as, local ? alloc_host : buffer_make_staging, out);
}

/* Returns true if freeing the memory would wait for a kernel that does not end. */
static bool buffer_stays(struct gpunvme_buffer *b)
{
    pthread_mutex_lock(&b->owner->lock);
    bool stays = b->owner->abandoned;
    pthread_mutex_unlock(&b->owner->lock);
    return stays;
}

int buffer_unregister(struct gpunvme_buffer *b)
{
    struct gpunvme_ioc_unregister unreg = {.id = b->id, .key = b->key};
    int err = 0;

    if (b->shared)
        err = gpunvme_ioctl(b->owner->fd, GPUNVME_IOC_UNREGISTER, &unreg, sizeof(unreg));
    if (err)
        gpunvme_fail(err, "UNREGISTER: %s", strerror(-err));
    b->in_reach = err != 0;
    buffer_unlink(b);
    if (!buffer_stays(b))
        buffer_free_memory(b);
    free(b);
    return err;
}

void *buffer_addr(const struct gpunvme_buffer *b)
{
    return b->addr;
}

size_t buffer_len(const struct gpunvme_buffer *b)
{
    return b->len;
}

static bool buffer_inside(const struct gpunvme_buffer *b, size_t offset, size_t len)
{
    return offset <= b->len && len <= b->len - offset;
}

int buffer_copy_out(struct gpunvme_buffer *b, size_t offset, void *dst, size_t len)
{
    if (!buffer_inside(b, offset, len))
        return gpunvme_fail(-ERANGE, "copy past the end of the buffer");
    if (b->device != CUDA_NO_DEVICE)
        return cuda_driver_copy_out(b->owner->cuda, b->device, dst, (uintptr_t)b->addr + offset,
                                    len);
    memcpy(dst, (char *)b->addr + offset, len);
    return 0;
}

int buffer_copy_in(struct gpunvme_buffer *b, size_t offset, const void *src, size_t len)
{
    if (!buffer_inside(b, offset, len))
        return gpunvme_fail(-ERANGE, "copy past the end of the buffer");
    if (b->device != CUDA_NO_DEVICE)
        return cuda_driver_copy_in(b->owner->cuda, b->device, (uintptr_t)b->addr + offset, src,
                                   len);
    memcpy((char *)b->addr + offset, src, len);
    return 0;
}
