/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Accesses the registers, doorbells and config space of the device behind VFIO,
 * and resets the device.
 *
 * Registers are accessed through the device's file. This costs a system call,
 * but registers are rarely used, and an access to a device that is gone, asleep
 * or being reset then fails or waits; an access to mapped memory would end the
 * process with SIGBUS. Only the doorbells are mapped. The kernel removes that
 * mapping only after a reset that the device does not survive. Ordinary memory
 * then replaces the mapping.
 */
#include <errno.h>
#include <linux/pci_regs.h>
#include <nvme/types.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blockdev/nvme/nvme.h"
#include "blockdev/vfio/vfio_internal.h"
#include "support/clock.h"
#include "support/wait.h"

#define MAX_CAPS    48u /* all 4-byte entries that fit into 192 bytes */
#define CAP_MISSING 0
#define CAP_TO_MS   500u /* unit of CAP.TO in ms */

/* --- Registers ------------------------------------------------------------------------------- */

static struct vfio *pci_vfio_of(struct nvme_transport *t)
{
    return (struct vfio *)t;
}

/*
 * Stops or admits register accesses. While the kernel resets a device for this
 * process, an access to its registers would block in the kernel until the reset
 * is over, up to a minute if the device does not come back. Therefore the reset
 * starts after the last access has ended, and accesses during the reset read
 * all-ones.
 */
static void set_away(struct vfio *v, bool away)
{
    pthread_rwlock_wrlock(&v->access);
    v->away = away;
    pthread_rwlock_unlock(&v->access);
}

static bool is_away(struct vfio *v)
{
    bool away;

    pthread_rwlock_rdlock(&v->access);
    away = v->away;
    pthread_rwlock_unlock(&v->access);
    return away;
}

/* The kernel reads 64 bits or two halves, which 3.1.3 allows. */
uint64_t vfio_read(struct nvme_transport *t, uint32_t offset, unsigned bytes)
{
    struct vfio *v = pci_vfio_of(t);
    uint64_t value = 0; /* little-endian */
    ssize_t n = -1;

    pthread_rwlock_rdlock(&v->access);
    if (!v->away)
        n = pread(v->device, &value, bytes, (off_t)(v->bar0.offset + offset));
    pthread_rwlock_unlock(&v->access);
    if (n != (ssize_t)bytes)
        memset(&value, 0xff, bytes);
    return value;
}

/* A write to a device that is gone is lost, as on the bus. */
void vfio_write(struct nvme_transport *t, uint32_t offset, uint64_t value, unsigned bytes)
{
    struct vfio *v = pci_vfio_of(t);
    ssize_t n = 0;

    pthread_rwlock_rdlock(&v->access);
    if (!v->away)
        n = pwrite(v->device, &value, bytes, (off_t)(v->bar0.offset + offset));
    pthread_rwlock_unlock(&v->access);
    (void)n;
}

/* --- Config space ---------------------------------------------------------------------------- */

static int config_read(const struct vfio *v, uint32_t offset, void *out, size_t len)
{
    ssize_t n = pread(v->device, out, len, (off_t)(v->config.offset + offset));

    if (n == (ssize_t)len)
        return 0;
    return n < 0 ? -errno : -EIO;
}

static int set_command(const struct vfio *v, uint16_t clear, uint16_t set)
{
    uint16_t command;
    ssize_t n;
    int rc = config_read(v, PCI_COMMAND, &command, sizeof(command));

    if (rc)
        return rc;
    command = (uint16_t)((command & ~clear) | set);
    n = pwrite(v->device, &command, sizeof(command), (off_t)(v->config.offset + PCI_COMMAND));
    if (n == (ssize_t)sizeof(command))
        return 0;
    return n < 0 ? -errno : -EIO;
}

/* Makes registers answer, without interrupts: completions are polled. */
static int decode_memory(const struct vfio *v)
{
    return set_command(v, PCI_COMMAND_MASTER, PCI_COMMAND_MEMORY | PCI_COMMAND_INTX_DISABLE);
}

