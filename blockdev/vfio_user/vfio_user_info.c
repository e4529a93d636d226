/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Parses the server's properties. The server is another process, so nothing is
 * trusted unchecked.
 */
#include <errno.h>
#include <json-c/json.h>
#include <limits.h>
#include <string.h>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/vfio_user/vfio_user_internal.h"

#define DOORBELLS ((uint64_t)NVME_REG_DOORBELLS)
/* Bytes for 65,536 queue pairs; the rest of a larger area is useless. */
#define DOORBELLS_MAX (1u << 20)
#define MAX_CAPS      16u

/*
 * Reads a capability of the server, or default_value if it is missing. Returns
 * false if it is not an integer of at least min.
 */
static bool info_number(const struct json_object *caps, const char *name, int64_t default_value,
                        int64_t min, int64_t *out)
{
    struct json_object *value;

    *out = default_value;
    if (!json_object_object_get_ex(caps, name, &value))
        return true;
    *out = json_object_get_int64(value);
    return json_object_is_type(value, json_type_int) && *out >= min;
}

static int take_caps(const struct json_object *root, unsigned *max_dma_maps, struct reason *why)
{
    int64_t fds, transfer, maps, pages;
    struct json_object *caps;

    if (!json_object_is_type(root, json_type_object))
        return reason_set(why, -EPROTO, "the capabilities of the server are no JSON object");
    if (!json_object_object_get_ex(root, "capabilities", &caps))
        caps = NULL;
    else if (!json_object_is_type(caps, json_type_object))
        return reason_set(why, -EPROTO, "the capabilities of the server are no JSON object");
    if (!info_number(caps, VFIO_USER_CAP_MAX_MSG_FDS, VFIO_USER_DEFAULT_MSG_FDS, 0, &fds) ||
        !info_number(caps, VFIO_USER_CAP_MAX_DATA_XFER_SIZE, VFIO_USER_DEFAULT_DATA_XFER_SIZE, 1,
                     &transfer) ||
        !info_number(caps, VFIO_USER_CAP_MAX_DMA_MAPS, VFIO_USER_DEFAULT_DMA_MAPS, 1, &maps) ||
        !info_number(caps, VFIO_USER_CAP_PGSIZES, VFIO_USER_DEFAULT_PGSIZES, 1, &pages))
        return reason_set(why, -EPROTO, "a capability of the server is no sensible number");
    if (fds < 1)
        return reason_set(why, -ENOTSUP,
                          "the server takes no descriptors, so that no memory "
                          "can be shared with it");
    if (transfer < 8)
        return reason_set(why, -ENOTSUP, "the server cannot transfer a 64-bit register");
    if ((pages & -pages) > NVME_PAGE_SIZE)
        return reason_set(why, -ENOTSUP, "the server cannot map pages of 4 KiB");
    *max_dma_maps = maps < UINT_MAX ? (unsigned)maps : UINT_MAX;
    return 0;
}

int vfio_user_parse_version(const void *payload, size_t len, unsigned *max_dma_maps,
                            struct reason *why)
{
    const char *text = (const char *)payload + sizeof(struct vfio_user_version);
    struct vfio_user_version v;
    struct json_tokener *tokener;
    struct json_object *root;
    int rc;

    if (len < sizeof(v))
        return reason_set(why, -EPROTO, "the answer to VERSION is too short");
    memcpy(&v, payload, sizeof(v));
    if (v.major != VFIO_USER_MAJOR || v.minor > VFIO_USER_MINOR)
        return reason_set(why, -EPROTO, "the server speaks version %u.%u, not %u.%u", v.major,
                          v.minor, VFIO_USER_MAJOR, VFIO_USER_MINOR);
    len = strnlen(text, len - sizeof(v));
    *max_dma_maps = VFIO_USER_DEFAULT_DMA_MAPS;
    if (len == 0)
        return 0;
    tokener = json_tokener_new();
    if (!tokener)
        return reason_set(why, -ENOMEM, "out of memory");
    root = json_tokener_parse_ex(tokener, text, (int)len);
    if (json_tokener_get_error(tokener) == json_tokener_success)
        rc = take_caps(root, max_dma_maps, why);
    else
        rc = reason_set(why, -EPROTO, "the capabilities of the server are no JSON");
    json_object_put(root);
    json_tokener_free(tokener);
    return rc;
}

int vfio_user_parse_device(const void *payload, size_t len, bool *can_reset, struct reason *why)
{
    struct vfio_user_device_info info;

    if (len < sizeof(info))
        return reason_set(why, -EPROTO, "the answer to DEVICE_GET_INFO is too short");
    memcpy(&info, payload, sizeof(info));
    if (!(info.flags & VFIO_DEVICE_FLAGS_PCI))
        return reason_set(why, -ENOTSUP, "the device of the server is no PCI device");
    if (info.num_regions <= VFIO_PCI_CONFIG_REGION_INDEX)
        return reason_set(why, -ENOTSUP, "the device of the server has no configuration space");
    *can_reset = info.flags & VFIO_DEVICE_FLAGS_RESET;
    return 0;
}

static bool areas_overlap(const struct vfio_region_sparse_mmap_area *a,
                          const struct vfio_region_sparse_mmap_area *b)
{
    return a->offset < b->offset + b->size && b->offset < a->offset + a->size;
}

