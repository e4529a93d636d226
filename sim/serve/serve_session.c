/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the effect of each message. All fields of a message are checked
 * before use.
 */
#include "sim/serve/serve.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "blockdev/nvme/nvme_spec.h"

static int parse_fds(struct serve_session *s, struct json_object *caps)
{
    struct json_object *fds;

    if (!json_object_object_get_ex(caps, VFIO_USER_CAP_MAX_MSG_FDS, &fds))
        return 0;
    if (!json_object_is_type(fds, json_type_int) || json_object_get_int64(fds) < 0)
        return EINVAL;
    s->peer_fds = json_object_get_int64(fds) > MESSAGE_MAX_FDS
                      ? MESSAGE_MAX_FDS
                      : (unsigned)json_object_get_int64(fds);
    return 0;
}

/* Parses a client's capabilities, of which only the number of descriptors is used. */
static int parse_capabilities(struct serve_session *s, const char *text, size_t len)
{
    struct json_object *top, *caps;
    int rc = 0;

    if (!len)
        return 0;
    if (text[len - 1] != '\0')
        return EINVAL;
    top = json_tokener_parse(text);
    if (!json_object_is_type(top, json_type_object))
        rc = EINVAL;
    else if (json_object_object_get_ex(top, "capabilities", &caps))
        rc = json_object_is_type(caps, json_type_object) ? parse_fds(s, caps) : EINVAL;
    json_object_put(top);
    return rc;
}

/* Returns the bytes written, including the terminating zero. */
static size_t write_capabilities(const struct serve_session *s, char *out, size_t len)
{
    char maps[64] = "";

    if (!s->o->dma_maps)
        snprintf(maps, sizeof(maps), "\"%s\":%d,", VFIO_USER_CAP_MAX_DMA_MAPS, DMA_MAX_MAPS);
    return (size_t)snprintf(out, len, "{\"capabilities\":{\"%s\":%d,\"%s\":%d,%s\"%s\":%d}}",
                            VFIO_USER_CAP_MAX_MSG_FDS, MESSAGE_MAX_FDS,
                            VFIO_USER_CAP_MAX_DATA_XFER_SIZE, MESSAGE_MAX_XFER, maps,
                            VFIO_USER_CAP_PGSIZES, VFIO_USER_DEFAULT_PGSIZES) +
           1;
}

/* Handles VFIO_USER_VERSION. Returns 0 or an errno. */
static int serve_version_agree(struct serve_session *s, const struct serve_message *m,
                               struct serve_reply *r)
{
    struct vfio_user_version v;
    size_t len = serve_message_len(m);

    if (s->greeted || len < sizeof(v))
        return EINVAL;
    memcpy(&v, m->payload, sizeof(v));
    if (v.major != VFIO_USER_MAJOR)
        return EINVAL;
    s->peer_fds = VFIO_USER_DEFAULT_MSG_FDS;
    int rc = parse_capabilities(s, (const char *)m->payload + sizeof(v), len - sizeof(v));
    if (rc)
        return rc;
    if (v.minor > VFIO_USER_MINOR)
        v.minor = VFIO_USER_MINOR;
    memcpy(r->payload, &v, sizeof(v));
    r->len = sizeof(v) +
             write_capabilities(s, (char *)r->payload + sizeof(v), sizeof(r->payload) - sizeof(v));
    s->greeted = true;
    return 0;
}

#define BAR0_MIN_BYTES 0x4000u

void serve_session_start(struct serve_session *s)
{
    s->greeted = s->cut_off = false;
    s->bar0_bytes = BAR0_MIN_BYTES;
    while (s->bar0_bytes < NVME_REG_DOORBELLS + s->t->doorbells_len)
        s->bar0_bytes *= 2;
    serve_pci_init(&s->pci, s->o, s->bar0_bytes);
    for (unsigned v = 0; v < SIM_MAX_VECTORS; v++) {
        memset(&s->msix_table[v * PCI_MSIX_ENTRY_SIZE], 0, PCI_MSIX_ENTRY_SIZE);
        s->msix_table[v * PCI_MSIX_ENTRY_SIZE + PCI_MSIX_ENTRY_VECTOR_CTRL] =
            PCI_MSIX_ENTRY_CTRL_MASKBIT;
    }
}

