/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fuzz entry of the checks. The first byte chooses the kind of object, the next
 * two a bit, and the rest overwrites a valid object. The block is sealed again,
 * so that the checks after the checksum are reached. If a check accepts an
 * object, the file system can walk it without leaving the block or the device.
 * With the bit flipped, the check refuses the object and the bit is corrected.
 * A refusal has a reason.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/correct.h"
#include "tests/layout/objects.h"

#define CHOICE 3u /* bytes of the input before those of the object */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool holds, enum object_kind kind, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz_layout: %s: %s\n", object_name(kind), what);
    abort();
}

static bool is_inside(const union lay_block *o, const void *part, size_t len)
{
    const uint8_t *from = part;

    return from >= o->bytes + sizeof(o->head) && len <= LAY_BLOCK_SIZE &&
           from + len <= o->bytes + LAY_BLOCK_SIZE;
}

static void walk_names(enum object_kind kind, const union lay_block *o)
{
    const struct lay_dirent *d = NULL;
    uint64_t last = 0;

    while ((d = lay_dirent_next(&o->node, d))) {
        uint64_t key = lay_get64(d->key);
        expect(is_inside(o, d, sizeof(*d)) && is_inside(o, d->name, d->name_len), kind, "a name");
        expect(d->name_len > 0 && !memchr(d->name, '/', d->name_len), kind, "characters of a name");
        expect(key > last, kind, "the order of names");
        last = key;
    }
}

static void walk_values(enum object_kind kind, const union lay_block *o)
{
    const struct lay_xattr *x = NULL;

    while ((x = lay_xattr_next(&o->xattr, x))) {
        expect(is_inside(o, x, sizeof(*x)) && is_inside(o, lay_xattr_name(x), x->name_len) &&
                   is_inside(o, lay_xattr_value(x), lay_get32(x->value_len)),
               kind, "an attribute");
    }
}

static void walk_slots(enum object_kind kind, const union lay_block *o)
{
    struct lay_geometry geo = object_geometry();

    for (unsigned i = 0; i < LAY_MAP_SLOTS; i++) {
        uint64_t places[2];
        unsigned n = lay_slot_places(&o->map.slots[i], LAY_ADDR_CHUNK(i, 7), places);
        for (unsigned k = 0; k < n; k++)
            expect(places[k] < geo.blocks, kind, "a place outside of the device");
    }
}

static void walk(enum object_kind kind, const union lay_block *o)
{
    if (kind == OBJECT_DIR_LEAF)
        walk_names(kind, o);
    else if (kind == OBJECT_XATTR)
        walk_values(kind, o);
    else if (kind == OBJECT_MAP)
        walk_slots(kind, o);
}

/*
 * Checks that a flipped bit is refused, and corrected where a corrector exists:
 * the label and the multi-mount protection have none.
 */
static void flip(enum object_kind kind, union lay_block *o, unsigned bit)
{
    struct lay_geometry geo = object_geometry();
    union lay_block whole = *o;

    o->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    expect(object_check(kind, o, NULL) != 0, kind, "a flipped bit is accepted");
    int fixed = lay_correct(geo.uuid, object_addr(kind), o);
    expect(fixed < 0 || memcmp(o, &whole, sizeof(whole)) == 0, kind, "a flipped bit is lost");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *why = NULL;

    if (size < CHOICE || size > CHOICE + LAY_BLOCK_SIZE - sizeof(struct lay_head))
        return 0;
    enum object_kind kind = (enum object_kind)(data[0] % OBJECT_KINDS);
    /* On the heap, where a sanitizer sees a read past the end. */
    union lay_block *o = malloc(sizeof(*o));
    if (!o)
        return 0;
    object_make(kind, o);
    memcpy(o->bytes + sizeof(o->head), data + CHOICE, size - CHOICE);
    lay_seal(o, object_tid(kind));
    int err = object_check(kind, o, &why);
    expect(err == 0 || (why && *why), kind, "a refusal without a reason");
    if (err == 0) {
        walk(kind, o);
        flip(kind, o, (data[1] | (unsigned)data[2] << 8) % (8 * LAY_BLOCK_SIZE));
    }
    free(o);
    return 0;
}