static int master_bus(const struct vfio *v)
{
    return set_command(v, 0, PCI_COMMAND_MEMORY | PCI_COMMAND_INTX_DISABLE | PCI_COMMAND_MASTER);
}

/* Returns the offset of the capability, or CAP_MISSING. */
static uint8_t find_capability(const struct vfio *v, uint8_t id)
{
    uint8_t at, cap[2];

    if (config_read(v, PCI_CAPABILITY_LIST, &at, 1))
        return CAP_MISSING;
    for (unsigned i = 0; i < MAX_CAPS; i++) {
        at &= 0xfc;
        if (at < PCI_STD_HEADER_SIZEOF || config_read(v, at, cap, sizeof(cap)))
            return CAP_MISSING;
        if (cap[0] == id)
            return at;
        at = cap[1];
    }
    return CAP_MISSING;
}

/* Lowers the limit to an MSI-X structure behind the doorbells. */
static uint64_t below(uint64_t limit, uint32_t location)
{
    uint32_t offset = location & PCI_MSIX_TABLE_OFFSET;

    if (location & PCI_MSIX_TABLE_BIR || offset < NVME_REG_DOORBELLS)
        return limit;
    return offset < limit ? offset : limit;
}

/*
 * Returns the end of the doorbells. The kernel allows mapping the MSI-X table
 * if the IOMMU remaps interrupts, but a stray doorbell must not reach it.
 */
static uint64_t doorbells_limit(const struct vfio *v)
{
    uint8_t at = find_capability(v, PCI_CAP_ID_MSIX);
    uint32_t table, pba;
    uint64_t limit = v->bar0.size;

    if (at == CAP_MISSING || config_read(v, at + PCI_MSIX_TABLE, &table, sizeof(table)) ||
        config_read(v, at + PCI_MSIX_PBA, &pba, sizeof(pba)))
        return limit;
    return below(below(limit, table), pba);
}

/* --- Doorbells ------------------------------------------------------------------------------- */

/* Returns the end of the area that maps the first doorbell, or 0. */
static uint64_t mappable_end(const void *answer, size_t len)
{
    const struct vfio_region_info *info = answer;
    const struct vfio_region_info_cap_sparse_mmap *cap = NULL;
    size_t room;

    if (!(info->flags & VFIO_REGION_INFO_FLAG_MMAP))
        return 0;
    if (info->flags & VFIO_REGION_INFO_FLAG_CAPS)
        cap = vfio_find_cap(answer, len, info->cap_offset, VFIO_REGION_INFO_CAP_SPARSE_MMAP,
                            sizeof(*cap));
    if (!cap)
        return info->size;
    room = (len - (size_t)((const char *)cap - (const char *)answer) - sizeof(*cap)) /
           sizeof(cap->areas[0]);
    for (size_t i = 0; i < cap->nr_areas && i < room; i++) {
        uint64_t start = cap->areas[i].offset, size = cap->areas[i].size;

        if (start <= NVME_REG_DOORBELLS && size > NVME_REG_DOORBELLS - start &&
            size <= info->size - start)
            return start + size;
    }
    return 0;
}

size_t vfio_doorbells_len(const void *answer, size_t len, uint64_t limit)
{
    uint64_t end = mappable_end(answer, len);

    end = end < limit ? end : limit;
    if (end < NVME_REG_DOORBELLS + NVME_PAGE_SIZE)
        return 0;
    return (end - NVME_REG_DOORBELLS) & ~(size_t)(NVME_PAGE_SIZE - 1);
}

static int pci_map_doorbells(struct vfio *v, size_t len, struct reason *why)
{
    void *p;

    if (len == 0)
        return reason_set(why, -EPROTO,
                          "its doorbells cannot be mapped: they share a page with other things in "
                          "BAR0 (%llu bytes)",
                          (unsigned long long)v->bar0.size);
    p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, v->device,
             (off_t)(v->bar0.offset + NVME_REG_DOORBELLS));
    if (p == MAP_FAILED)
        return reason_set(why, -errno, "its doorbells cannot be mapped: %s", strerror(errno));
    v->t.doorbells = p;
    v->t.doorbells_len = len;
    v->guard.doorbells = p;
    v->guard.doorbells_len = len;
    return 0;
}