/* Copies the first len bytes of the payload. Returns false if it is shorter. */
static bool session_take(const struct serve_message *m, void *to, size_t len)
{
    if (serve_message_len(m) < len)
        return false;
    memcpy(to, m->payload, len);
    return true;
}

static void session_put(struct serve_reply *r, const void *from, size_t len)
{
    memcpy(r->payload + r->len, from, len);
    r->len += len;
}

static int get_info(struct serve_session *s, const struct serve_message *m, struct serve_reply *r)
{
    struct vfio_user_device_info info;

    if (!session_take(m, &info, sizeof(info)) || info.argsz < sizeof(info))
        return EINVAL;
    info = (struct vfio_user_device_info){
        .argsz = sizeof(info),
        .flags = VFIO_DEVICE_FLAGS_PCI | (s->o->cfg.no_reset ? 0 : VFIO_DEVICE_FLAGS_RESET),
        .num_regions = VFIO_PCI_NUM_REGIONS,
        .num_irqs = VFIO_PCI_NUM_IRQS,
    };
    session_put(r, &info, sizeof(info));
    return 0;
}

/* The doorbells have the same offset in their file as in BAR0. */
static void put_bar0(const struct serve_session *s, struct vfio_region_info *info, uint32_t room,
                     struct serve_reply *r)
{
    const struct vfio_region_info_cap_sparse_mmap head = {
        .header = {.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP, .version = 1}, .nr_areas = 1};
    const struct vfio_region_sparse_mmap_area area = {.offset = NVME_REG_DOORBELLS,
                                                      .size = s->t->doorbells_len};

    info->flags |= VFIO_REGION_INFO_FLAG_MMAP;
    info->argsz = sizeof(*info) + sizeof(head) + sizeof(area);
    /*
     * The client repeats the request with more room. QEMU refuses a reply that
     * has the flag of capabilities without their offset.
     */
    if (room < info->argsz) {
        session_put(r, info, sizeof(*info));
        return;
    }
    info->flags |= VFIO_REGION_INFO_FLAG_CAPS;
    info->cap_offset = sizeof(*info);
    session_put(r, info, sizeof(*info));
    session_put(r, &head, sizeof(head));
    session_put(r, &area, sizeof(area));
    r->fd = sim_doorbells_fd(s->sim);
}

static int get_region_info(struct serve_session *s, const struct serve_message *m,
                           struct serve_reply *r)
{
    struct vfio_region_info in, info;

    if (!session_take(m, &in, sizeof(in)) || in.argsz < sizeof(in) ||
        in.index >= VFIO_PCI_NUM_REGIONS)
        return EINVAL;
    info = (struct vfio_region_info){
        .argsz = sizeof(info), .index = in.index, .size = serve_region_bytes(s, in.index)};
    if (info.size)
        info.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
    if (in.index == VFIO_PCI_BAR0_REGION_INDEX && !s->o->no_mmap && s->peer_fds > 0)
        put_bar0(s, &info, in.argsz, r);
    else
        session_put(r, &info, sizeof(info));
    return 0;
}

/*
 * Offers MSI-X, and INTx and the two events of VFIO, which are never raised.
 */
static uint32_t irq_count(const struct serve_session *s, uint32_t index)
{
    if (index == VFIO_PCI_MSIX_IRQ_INDEX)
        return s->o->cfg.vectors;
    return index == VFIO_PCI_MSI_IRQ_INDEX ? 0 : 1;
}

static int get_irq_info(struct serve_session *s, const struct serve_message *m,
                        struct serve_reply *r)
{
    struct vfio_irq_info in;

