/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fuzz entry of the checks: the first byte chooses the kind of object, the rest is written over a
 * sound one. The block is sealed again, so that the checks behind the checksum are reached, and an
 * object that a check accepts is walked, as the file system would.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/layout/objects.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Keeps the compiler from removing a walk whose result is not read. */
static uint64_t sum_bytes(const void *data, size_t len)
{
    const uint8_t *b = data;
    uint64_t sum = 0;

    for (size_t i = 0; i < len; i++)
        sum += b[i];
    return sum;
}

static uint64_t walk(enum object_kind kind, const union lay_block *o)
{
    uint64_t sum = 0;

    if (kind == OBJECT_DIR_LEAF) {
        const struct lay_dirent *d = NULL;
        while ((d = lay_dirent_next(&o->node, d)))
            sum += sum_bytes(d->name, d->name_len);
    } else if (kind == OBJECT_XATTR) {
        const struct lay_xattr *x = NULL;
        while ((x = lay_xattr_next(&o->xattr, x))) {
            sum += sum_bytes(lay_xattr_name(x), x->name_len);
            sum += sum_bytes(lay_xattr_value(x), lay_get32(x->value_len));
        }
    } else if (kind == OBJECT_MAP) {
        uint64_t places[2];
        for (unsigned i = 0; i < LAY_MAP_SLOTS; i++)
            sum += lay_slot_places(&o->map.slots[i], LAY_ADDR_CHUNK(i, 7), places);
    } else if (kind == OBJECT_DESC) {
        sum += lay_log_chain(0, o);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lay_geometry geo;
    volatile uint64_t sink = 0;

    if (size < 1 || size > 1 + LAY_BLOCK_SIZE - sizeof(struct lay_head))
        return 0;
    enum object_kind kind = (enum object_kind)(data[0] % OBJECT_KINDS);
    /* On the heap, where a sanitizer sees a read past the end. */
    union lay_block *o = malloc(sizeof(*o));
    if (!o)
        return 0;
    object_geometry(&geo);
    object_make(kind, o);
    memcpy(o->bytes + sizeof(o->head), data + 1, size - 1);
    lay_seal(o, object_tid(kind));
    if (object_check(kind, o, NULL) == 0)
        sink = walk(kind, o);
    (void)sink;
    free(o);
    return 0;
}
