/* SPDX-License-Identifier: BSD-2-Clause */
/* Judges extended attributes whose values are in parts (FORMAT.md 8.2). */
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"

#define LARGE_PARTS 32u

/* Describes the record of the head or of a part of a large value. */
struct large_part {
    uint8_t name_len; /* without the bytes before it */
    bool head;
    uint8_t number; /* of a part */
    bool broken;    /* set by fsck_judge_parts() */
    uint32_t len;   /* of a part, or with `head` of the whole value; UINT32_MAX if not valid */
    uint8_t name[LAY_XATTR_NAME_MAX];
};

/* Fills *out. Returns false if the record is that of an ordinary value. */
static bool large_parse(const struct lay_xattr *x, struct large_part *out)
{
    const uint8_t *name = (const uint8_t *)lay_xattr_name(x);
    bool head = name[0] == LAY_XATTR_HEAD;
    unsigned before = head ? 1 : 2;
    le32 len;

    if (!head && name[0] != LAY_XATTR_PART)
        return false;
    memset(out, 0, sizeof(*out));
    out->head = head;
    out->len = lay_get32(x->value_len);
    out->number = !head && x->name_len > 1 ? (uint8_t)(name[1] - LAY_XATTR_PART_BASE) : 0;
    out->name_len = (uint8_t)(x->name_len > before ? x->name_len - before : 0);
    memcpy(out->name, name + before, out->name_len);
    if (head && out->len == sizeof(len)) {
        memcpy(&len, name + x->name_len, sizeof(len));
        out->len = lay_get32(len);
    } else if (head) {
        out->len = UINT32_MAX;
    }
    return true;
}

static int large_compare_names(const struct large_part *a, const struct large_part *b)
{
    return a->name_len != b->name_len ? a->name_len - b->name_len
                                      : memcmp(a->name, b->name, a->name_len);
}

/* Orders by name; the head comes before the parts. */
static int large_compare(const void *x, const void *y)
{
    const struct large_part *a = x, *b = y;
    int by_name = large_compare_names(a, b);

    if (by_name)
        return by_name;
    return a->head != b->head ? b->head - a->head : a->number - b->number;
}

int fsck_add_part(struct fsck_list *parts, const struct lay_xattr *x)
{
    struct large_part part;

    return large_parse(x, &part) ? fsck_append(parts, &part, sizeof(part)) : 0;
}

/* Returns true if the n records are the head of a value and all of its parts. */
static bool large_is_whole(const struct large_part *p, size_t n)
{
    uint32_t each = (LAY_PAYLOAD - sizeof(struct lay_xattr) - p->name_len - 2u) & ~7u;

    if (!p->head || p->name_len == 0 || p->name_len + 2u > LAY_XATTR_NAME_MAX ||
        p->len > each * LARGE_PARTS || n - 1 != (p->len + each - 1) / each)
        return false;
    for (size_t i = 1; i < n; i++) {
        uint32_t left = p->len - (uint32_t)(i - 1) * each;
        if (p[i].head || p[i].number != i - 1 || p[i].len != (left < each ? left : each))
            return false;
    }
    return true;
}

size_t fsck_judge_parts(struct fsck_list *parts)
{
    struct large_part *p = parts->items;
    size_t broken = 0, n;

    if (parts->count > 0)
        qsort(p, parts->count, sizeof(*p), large_compare);
    for (size_t first = 0; first < parts->count; first += n) {
        n = 1;
        while (first + n < parts->count && large_compare_names(&p[first], &p[first + n]) == 0)
            n++;
        bool bad = !large_is_whole(&p[first], n);
        for (size_t i = first; i < first + n; i++)
            p[i].broken = bad;
        broken += bad;
    }
    return broken;
}

bool fsck_part_is_broken(const struct fsck_list *parts, const struct lay_xattr *x)
{
    struct large_part part;
    const struct large_part *found =
        parts->count > 0 && large_parse(x, &part)
            ? bsearch(&part, parts->items, parts->count, sizeof(part), large_compare)
            : NULL;

    return found && found->broken;
}