    if (!session_take(m, &in, sizeof(in)) || in.argsz < sizeof(in) || in.index >= VFIO_PCI_NUM_IRQS)
        return EINVAL;
    struct vfio_irq_info info = {
        .argsz = sizeof(info),
        .flags = VFIO_IRQ_INFO_EVENTFD,
        .index = in.index,
        .count = irq_count(s, in.index),
    };
    if (in.index == VFIO_PCI_INTX_IRQ_INDEX)
        info.flags |= VFIO_IRQ_INFO_MASKABLE | VFIO_IRQ_INFO_AUTOMASKED;
    session_put(r, &info, sizeof(info));
    return 0;
}

static bool one_bit(uint32_t v)
{
    return v && !(v & (v - 1));
}

/*
 * Sets eventfds, which are closed with the message, or triggers vectors. A
 * request without vectors removes all eventfds.
 */
static int set_msix(struct serve_session *s, const struct vfio_irq_set *in,
                    const struct serve_message *m)
{
    uint32_t data = in->flags & VFIO_IRQ_SET_DATA_TYPE_MASK;
    const unsigned char *wanted = m->payload + sizeof(*in);

    if ((in->flags & VFIO_IRQ_SET_ACTION_TYPE_MASK) != VFIO_IRQ_SET_ACTION_TRIGGER)
        return EINVAL; /* as MASKABLE is not offered */
    if (in->count == 0)
        return -sim_set_interrupts(s->sim, 0, s->o->cfg.vectors, NULL);
    if (data == VFIO_IRQ_SET_DATA_EVENTFD)
        return m->fds.n && m->fds.n != in->count
                   ? EINVAL
                   : -sim_set_interrupts(s->sim, in->start, in->count, m->fds.n ? m->fds.fd : NULL);
    for (uint32_t v = 0; v < in->count; v++)
        if (data == VFIO_IRQ_SET_DATA_NONE || wanted[v])
            sim_trigger_interrupt(s->sim, in->start + v);
    return 0;
}

/* The descriptors of other interrupts are accepted, and closed with the message. */
static int set_irqs(struct serve_session *s, const struct serve_message *m, struct serve_reply *r)
{
    struct vfio_irq_set in;

    (void)r;
    if (!session_take(m, &in, sizeof(in)) || in.argsz < sizeof(in) || in.index >= VFIO_PCI_NUM_IRQS)
        return EINVAL;
    uint32_t data = in.flags & VFIO_IRQ_SET_DATA_TYPE_MASK, n = irq_count(s, in.index);
    uint32_t action = in.flags & VFIO_IRQ_SET_ACTION_TYPE_MASK;
    if (in.flags != (data | action) || !one_bit(data) || !one_bit(action))
        return EINVAL;
    if (in.count > n || in.start > n - in.count)
        return EINVAL;
    if (data == VFIO_IRQ_SET_DATA_BOOL && serve_message_len(m) != sizeof(in) + in.count)
        return EINVAL;
    if (data != VFIO_IRQ_SET_DATA_NONE && in.count == 0)
        return EINVAL;
    if (m->fds.n > (data == VFIO_IRQ_SET_DATA_EVENTFD ? in.count : 0))
        return EINVAL;
    return in.index == VFIO_PCI_MSIX_IRQ_INDEX ? set_msix(s, &in, m) : 0;
}

static int access_region(struct serve_session *s, const struct serve_message *m,
                         struct serve_reply *r)
{
    bool writes = m->header.command == VFIO_USER_REGION_WRITE;
    struct vfio_user_region_access a;

    if (!session_take(m, &a, sizeof(a)) || a.count > MESSAGE_MAX_XFER ||
        serve_message_len(m) - sizeof(a) != (writes ? a.count : 0))
        return EINVAL;
    int rc = writes ? serve_region_write(s, &a, m->payload + sizeof(a))
                    : serve_region_read(s, &a, r->payload + sizeof(a));
    if (rc == 0) {
        session_put(r, &a, sizeof(a));
        r->len += writes ? 0 : a.count;
    }
    return rc;
}

