/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Defines the wire format of vfio-user: the messages between a client and a
 * server of a device in another process, over a UNIX stream socket. The
 * transport (vfio_user.h) and the test server share this header.
 *
 * Names in quotes are sections of the vfio-user protocol specification (QEMU's
 * docs/interop/vfio-user.rst); the version number on the wire is 0.1. Flags and
 * indexes that vfio-user shares with the kernel's VFIO keep their names in
 * <linux/vfio.h> (VFIO_DEVICE_FLAGS_*, VFIO_REGION_INFO_FLAG_*,
 * VFIO_PCI_*_INDEX, ...).
 *
 * A message is a header and a payload; descriptors travel with it as
 * SCM_RIGHTS. Every command is answered by a reply with the same id and
 * command, unless VFIO_USER_NO_REPLY is set. Numbers are in the byte order of
 * the host. Each struct has its size on the wire and no holes.
 */
#ifndef BLOCKDEV_VFIO_USER_VFIO_USER_SPEC_H
#define BLOCKDEV_VFIO_USER_VFIO_USER_SPEC_H

#include <assert.h>
#include <linux/vfio.h>
#include <stddef.h>
#include <stdint.h>

#define VFIO_USER_MAJOR 0
#define VFIO_USER_MINOR 1

/* "Commands". A reserved or unknown command is answered with an error. */
enum vfio_user_command {
    VFIO_USER_VERSION = 1,
    VFIO_USER_DMA_MAP = 2,
    VFIO_USER_DMA_UNMAP = 3,
    VFIO_USER_DEVICE_GET_INFO = 4,
    VFIO_USER_DEVICE_GET_REGION_INFO = 5,
    VFIO_USER_DEVICE_GET_REGION_IO_FDS = 6,
    VFIO_USER_DEVICE_GET_IRQ_INFO = 7,
    VFIO_USER_DEVICE_SET_IRQS = 8,
    VFIO_USER_REGION_READ = 9,
    VFIO_USER_REGION_WRITE = 10,
    VFIO_USER_DMA_READ = 11,  /* sent by the server, like the next one */
    VFIO_USER_DMA_WRITE = 12, /* only for memory mapped without a descriptor */
    VFIO_USER_DEVICE_RESET = 13,
    VFIO_USER_DIRTY_PAGES = 14,
};

/* "Header": precedes every command and every reply. */
struct vfio_user_header {
    uint16_t id; /* chosen by the sender; a reply repeats it */
    uint16_t command;
    uint32_t size;  /* bytes of the whole message including this header */
    uint32_t flags; /* VFIO_USER_TYPE_MASK, VFIO_USER_NO_REPLY, VFIO_USER_ERROR */
    uint32_t error; /* an errno in a reply with VFIO_USER_ERROR; may be 0 even then */
};
static_assert(sizeof(struct vfio_user_header) == 16, "header is 16 bytes");
static_assert(offsetof(struct vfio_user_header, size) == 4, "size at byte 4");
static_assert(offsetof(struct vfio_user_header, error) == 12, "error at byte 12");

#define VFIO_USER_TYPE_MASK    0xfu
#define VFIO_USER_TYPE_COMMAND 0x0u
#define VFIO_USER_TYPE_REPLY   0x1u
#define VFIO_USER_NO_REPLY     0x10u
#define VFIO_USER_ERROR        0x20u /* the reply is only a header */

/*
 * VFIO_USER_VERSION is the first message of a connection. A NUL-terminated JSON
 * text may follow: {"capabilities": {"max_msg_fds": 8, "max_data_xfer_size":
 * 1048576, ...}}; all members are optional. The reply has the same major
 * number, and a minor number no higher than the proposed one.
 */
struct vfio_user_version {
    uint16_t major;
    uint16_t minor;
};
static_assert(sizeof(struct vfio_user_version) == 4, "version is 4 bytes");

/* Names in the JSON text, and their default values. */
#define VFIO_USER_CAP_MAX_MSG_FDS        "max_msg_fds"
#define VFIO_USER_CAP_MAX_DATA_XFER_SIZE "max_data_xfer_size"
#define VFIO_USER_CAP_MAX_DMA_MAPS       "max_dma_maps"
#define VFIO_USER_CAP_PGSIZES            "pgsizes"
#define VFIO_USER_DEFAULT_MSG_FDS        1
#define VFIO_USER_DEFAULT_DATA_XFER_SIZE 1048576u
/*
 * The protocol's default is 65,535. Servers on libvfio-user (SPDK, QEMU) do not
 * report it and keep 64.
 */