/* Stores to a lost device's doorbells must not fault. */
static void bury_doorbells(const struct vfio *v)
{
    (void)mmap((void *)(uintptr_t)v->t.doorbells, v->t.doorbells_len, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

/* --- Opening --------------------------------------------------------------------------------- */

static int pci_read_info(struct vfio *v, struct reason *why)
{
    _Alignas(8) char answer[VFIO_ANSWER] = {0};
    const struct vfio_device_info *info = (const void *)answer;
    int rc = vfio_query(v->device, VFIO_DEVICE_GET_INFO, sizeof(*info), answer);

    if (rc)
        return reason_set(why, rc, "VFIO says nothing about it: %s", strerror(-rc));
    if (!(info->flags & VFIO_DEVICE_FLAGS_PCI) || info->num_regions <= VFIO_PCI_CONFIG_REGION_INDEX)
        return reason_set(why, -EPROTO, "VFIO does not show it as a PCI device");
    v->can_reset = info->flags & VFIO_DEVICE_FLAGS_RESET;
    return 0;
}

static int pci_read_region(const struct vfio *v, uint32_t index, char answer[VFIO_ANSWER],
                           struct vfio_region_info *out, struct reason *why)
{
    struct vfio_region_info *info = (void *)answer;
    int rc;

    memset(answer, 0, VFIO_ANSWER);
    info->index = index;
    rc = vfio_query(v->device, VFIO_DEVICE_GET_REGION_INFO, sizeof(*info), answer);
    if (rc)
        return reason_set(why, rc, "VFIO says nothing about region %u: %s", index, strerror(-rc));
    *out = *info;
    return 0;
}

/*
 * Stops a controller that still runs with the queues of its previous user,
 * before it may use the bus. This happens if the device cannot be reset;
 * otherwise the kernel reset it when it was opened.
 */
static void quiet_controller(struct vfio *v)
{
    uint32_t cc = (uint32_t)vfio_read(&v->t, NVME_REG_CC, 4);
    uint64_t deadline;

    if (cc == UINT32_MAX || !(cc & NVME_CC_ENABLE))
        return;
    deadline = deadline_after_ms((NVME_CAP_TO(vfio_read(&v->t, NVME_REG_CAP, 8)) + 1) * CAP_TO_MS +
                                 NVME_SLOW_DISABLE_MS);
    vfio_write(&v->t, NVME_REG_CC, cc & ~NVME_CC_ENABLE, 4);
    if (nvme_quirks_of(v->t.pci_vendor, v->t.pci_device) & NVME_QUIRK_SLOW_DISABLE)
        wait_ms(NVME_SLOW_DISABLE_MS);
    while (vfio_read(&v->t, NVME_REG_CSTS, 4) & NVME_CSTS_READY && now_ns() < deadline)
        wait_ms(1);
}

/*
 * Creates the eventfd by which the kernel requests the device (unplug, unbind).
 */
static void watch_removal(struct vfio *v)
{
    _Alignas(8) char ask[sizeof(struct vfio_irq_set) + sizeof(int)];
    struct vfio_irq_set *set = (void *)ask;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    *set = (struct vfio_irq_set){.argsz = sizeof(ask),
                                 .flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
                                 .index = VFIO_PCI_REQ_IRQ_INDEX,
                                 .count = 1};
    memcpy(set->data, &fd, sizeof(fd));
    if (fd >= 0 && ioctl(v->device, VFIO_DEVICE_SET_IRQS, set)) {
        close(fd); /* this kernel does not support it */
        fd = -1;
    }
    v->t.removal_fd = fd;
}

static int read_ids(struct vfio *v)
{
    uint16_t ids[2]; /* PCI_VENDOR_ID, PCI_DEVICE_ID */
    int rc = config_read(v, PCI_VENDOR_ID, ids, sizeof(ids));

    if (!rc) {
        v->t.pci_vendor = ids[0];
        v->t.pci_device = ids[1];
    }
    return rc;
}

static int open_bar0(struct vfio *v, struct reason *why)
{
    _Alignas(8) char answer[VFIO_ANSWER];
    int rc = pci_read_region(v, VFIO_PCI_CONFIG_REGION_INDEX, answer, &v->config, why);

    if (!rc)
        rc = pci_read_region(v, VFIO_PCI_BAR0_REGION_INDEX, answer, &v->bar0, why);
    if (rc)
        return rc;
    if (v->bar0.size < NVME_REG_DOORBELLS + NVME_PAGE_SIZE)
        return reason_set(why, -EPROTO, "BAR0 has %llu bytes, too few for an NVMe controller",
                          (unsigned long long)v->bar0.size);
    rc = read_ids(v);
    if (!rc)
        rc = decode_memory(v);
    if (rc)
        return reason_set(why, rc, "its config space does not answer: %s", strerror(-rc));
    return pci_map_doorbells(v, vfio_doorbells_len(answer, v->bar0.argsz, doorbells_limit(v)), why);
}

int vfio_pci_open(struct vfio *v, struct reason *why)
{
    int rc = pci_read_info(v, why);

    if (!rc)
        rc = open_bar0(v, why);
    if (rc)
        return rc;
    quiet_controller(v);
    watch_removal(v);
    rc = master_bus(v);
    return rc ? reason_set(why, rc, "bus mastering does not go on: %s", strerror(-rc)) : 0;
}

void vfio_pci_close(struct vfio *v)
{
    if (v->config.size && !is_away(v))
        set_command(v, PCI_COMMAND_MASTER, 0);
    if (v->t.doorbells)
        munmap((void *)(uintptr_t)v->t.doorbells, v->t.doorbells_len);
    if (v->t.removal_fd >= 0)
        close(v->t.removal_fd);
}

/*
 * Returns true if nothing answers at its place on the bus. The capability bit
 * is ignored because the kernel emulates it.
 */
static bool is_unplugged(const struct vfio *v)
{
    uint16_t status;

    return config_read(v, PCI_STATUS, &status, sizeof(status)) ||
           (status | PCI_STATUS_CAP_LIST) == UINT16_MAX;
}

/*
 * Does all steps that may block in the kernel: checks that the device is
 * present, resets it and restores the command register. An access to config
 * space blocks during any process's reset. The steps are done even if the
 * caller no longer waits, since a controller that was reset is disabled and
 * sends nothing to the bus.
 */
static int renew(const struct vfio *v)
{
    int rc = is_unplugged(v) ? -EIO : vfio_reset_function(v->device);

    return rc ? rc : master_bus(v);
}

/*
 * Abandons the device: from now on registers read all-ones without an access,
 * and doorbells are ordinary memory.
 */
static int pci_give_up(struct vfio *v)
{
    set_away(v, true);
    bury_doorbells(v);
    return -EIO;
}

/* Waits for an answer: another process may reset the device as well. */
static bool comes_back(struct vfio *v)
{
    uint64_t deadline = deadline_after_ms(NVME_GONE_MS);

    while (!nvme_cap_answered(vfio_read(&v->t, NVME_REG_CAP, 8))) {
        if (now_ns() >= deadline)
            return false;
        wait_ms(1);
    }
    return true;
}

int vfio_pci_reset(struct vfio *v)
{
    int rc;

    if (is_away(v))
        return -EIO;
    if (!v->can_reset)
        return -ENOTSUP;
    set_away(v, true);
    rc = vfio_bounded(v, VFIO_FUNCTION_RESET_MS, renew);
    set_away(v, rc != 0);
    return rc || !comes_back(v) ? pci_give_up(v) : 0;
}
