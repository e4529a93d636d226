/* SPDX-License-Identifier: BSD-2-Clause */
/* Serves messages that access BAR0 and the configuration space. */
#include <assert.h>
#include <errno.h>
#include <nvme/types.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "blockdev/nvme/nvme_spec.h"
#include "sim/serve/serve.h"

void serve_mistake(struct serve_session *s, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(s->last_mistake, sizeof(s->last_mistake), fmt, ap);
    va_end(ap);
    s->mistakes++;
}

uint64_t serve_region_bytes(const struct serve_session *s, uint32_t index)
{
    if (index == VFIO_PCI_BAR0_REGION_INDEX)
        return s->bar0_bytes;
    if (index == PCI_MSIX_BAR)
        return serve_pci_msix_bytes(s->o->cfg.vectors);
    return index == VFIO_PCI_CONFIG_REGION_INDEX ? PCI_CONFIG_BYTES : 0;
}

static bool region_inside(const struct serve_session *s, const struct vfio_user_region_access *a)
{
    uint64_t bytes = serve_region_bytes(s, a->region);

    return a->count && a->count <= bytes && a->offset <= bytes - a->count;
}

static bool is_doorbell(const struct serve_session *s, uint64_t offset, uint32_t count)
{
    return offset >= NVME_REG_DOORBELLS && count == sizeof(uint32_t) &&
           offset - NVME_REG_DOORBELLS < s->t->doorbells_len;
}

static volatile uint32_t *region_doorbell(const struct serve_session *s, uint64_t offset)
{
    assert(is_doorbell(s, offset, sizeof(uint32_t)));
    return &s->t->doorbells[(offset - NVME_REG_DOORBELLS) / sizeof(uint32_t)];
}

static uint32_t read_register(struct serve_session *s, uint32_t offset)
{
    uint32_t v = (uint32_t)s->t->ops->read(s->t, offset, 4);

    if (!s->cut_off || v == UINT32_MAX)
        return v;
    if (offset == NVME_REG_CC)
        return s->cut_off_cc;
    return offset == NVME_REG_CSTS ? v | NVME_CSTS_FATAL : v;
}

static int region_bar0_read(struct serve_session *s, uint64_t offset, uint32_t count, void *to)
{
    uint32_t v[2] = {0};

    if ((count != 4 && count != 8) || offset % count)
        return EINVAL;
    for (uint32_t i = 0; i < count / 4; i++, offset += 4) {
        if (offset < NVME_REG_DOORBELLS)
            v[i] = read_register(s, (uint32_t)offset);
        else if (is_doorbell(s, offset, 4))
            v[i] = *region_doorbell(s, offset);
    }
    memcpy(to, v, count);
    return 0;
}

static void region_cut_off(struct serve_session *s, uint32_t cc)
{
    s->cut_off = true;
    s->cut_off_cc = cc;
    s->t->ops->write(s->t, NVME_REG_CC, cc & ~NVME_CC_ENABLE, 4);
}

static void region_write_cc(struct serve_session *s, uint32_t cc)
{
    if ((cc & NVME_CC_ENABLE) && !s->cut_off && !serve_pci_bus_master(&s->pci)) {
        serve_mistake(s, "CC.EN set while bus mastering is off");
        region_cut_off(s, cc);
    } else if ((cc & NVME_CC_ENABLE) && s->cut_off) {
        s->cut_off_cc = cc;
    } else {
        s->cut_off = false;
        s->t->ops->write(s->t, NVME_REG_CC, cc, 4);
    }
}

static void write_config(struct serve_session *s, uint64_t offset, const void *from, uint32_t count)
{
    uint32_t cc = (uint32_t)s->t->ops->read(s->t, NVME_REG_CC, 4);

    if (serve_pci_write(&s->pci, offset, from, count)) {
        s->cut_off = false;
        s->t->ops->reset(s->t);
        return;
    }
    if (serve_pci_bus_master(&s->pci) || s->cut_off || cc == UINT32_MAX || !(cc & NVME_CC_ENABLE))
        return;
    /* Linux leaves CC.EN set after a shutdown. */
    uint32_t shst = s->t->ops->read(s->t, NVME_REG_CSTS, 4) & NVME_CSTS_SHST_BITS;
    if (shst != NVME_CSTS_SHST_COMPLETE)
        serve_mistake(s, "bus mastering switched off while CC.EN is 1");
    region_cut_off(s, cc);
}

static int write_doorbell(struct serve_session *s, uint64_t offset, uint32_t v)
{
    /* Release: the client's SQEs are visible before the doorbell. */
    __atomic_store_n(region_doorbell(s, offset), v, __ATOMIC_RELEASE);
    nvme_wake(s->t, 1);
    return 0;
}

static int region_bar0_write(struct serve_session *s, uint64_t offset, uint32_t count,
                             const void *from)
{
    uint64_t v = 0;

    if ((count != 4 && count != 8) || offset % count)
        return EINVAL;
    memcpy(&v, from, count);
    if (is_doorbell(s, offset, count))
        return write_doorbell(s, offset, (uint32_t)v);
    if (offset >= NVME_REG_DOORBELLS)
        return EINVAL;
    if (count == 4 && offset == NVME_REG_CC)
        region_write_cc(s, (uint32_t)v);
    else
        s->t->ops->write(s->t, (uint32_t)offset, v, count);
    return 0;
}

static void region_msix_read(const struct serve_session *s, uint64_t offset, uint32_t count,
                             unsigned char *to)
{
    for (uint32_t i = 0; i < count; i++, offset++)
        to[i] = offset < sizeof(s->msix_table) ? s->msix_table[offset] : 0;
}

/* The bits of pending vectors are read-only. */
static void region_msix_write(struct serve_session *s, uint64_t offset, uint32_t count,
                              const unsigned char *from)
{
    for (uint32_t i = 0; i < count; i++, offset++)
        if (offset < s->o->cfg.vectors * (uint64_t)PCI_MSIX_ENTRY_SIZE)
            s->msix_table[offset] = from[i];
}

int serve_region_read(struct serve_session *s, const struct vfio_user_region_access *a, void *to)
{
    if (!region_inside(s, a))
        return EINVAL;
    if (a->region == VFIO_PCI_BAR0_REGION_INDEX)
        return region_bar0_read(s, a->offset, a->count, to);
    if (a->region == PCI_MSIX_BAR)
        region_msix_read(s, a->offset, a->count, to);
    else
        serve_pci_read(&s->pci, a->offset, to, a->count);
    return 0;
}

int serve_region_write(struct serve_session *s, const struct vfio_user_region_access *a,
                       const void *from)
{
    if (!region_inside(s, a))
        return EINVAL;
    if (a->region == VFIO_PCI_BAR0_REGION_INDEX)
        return region_bar0_write(s, a->offset, a->count, from);
    if (a->region == PCI_MSIX_BAR)
        region_msix_write(s, a->offset, a->count, from);
    else
        write_config(s, a->offset, from, a->count);
    return 0;
}