static int add_area(struct vfio_user_region *r, const struct vfio_region_sparse_mmap_area *area,
                    struct reason *why)
{
    if (area->size == 0 || area->offset > r->size || area->size > r->size - area->offset)
        return reason_set(why, -EPROTO, "a mappable area is not inside its region");
    for (unsigned i = 0; i < r->n_areas; i++)
        if (areas_overlap(&r->areas[i], area))
            return reason_set(why, -EPROTO, "mappable areas of a region overlap");
    if (r->n_areas == VFIO_USER_MAX_AREAS)
        return reason_set(why, -ENOTSUP, "a region has over %u mappable areas",
                          VFIO_USER_MAX_AREAS);
    r->areas[r->n_areas++] = *area;
    return 0;
}

/* The capability lies at `at`, with its header in the reply. */
static int take_sparse(const unsigned char *reply, size_t len, size_t at,
                       struct vfio_user_region *r, struct reason *why)
{
    struct vfio_region_info_cap_sparse_mmap head;
    struct vfio_region_sparse_mmap_area area;

    if (len - at < sizeof(head))
        return reason_set(why, -EPROTO, "a capability of a region is cut off");
    memcpy(&head, reply + at, sizeof(head));
    at += sizeof(head);
    if (head.header.version != 1 || head.nr_areas > (len - at) / sizeof(area))
        return reason_set(why, -EPROTO, "the list of mappable areas cannot be");
    for (uint32_t i = 0; i < head.nr_areas; i++, at += sizeof(area)) {
        memcpy(&area, reply + at, sizeof(area));
        int rc = add_area(r, &area, why);
        if (rc)
            return rc;
    }
    return 0;
}

/* Walks the list of capabilities, which may be a loop. */
static int take_region_caps(const unsigned char *reply, size_t len, size_t at,
                            struct vfio_user_region *r, bool *sparse, struct reason *why)
{
    for (unsigned n = 0; at; n++) {
        struct vfio_info_cap_header h;

        if (at < sizeof(struct vfio_region_info) || at > len - sizeof(h) || n == MAX_CAPS)
            return reason_set(why, -EPROTO, "the capabilities of a region lead nowhere");
        memcpy(&h, reply + at, sizeof(h));
        if (h.id == VFIO_REGION_INFO_CAP_SPARSE_MMAP) {
            int rc = take_sparse(reply, len, at, r, why);
            if (rc)
                return rc;
            *sparse = true;
        }
        at = h.next;
    }
    return 0;
}

int vfio_user_parse_region(const void *payload, size_t len, uint32_t index,
                           struct vfio_user_region *out, struct reason *why)
{
    struct vfio_region_info info;
    bool sparse = false;
    int rc = 0;

    if (len < sizeof(info))
        return reason_set(why, -EPROTO, "the answer to DEVICE_GET_REGION_INFO is too short");
    memcpy(&info, payload, sizeof(info));
    if (info.index != index)
        return reason_set(why, -EPROTO, "the server describes region %u instead of %u", info.index,
                          index);
    if (info.argsz > VFIO_USER_MAX_REPLY)
        return reason_set(why, -ENOTSUP, "the description of region %u takes %u bytes", index,
                          info.argsz);
    if (!(info.flags & VFIO_REGION_INFO_FLAG_READ) || !(info.flags & VFIO_REGION_INFO_FLAG_WRITE))
        return reason_set(why, -ENOTSUP, "region %u cannot be read and written", index);
    *out = (struct vfio_user_region){.size = info.size, .offset = info.offset};
    if (!(info.flags & VFIO_REGION_INFO_FLAG_MMAP))
        return 0;
    if (info.flags & VFIO_REGION_INFO_FLAG_CAPS)
        rc = take_region_caps(payload, len, info.cap_offset, out, &sparse, why);
    if (rc == 0 && !sparse && info.size)
        rc = add_area(out, &(struct vfio_region_sparse_mmap_area){.size = info.size}, why);
    return rc;
}

int vfio_user_find_doorbells(const struct vfio_user_region *bar0, struct vfio_user_doorbells *out,
                             struct reason *why)
{
    for (unsigned i = 0; i < bar0->n_areas; i++) {
        const struct vfio_region_sparse_mmap_area *a = &bar0->areas[i];
        uint64_t len = a->offset + a->size - DOORBELLS;

        if (a->offset > DOORBELLS || a->offset + a->size < DOORBELLS + NVME_PAGE_SIZE)
            continue;
        if (bar0->offset % NVME_PAGE_SIZE || bar0->offset > INT64_MAX - DOORBELLS - DOORBELLS_MAX)
            return reason_set(why, -EPROTO,
                              "the doorbells lie at no page of the file that the "
                              "server offers");
        out->area = i;
        out->file_offset = bar0->offset + DOORBELLS;
        out->len = len < DOORBELLS_MAX ? len & ~(uint64_t)(NVME_PAGE_SIZE - 1) : DOORBELLS_MAX;
        return 0;
    }
    return reason_set(why, -ENOTSUP,
                      "the server offers no doorbells that can be mapped: it "
                      "must share the page at 0x1000 of BAR0");
}