#define VFIO_USER_DEFAULT_DMA_MAPS 64
#define VFIO_USER_DEFAULT_PGSIZES  4096

/*
 * VFIO_USER_DMA_MAP has one descriptor if the memory can be mapped. The reply
 * has no payload.
 */
struct vfio_user_dma_map {
    uint32_t argsz;  /* size of this struct */
    uint32_t flags;  /* VFIO_USER_DMA_READ_ALLOWED, VFIO_USER_DMA_WRITE_ALLOWED */
    uint64_t offset; /* offset in the descriptor's file */
    uint64_t addr;   /* the IOVA */
    uint64_t size;   /* bytes */
};
static_assert(sizeof(struct vfio_user_dma_map) == 32, "DMA map is 32 bytes");
static_assert(offsetof(struct vfio_user_dma_map, addr) == 16, "address at byte 16");

#define VFIO_USER_DMA_READ_ALLOWED  0x1u /* the device may read the memory */
#define VFIO_USER_DMA_WRITE_ALLOWED 0x2u /* the device may write it */

/*
 * VFIO_USER_DMA_UNMAP has address and size of one earlier map. The reply
 * repeats the struct; it is sent when the device can no longer reach the
 * memory.
 */
struct vfio_user_dma_unmap {
    uint32_t argsz; /* maximum payload of the reply */
    uint32_t flags; /* VFIO_DMA_UNMAP_FLAG_ALL: address and size are 0 */
    uint64_t addr;
    uint64_t size;
};
static_assert(sizeof(struct vfio_user_dma_unmap) == 24, "DMA unmap is 24 bytes");
static_assert(offsetof(struct vfio_user_dma_unmap, addr) == 8, "address at byte 8");

/* VFIO_USER_DEVICE_GET_INFO: command and reply. */
struct vfio_user_device_info {
    uint32_t argsz; /* command: maximum payload of the reply; reply: size of the full payload */
    uint32_t flags; /* VFIO_DEVICE_FLAGS_RESET, VFIO_DEVICE_FLAGS_PCI */
    uint32_t num_regions;
    uint32_t num_irqs;
};
static_assert(sizeof(struct vfio_user_device_info) == 16, "device info is 16 bytes");

/*
 * These messages have the structs of the kernel's VFIO:
 * - VFIO_USER_DEVICE_GET_REGION_INFO: struct vfio_region_info, as command and
 *   reply. A region that can be mapped comes with its descriptor; `offset` is that
 *   of the region in the file. With VFIO_REGION_INFO_FLAG_CAPS, capabilities
 *   follow at cap_offset (from the start of the struct) if the command's argsz has
 *   room for them. The only one used is vfio_region_info_cap_sparse_mmap, version
 *   1; offsets of its areas are in the region.
 * - VFIO_USER_DEVICE_GET_IRQ_INFO: struct vfio_irq_info, as command and reply.
 * - VFIO_USER_DEVICE_SET_IRQS: struct vfio_irq_set, whose argsz includes the data.
 *   count bytes follow with VFIO_IRQ_SET_DATA_BOOL. With VFIO_IRQ_SET_DATA_EVENTFD
 *   descriptors are attached; none removes the interrupts. The reply has no
 *   payload.
 */
static_assert(sizeof(struct vfio_region_info) == 32, "region info is 32 bytes");
static_assert(offsetof(struct vfio_region_info, size) == 16, "size at byte 16");
static_assert(sizeof(struct vfio_info_cap_header) == 8, "capability header is 8 bytes");
static_assert(sizeof(struct vfio_region_info_cap_sparse_mmap) == 16, "its areas follow");
static_assert(sizeof(struct vfio_region_sparse_mmap_area) == 16, "sparse area is 16 bytes");
static_assert(sizeof(struct vfio_irq_info) == 16, "IRQ info is 16 bytes");
static_assert(sizeof(struct vfio_irq_set) == 20, "IRQ set is 20 bytes");

/*
 * VFIO_USER_REGION_READ and _WRITE: a write's command and a read's reply carry
 * count bytes after this struct. count is at most the peer's
 * max_data_xfer_size.
 */
struct vfio_user_region_access {
    uint64_t offset;
    uint32_t region; /* VFIO_PCI_*_REGION_INDEX */
    uint32_t count;
};
static_assert(sizeof(struct vfio_user_region_access) == 16, "region access is 16 bytes");
static_assert(offsetof(struct vfio_user_region_access, count) == 12, "count at byte 12");

#endif