static int map_dma(struct serve_session *s, const struct serve_message *m, struct serve_reply *r)
{
    struct vfio_user_dma_map map;

    (void)r;
    if (!session_take(m, &map, sizeof(map)) || serve_message_len(m) != sizeof(map) || m->fds.n > 1)
        return EINVAL;
    return -serve_dma_map(s->t, &map, m->fds.n ? m->fds.fd[0] : -1, s->o->dma_maps);
}

/* SPDK sends the descriptor of the memory, which is closed with the message. */
static int unmap_dma(struct serve_session *s, const struct serve_message *m, struct serve_reply *r)
{
    struct vfio_user_dma_unmap unmap;

    if (!session_take(m, &unmap, sizeof(unmap)) || serve_message_len(m) != sizeof(unmap) ||
        m->fds.n > 1)
        return EINVAL;
    int rc = -serve_dma_unmap(s->t, &unmap);
    if (rc == 0)
        session_put(r, &unmap, sizeof(unmap));
    return rc;
}

/*
 * A reset leaves the configuration space unchanged, like a reset by the
 * kernel's VFIO.
 */
static int session_reset(struct serve_session *s, const struct serve_message *m,
                         struct serve_reply *r)
{
    (void)r;
    if (serve_message_len(m))
        return EINVAL;
    if (s->o->cfg.no_reset)
        return ENOTSUP;
    s->cut_off = false;
    return -s->t->ops->reset(s->t);
}

static const struct {
    const char *name;
    int (*handle)(struct serve_session *s, const struct serve_message *m, struct serve_reply *r);
    bool takes_fds;
} commands[] = {
    [VFIO_USER_VERSION] = {"VERSION", serve_version_agree, false},
    [VFIO_USER_DMA_MAP] = {"DMA_MAP", map_dma, true},
    [VFIO_USER_DMA_UNMAP] = {"DMA_UNMAP", unmap_dma, true},
    [VFIO_USER_DEVICE_GET_INFO] = {"DEVICE_GET_INFO", get_info, false},
    [VFIO_USER_DEVICE_GET_REGION_INFO] = {"DEVICE_GET_REGION_INFO", get_region_info, false},
    [VFIO_USER_DEVICE_GET_IRQ_INFO] = {"DEVICE_GET_IRQ_INFO", get_irq_info, false},
    [VFIO_USER_DEVICE_SET_IRQS] = {"DEVICE_SET_IRQS", set_irqs, true},
    [VFIO_USER_REGION_READ] = {"REGION_READ", access_region, false},
    [VFIO_USER_REGION_WRITE] = {"REGION_WRITE", access_region, false},
    [VFIO_USER_DEVICE_RESET] = {"DEVICE_RESET", session_reset, false},
};

static bool session_offered(uint16_t command)
{
    return command < sizeof(commands) / sizeof(commands[0]) && commands[command].handle;
}

static int dispatch(struct serve_session *s, const struct serve_message *m, struct serve_reply *r)
{
    uint16_t c = m->header.command;

    if ((m->header.flags & (VFIO_USER_TYPE_MASK | VFIO_USER_ERROR)) != VFIO_USER_TYPE_COMMAND)
        return EINVAL;
    if (!s->greeted && c != VFIO_USER_VERSION)
        return EINVAL;
    if (!session_offered(c))
        return ENOTSUP;
    if (m->fds.dropped || (m->fds.n && !commands[c].takes_fds))
        return EINVAL;
    return commands[c].handle(s, m, r);
}

/*
 * Returns true if the error is a mistake of the client. Requests for
 * unsupported features, and requests to a removed drive, are none.
 */
static bool is_mistake(int error)
{
    return error == EINVAL || error == EEXIST || error == ENOENT || error == EACCES;
}

bool serve_session_handle(struct serve_session *s, const struct serve_message *m,
                          struct serve_reply *r)
{
    uint16_t c = m->header.command;

    r->len = 0;
    r->fd = -1;
    r->error = dispatch(s, m, r);
    if (is_mistake(r->error))
        serve_mistake(s, "%s (command %u, %u bytes): %s",
                      session_offered(c) ? commands[c].name : "?", c, m->header.size,
                      strerror(r->error));
    return s->greeted;
}
