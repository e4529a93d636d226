/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the vfio-user transport. A register access is a message, whose
 * round trip takes up to milliseconds. Doorbells are a page of the server that
 * this process maps. Memory is shared by sending its descriptor to the server.
 */
#include <assert.h>
#include <errno.h>
#include <nvme/types.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/vfio_user/vfio_user_internal.h"

/* Configuration space (PCI Local Bus Specification 3.0, 6.2.2). */
#define PCI_COMMAND 0x04u
/*
 * Memory space, bus master, INTx off. Without bus mastering some servers end
 * the first admin completion in CSTS.CFS; nothing handles interrupts.
 */
#define PCI_COMMAND_ON 0x0406u

static struct vfio_user *user_of(struct nvme_transport *t)
{
    return (struct vfio_user *)t;
}

static void *doorbell_page(const struct nvme_transport *t)
{
    return (void *)(uintptr_t)t->doorbells;
}

/*
 * Makes later doorbell stores go to private memory: a new server may use the
 * file again, and a store beyond the end of a truncated file would raise
 * SIGBUS. The pages are replaced atomically, so that no store of another thread
 * finds them missing. It uses mremap() because ThreadSanitizer takes an mmap()
 * there for a write. If that fails, the pages stay.
 */
static void detach_doorbells(const struct vfio_user *u)
{
    size_t len = u->t.doorbells_len;

    if (!u->t.doorbells)
        return;
    void *pages = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return;
    if (mremap(pages, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, doorbell_page(&u->t)) == MAP_FAILED)
        munmap(pages, len);
}

static int break_off(struct vfio_user *u, const char *trouble)
{
    detach_doorbells(u);
    return vfio_user_break(&u->conn, trouble);
}

/* Owner of a range that the server has unmapped unasked. */
static char unmapped;

static int user_call(struct vfio_user *u, struct vfio_user_msg *m)
{
    bool gone = u->conn.gone;
    int rc = vfio_user_call(&u->conn, m);

    if (u->conn.gone && !gone)
        detach_doorbells(u);
    if (rc == -EAGAIN)
        u->late_iova = m->iova;
    return rc;
}

/*
 * Sends DMA_UNMAP. The server replies when the device can no longer reach the
 * memory. A server that refuses is disconnected. Its process may still hold the
 * file, so its pages must not be reused for secrets, but none of its addresses
 * refers to them any more. Returns -EAGAIN if the reply is late.
 */
static int unmap_message(struct vfio_user *u, const struct nvme_iova_range *range)
{
    struct vfio_user_dma_unmap unmap = {
        .argsz = sizeof(unmap), .addr = range->start, .size = range->len};
    struct vfio_user_dma_unmap echo;
    struct vfio_user_msg m = {.command = VFIO_USER_DMA_UNMAP,
                              .payload = &unmap,
                              .len = sizeof(unmap),
                              .fd = -1,
                              .reply = &echo,
                              .reply_max = sizeof(echo),
                              .iova = range->start};
    int rc = user_call(u, &m);

    if (rc > 0)
        return break_off(u, "memory that is not given back");
    return rc;
}

static void forget_abandoned(struct vfio_user *u)
{
    nvme_iova_give(&u->iova, u->abandoned);
    u->abandoned = 0;
}

/* Handles the late reply. `refused` is the server's errno, or 0. */
static void settle_region(struct vfio_user *u, int refused)
{
    if (u->conn.late_command == VFIO_USER_DMA_MAP && refused)
        nvme_iova_give(&u->iova, u->late_iova);
    else if (u->conn.late_command == VFIO_USER_DMA_MAP)
        u->abandoned = u->late_iova;
    else if (u->conn.late_command == VFIO_USER_DMA_UNMAP && refused)
        break_off(u, "memory that is not given back");
    else if (u->conn.late_command == VFIO_USER_DMA_UNMAP && u->late_iova == u->abandoned)
        forget_abandoned(u);
    else if (u->conn.late_command == VFIO_USER_DMA_UNMAP)
        nvme_iova_set_owner(&u->iova, u->late_iova, &unmapped);
}

static int settle_late(struct vfio_user *u, unsigned ms, bool counts)
{
    bool gone = u->conn.gone;
    int rc = vfio_user_take_late(&u->conn, ms, counts);

    if (u->conn.gone && !gone)
        detach_doorbells(u);
    if (rc < 0)
        return rc;
    settle_region(u, rc);
    return 0;
}

/*
 * Takes a late reply, if any, and unmaps a region whose map was abandoned.
 * Afterwards only regions that the driver knows are mapped.
 */
