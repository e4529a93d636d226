/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fuzz target of READV: the input becomes a list and its arguments. A mount
 * with an executor and one without read the same file by it; the results must
 * be equal.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fusefs/daemon/daemon_rig.h"

#define FILE_BYTES   ((1u << 20) - 777)
#define BUFFER_BYTES (256u << 10)
#define LIST_PIECES  64u
#define PIECE_BYTES  12u /* of the input */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct side {
    struct rig *rig;
    struct rig_buffer buffer, list;
};

static void start(struct side *side, bool gpu_off)
{
    static unsigned char content[FILE_BYTES];
    struct rig_config config = {.gpu_off = gpu_off, .copied = gpu_off, .image_bytes = 32u << 20};
    uint32_t x = 1;

    for (size_t i = 0; i < FILE_BYTES; i++) {
        x = x * 1664525 + 1013904223;
        content[i] = (unsigned char)(x >> 24);
    }
    memset(content + (256u << 10), 0, 128u << 10); /* a hole */
    if (rig_open(&config, &side->rig) != 0 ||
        rig_write_file(side->rig, 0, content, 256u << 10) != 0 ||
        rig_write_file(side->rig, 384u << 10, content + (384u << 10), FILE_BYTES - (384u << 10)) !=
            0 ||
        rig_register(side->rig, BUFFER_BYTES, 0, &side->buffer) != 0 ||
        rig_register_list(side->rig, LIST_PIECES * sizeof(struct gpunvme_piece), 0, &side->list))
        abort();
}

static uint32_t word(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

/* Most pieces lie within file and buffer, some at the limits of 64 bits. */
static struct gpunvme_piece piece_of(const uint8_t *data)
{
    uint32_t offset = word(data), buffer = word(data + 4), len = word(data + 8);
    struct gpunvme_piece p = {offset & 0x1fffff, buffer & 0x3ffff, len & 0x1ffff, 1};

    if (offset >> 29 == 7)
        p.file_offset = UINT64_MAX - p.file_offset;
    if (offset >> 29 == 6)
        p.file_offset = (uint64_t)INT64_MAX - p.file_offset;
    if (buffer >> 29 == 7)
        p.buffer_offset = UINT64_MAX - p.buffer_offset;
    if (len >> 29 == 7)
        p.len = UINT32_MAX - p.len;
    return p;
}

/* The order of reads of pieces that share bytes of the buffer is undefined. */
static bool overlap(const struct gpunvme_piece *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        for (uint64_t k = 0; k < i; k++) {
            if (p[i].result > 0 && p[k].result > 0 &&
                p[i].buffer_offset < p[k].buffer_offset + (uint64_t)p[k].result &&
                p[k].buffer_offset < p[i].buffer_offset + (uint64_t)p[i].result)
                return true;
        }
    }
    return false;
}

static int run(struct side *side, const struct gpunvme_piece *list, struct gpunvme_ioc_readv *v)
{
    memset(side->buffer.data, 0x55, BUFFER_BYTES);
    memcpy(side->list.data, list, LIST_PIECES * sizeof(*list));
    v->id = side->buffer.id;
    v->key = side->buffer.key;
    v->list_id = side->list.id;
    v->list_key = side->list.key;
    return rig_readv(side->rig, 0, v);
}

static void compare(const struct side sides[2], const struct gpunvme_ioc_readv v[2])
{
    const struct gpunvme_piece *p = (const struct gpunvme_piece *)sides[0].list.data;
    uint64_t bytes = 0;

    if (memcmp(p, sides[1].list.data, LIST_PIECES * sizeof(*p)) != 0 || v[0].bytes != v[1].bytes)
        abort();
    for (uint64_t i = v[0].first; i < v[0].first + v[0].count; i++) {
        bytes += p[i].result > 0 ? (uint64_t)p[i].result : 0;
        if (p[i].result == 1 && p[i].len == 0)
            abort();
    }
    if (bytes != v[0].bytes)
        abort();
    if (!overlap(p + v[0].first, v[0].count) &&
        memcmp(sides[0].buffer.data, sides[1].buffer.data, BUFFER_BYTES) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct side sides[2];
    struct gpunvme_piece list[LIST_PIECES] = {{0}};
    struct gpunvme_ioc_readv v[2];
    int err[2];

    if (!sides[0].rig) {
        start(&sides[0], false);
        start(&sides[1], true);
    }
    if (size < 4)
        return 0;
    for (size_t i = 0; i < LIST_PIECES && 4 + (i + 1) * PIECE_BYTES <= size; i++)
        list[i] = piece_of(data + 4 + i * PIECE_BYTES);
    for (unsigned i = 0; i < 2; i++) {
        v[i] = (struct gpunvme_ioc_readv){.abi = {0}};
        v[i].first = data[0] == 0xff ? UINT64_MAX - data[1] : data[0] & (LIST_PIECES - 1);
        v[i].count = data[2] == 0xff ? UINT64_MAX - data[3] : data[2] & (LIST_PIECES - 1);
        err[i] = run(&sides[i], list, &v[i]);
    }
    if (err[0] != err[1])
        abort();
    if (!err[0])
        compare(sides, v);
    return 0;
}
