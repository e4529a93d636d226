/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fuzz entry of the vfio-user client: a whole conversation, opening to closing, with a server whose
 * good answers the input changes. All answers lie in the socket before the client asks, so nothing
 * ever waits.
 *
 * The input is a list of changes: message (with 0x80: of how many descriptors), then offset (two
 * bytes), length, and the bytes to put there. A message grows as needed, and says so in its header,
 * which a change of its bytes 4 to 7 overrides.
 */
#include <nvme/types.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/vfio_user/vfio_user_internal.h"
#include "support/fd_message.h"

#define MESSAGES  13u
#define MAX_BYTES 6144u
#define MAX_FDS   10u
#define BAR0      0x4000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Conversations that came to a map, for a test to see that they are not all cut short. */
extern unsigned fuzz_vfio_user_maps;
unsigned fuzz_vfio_user_maps;

struct answer {
    unsigned char bytes[MAX_BYTES];
    size_t len;
    unsigned fds;
    bool sized; /* the input has chosen the size in the header */
};

static void add(struct answer *a, const void *bytes, size_t len)
{
    memcpy(a->bytes + a->len, bytes, len);
    a->len += len;
}

/* The head of message i, whose id counts from 1. */
static struct answer *begin(struct answer *all, unsigned i, uint16_t command)
{
    struct vfio_user_header h = {
        .id = (uint16_t)(i + 1), .command = command, .flags = VFIO_USER_TYPE_REPLY};

    all[i] = (struct answer){.len = 0};
    add(&all[i], &h, sizeof(h));
    return &all[i];
}

static void region_access(struct answer *all, unsigned i, uint16_t command, const void *data,
                          uint32_t count)
{
    struct vfio_user_region_access a = {.count = count};

    add(begin(all, i, command), &a, sizeof(a));
    if (command == VFIO_USER_REGION_READ)
        add(&all[i], data, count);
}

static void region(struct answer *all, unsigned i, uint32_t index, uint64_t bytes)
{
    const struct vfio_region_info_cap_sparse_mmap head = {
        .header = {.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP, .version = 1}, .nr_areas = 1};
    const struct vfio_region_sparse_mmap_area area = {.offset = NVME_REG_DOORBELLS,
                                                      .size = NVME_PAGE_SIZE};
    struct vfio_region_info info = {.argsz = sizeof(info) + sizeof(head) + sizeof(area),
                                    .flags =
                                        VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
                                    .index = index,
                                    .cap_offset = sizeof(info),
                                    .size = bytes};

    if (index == VFIO_PCI_BAR0_REGION_INDEX)
        info.flags |= VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS;
    add(begin(all, i, VFIO_USER_DEVICE_GET_REGION_INFO), &info, sizeof(info));
    add(&all[i], &head, sizeof(head));
    add(&all[i], &area, sizeof(area));
}

static void good_answers(struct answer *all)
{
    static const char caps[] = "{\"capabilities\":{\"max_msg_fds\":8,\"max_dma_maps\":16}}";
    const struct vfio_user_version v = {.major = VFIO_USER_MAJOR, .minor = VFIO_USER_MINOR};
    const struct vfio_user_device_info device = {
        .argsz = sizeof(device), .flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET, 9, 5};
    const struct vfio_user_dma_unmap unmap = {.argsz = sizeof(unmap)};
    const uint32_t ids = 0x00101b36, class_rev = 0x01080200, zero = 0;
    unsigned i = 0;

    add(begin(all, i, VFIO_USER_VERSION), &v, sizeof(v));
    add(&all[i++], caps, sizeof(caps));
    add(begin(all, i++, VFIO_USER_DEVICE_GET_INFO), &device, sizeof(device));
    region(all, i++, VFIO_PCI_CONFIG_REGION_INDEX, 256);
    region_access(all, i++, VFIO_USER_REGION_READ, &ids, sizeof(ids));
    region_access(all, i++, VFIO_USER_REGION_READ, &class_rev, sizeof(class_rev));
    region_access(all, i++, VFIO_USER_REGION_WRITE, NULL, 2);
    region(all, i, VFIO_PCI_BAR0_REGION_INDEX, BAR0);
    all[i++].fds = 1;
    region_access(all, i++, VFIO_USER_REGION_READ, &zero, sizeof(zero));
    begin(all, i++, VFIO_USER_DMA_MAP);
    add(begin(all, i++, VFIO_USER_DMA_UNMAP), &unmap, sizeof(unmap));
    begin(all, i++, VFIO_USER_DEVICE_RESET);
    region_access(all, i++, VFIO_USER_REGION_WRITE, NULL, 2);
    region_access(all, i++, VFIO_USER_REGION_READ, &zero, sizeof(zero));
}

/* Takes one change off the input; false at its end. */
static bool change(struct answer *all, const uint8_t **data, size_t *size)
{
    const uint8_t *d = *data;

    if (*size < 4)
        return false;
    struct answer *a = &all[(d[0] & 0x7f) % MESSAGES];
    size_t offset = (d[1] | d[2] << 8) % MAX_BYTES, len = d[3];
    if (len > *size - 4)
        len = *size - 4;
    if (len > MAX_BYTES - offset)
        len = MAX_BYTES - offset;
    if (d[0] & 0x80)
        a->fds = d[1] % (MAX_FDS + 1);
    else if (len) {
        memcpy(a->bytes + offset, d + 4, len);
        a->sized |= offset < 8 && offset + len > 4;
        a->len = a->len > offset + len ? a->len : offset + len;
    }
    *data += 4 + len;
    *size -= 4 + len;
    return true;
}

static void send_answer(int socket, const struct answer *a, int file)
{
    int fds[MAX_FDS];

    for (unsigned i = 0; i < a->fds; i++)
        fds[i] = file;
    if (fd_message_send(socket, a->bytes, a->len, fds, a->fds, MSG_DONTWAIT) < 0)
        return;
}

/* Whatever a transport can be asked. */
static void use(struct nvme_transport *t, int file)
{
    struct nvme_mem mem = {.len = NVME_PAGE_SIZE, .fd = file};
    uint64_t iova = 0;

    t->ops->read(t, NVME_REG_CSTS, 4);
    mem.addr = mmap(NULL, mem.len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mem.addr == MAP_FAILED)
        abort();
    if (t->ops->map(t, &mem, &iova) == 0) {
        fuzz_vfio_user_maps++;
        t->ops->unmap(t, iova);
    }
    t->ops->reset(t);
    for (size_t i = 0; i < t->doorbells_len / sizeof(uint32_t); i++)
        t->doorbells[i] = 1;
    munmap(mem.addr, mem.len);
    t->ops->close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct answer answers[MESSAGES];
    struct reason why;
    struct nvme_transport *t;
    int pair[2], file = memfd_create("bar0", MFD_CLOEXEC);

    if (file < 0 || ftruncate(file, BAR0) ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        abort();
    good_answers(answers);
    while (change(answers, &data, &size)) {
    }
    for (unsigned i = 0; i < MESSAGES; i++) {
        uint32_t bytes = (uint32_t)answers[i].len;

        if (!answers[i].sized)
            memcpy(answers[i].bytes + offsetof(struct vfio_user_header, size), &bytes, 4);
        send_answer(pair[1], &answers[i], file);
    }
    shutdown(pair[1], SHUT_WR);
    if (vfio_user_start(pair[0], 10000, &t, &why) == 0)
        use(t, file);
    else if (!memchr(why.text, 0, sizeof(why.text)) || !why.text[0])
        abort();
    close(pair[1]);
    close(file);
    return 0;
}