static int user_settle(struct vfio_user *u, unsigned ms, bool counts)
{
    int rc = u->conn.late ? settle_late(u, ms, counts) : 0;

    if (rc || !u->abandoned)
        return rc;
    rc = unmap_message(u, nvme_iova_find(&u->iova, u->abandoned));
    if (rc != -EAGAIN)
        forget_abandoned(u);
    return rc;
}

int vfio_user_exchange(struct vfio_user *u, struct vfio_user_msg *m)
{
    int rc = user_settle(u, m->late_ms, m->counts);

    return rc ? rc : user_call(u, m);
}

struct access {
    struct vfio_user_region_access head;
    unsigned char data[8];
};
static_assert(sizeof(struct access) == sizeof(struct vfio_user_region_access) + 8, "no hole");

int vfio_user_access(struct vfio_user *u, uint16_t command, uint32_t region, uint64_t offset,
                     void *data, uint32_t count)
{
    struct access sent = {.head = {.offset = offset, .region = region, .count = count}};
    struct access got = {0};
    bool is_read = command == VFIO_USER_REGION_READ;
    struct vfio_user_msg m = {.command = command,
                              .payload = &sent,
                              .len = sizeof(sent.head) + (is_read ? 0 : count),
                              .fd = -1,
                              .reply = &got,
                              .reply_max = sizeof(got.head) + (is_read ? count : 0),
                              .late_ms = VFIO_USER_LATE_MS,
                              .counts = true};
    int rc;

    if (!is_read)
        memcpy(sent.data, data, count);
    rc = vfio_user_exchange(u, &m);
    if (rc)
        return rc;
    if (m.reply_len != m.reply_max || got.head.count != count)
        return break_off(u, "an access of another size than asked for");
    if (is_read)
        memcpy(data, got.data, count);
    return 0;
}

/* A write that fails is lost; a failed read leaves *value unchanged. */
static void access_register(struct nvme_transport *t, uint16_t command, uint32_t offset,
                            void *value, uint32_t count)
{
    struct vfio_user *u = user_of(t);

    assert(offset + count <= NVME_REG_DOORBELLS);
    pthread_mutex_lock(&u->lock);
    vfio_user_access(u, command, VFIO_PCI_BAR0_REGION_INDEX, offset, value, count);
    pthread_mutex_unlock(&u->lock);
}

static uint64_t user_read(struct nvme_transport *t, uint32_t offset, unsigned bytes)
{
    uint64_t value = 0; /* little-endian */

    memset(&value, 0xff, bytes);
    access_register(t, VFIO_USER_REGION_READ, offset, &value, bytes);
    return value;
}

static void user_write(struct nvme_transport *t, uint32_t offset, uint64_t value, unsigned bytes)
{
    access_register(t, VFIO_USER_REGION_WRITE, offset, &value, bytes);
}

/* Takes no lock, because its holder may be waiting for the server. */
static bool silent(struct nvme_transport *t)
{
    return __atomic_load_n(&user_of(t)->conn.late, __ATOMIC_RELAXED) &&
           !__atomic_load_n(&user_of(t)->conn.gone, __ATOMIC_RELAXED);
}

/*
 * Sends one map of any size: no capability limits its size, and servers
 * translate a ring or an SGL segment only within one map.
 */
static int map_message(struct vfio_user *u, const struct nvme_mem *mem, uint64_t iova)
{
    struct vfio_user_dma_map map = {.argsz = sizeof(map),
                                    .flags =
                                        VFIO_USER_DMA_READ_ALLOWED | VFIO_USER_DMA_WRITE_ALLOWED,
                                    .offset = mem->fd_offset,
                                    .addr = iova,
                                    .size = mem->len};
    struct vfio_user_msg m = {.command = VFIO_USER_DMA_MAP,
                              .payload = &map,
                              .len = sizeof(map),
                              .fd = mem->fd,
                              .late_ms = u->conn.timeout_ms,
                              .iova = iova};

    return vfio_user_exchange(u, &m);
}

/* Maps the result to an errno: no room, or no such file. */
static int map_errno(int rc)
{
    if (rc == -EAGAIN)
        return -ETIMEDOUT;
    if (rc <= 0)
        return rc ? -EIO : 0;
    return rc == ENOSPC || rc == ENOMEM ? -rc : -EFAULT;
}

static bool map_is_late(const struct vfio_user *u, uint64_t iova)
{
    return u->conn.late && u->conn.late_command == VFIO_USER_DMA_MAP && u->late_iova == iova;
}

/*
 * Maps a region. If the server's reply is late, it may have mapped the region,
 * so no other region gets its addresses before it is unmapped. No command uses
 * these addresses, so the server does not touch the memory, and the pages of
 * the file stay while the server holds it.
 */
static int user_map(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t *iova)
{
    struct vfio_user *u = user_of(t);
    int rc;

    if (!mem->addr || mem->fd < 0)
        return -EFAULT;
    if (!mem->len || ((uintptr_t)mem->addr | mem->len | mem->fd_offset) % NVME_PAGE_SIZE)
        return -EINVAL;
    pthread_mutex_lock(&u->lock);
    if (u->conn.gone)
        rc = -EIO;
    else if (u->iova.n_used >= u->t.max_regions)
        rc = -ENOSPC;
    else
        rc = nvme_iova_take(&u->iova, mem->len, NVME_PAGE_SIZE, NULL, iova);
    if (rc == 0) {
        rc = map_errno(map_message(u, mem, *iova));
        if (rc && !map_is_late(u, *iova))
            nvme_iova_give(&u->iova, *iova);
    }
    pthread_mutex_unlock(&u->lock);
    return rc;
}

static int unmap_locked(struct vfio_user *u, uint64_t iova)
{
    int rc = user_settle(u, u->conn.timeout_ms, false);

    if (rc == 0 && nvme_iova_find(&u->iova, iova)->owner != &unmapped)
        rc = unmap_message(u, nvme_iova_find(&u->iova, iova));
    if (rc == -EAGAIN)
        return -ETIMEDOUT;
    nvme_iova_give(&u->iova, iova);
    return rc ? -EIO : 0;
}

static int user_unmap(struct nvme_transport *t, uint64_t iova)
{
    struct vfio_user *u = user_of(t);
    int rc = -ENOENT;

    pthread_mutex_lock(&u->lock);
    if (nvme_iova_find(&u->iova, iova))
        rc = unmap_locked(u, iova);
    pthread_mutex_unlock(&u->lock);
    return rc;
}

int vfio_user_command_on(struct vfio_user *u)
{
    uint16_t command = PCI_COMMAND_ON;

    return vfio_user_access(u, VFIO_USER_REGION_WRITE, VFIO_PCI_CONFIG_REGION_INDEX, PCI_COMMAND,
                            &command, sizeof(command));
}

/*
 * Sends a reset and waits up to silence_ms for a silent server. It releases the
 * lock in between, for calls that end with -ETIMEDOUT meanwhile.
 */
static int send_reset(struct vfio_user *u)
{
    struct vfio_user_msg m = {
        .command = VFIO_USER_DEVICE_RESET, .fd = -1, .late_ms = VFIO_USER_LATE_MS, .counts = true};
    int rc = vfio_user_exchange(u, &m);

    while (rc == -EAGAIN) {
        bool sent = u->conn.late_command == VFIO_USER_DEVICE_RESET;

        pthread_mutex_unlock(&u->lock);
        pthread_mutex_lock(&u->lock);
        if (!sent)
            rc = vfio_user_exchange(u, &m);
        else
            rc = u->conn.late ? settle_late(u, VFIO_USER_LATE_MS, true) : 0;
    }
    return rc;
}

/* A reset may clear the command register, or do nothing at all. */
static int reset_locked(struct vfio_user *u)
{
    uint32_t cc = UINT32_MAX;
    int rc = send_reset(u);

    if (rc == 0)
        rc = vfio_user_command_on(u);
    if (rc == 0)
        rc = vfio_user_access(u, VFIO_USER_REGION_READ, VFIO_PCI_BAR0_REGION_INDEX, NVME_REG_CC,
                              &cc, sizeof(cc));
    return rc || cc & NVME_CC_ENABLE ? -EIO : 0;
}

static int user_reset(struct nvme_transport *t)
{
    struct vfio_user *u = user_of(t);
    int rc = -ENOTSUP;

    pthread_mutex_lock(&u->lock);
    if (u->conn.gone)
        rc = -EIO;
    else if (u->can_reset)
        rc = reset_locked(u);
    pthread_mutex_unlock(&u->lock);
    return rc;
}

/* Closes the connection, which makes the server release all memory. */
void vfio_user_close(struct nvme_transport *t)
{
    struct vfio_user *u = user_of(t);

    if (t->removal_fd >= 0)
        close(t->removal_fd);
    if (t->doorbells_fd >= 0)
        close(t->doorbells_fd);
    shutdown(u->conn.fd, SHUT_RDWR);
    close(u->conn.fd);
    if (t->doorbells)
        munmap(doorbell_page(t), t->doorbells_len);
    nvme_iova_destroy(&u->iova);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

const struct nvme_transport_ops vfio_user_ops = {
    .name = "vfio-user",
    .read = user_read,
    .write = user_write,
    .map = user_map,
    .unmap = user_unmap,
    .reset = user_reset,
    .silent = silent,
    .close = vfio_user_close,
};
