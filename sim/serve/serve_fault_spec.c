/* SPDX-License-Identifier: BSD-2-Clause */
/* Parses the faults on the command line of gpunvme-sim. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/nvme/nvme_spec.h"
#include "sim/serve/serve.h"
#include "support/number.h"

#define MS 1000000u /* nanoseconds */

static const struct {
    const char *name;
    enum sim_fault_kind kind;
} kinds[] = {
    {"status", SIM_FAULT_STATUS},   {"lose", SIM_FAULT_LOSE},     {"late", SIM_FAULT_LATE},
    {"fatal", SIM_FAULT_FATAL},     {"hang", SIM_FAULT_HANG},     {"remove", SIM_FAULT_REMOVE},
    {"corrupt", SIM_FAULT_CORRUPT}, {"repeat", SIM_FAULT_REPEAT},
};

static const struct {
    const char *name;
    uint8_t opcode;
    bool admin;
} opcodes[] = {
    {"flush", NVME_IO_FLUSH, false},
    {"write", NVME_IO_WRITE, false},
    {"read", NVME_IO_READ, false},
    {"write-zeroes", NVME_IO_WRITE_ZEROES, false},
    {"dsm", NVME_IO_DSM, false},
    {"delete-sq", NVME_ADMIN_DELETE_SQ, true},
    {"create-sq", NVME_ADMIN_CREATE_SQ, true},
    {"delete-cq", NVME_ADMIN_DELETE_CQ, true},
    {"create-cq", NVME_ADMIN_CREATE_CQ, true},
    {"identify", NVME_ADMIN_IDENTIFY, true},
    {"abort", NVME_ADMIN_ABORT, true},
    {"set-features", NVME_ADMIN_SET_FEATURES, true},
    {"get-features", NVME_ADMIN_GET_FEATURES, true},
};

static int parse_kind(const char *name, struct sim_fault *f)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(name, kinds[i].name) == 0) {
            f->kind = kinds[i].kind;
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_opcode(const char *text, struct sim_fault *f)
{
    uint64_t n;

    f->match_opcode = true;
    for (size_t i = 0; text && i < sizeof(opcodes) / sizeof(opcodes[0]); i++) {
        if (strcmp(text, opcodes[i].name) == 0) {
            f->opcode = opcodes[i].opcode;
            f->admin |= opcodes[i].admin;
            return 0;
        }
    }
    if (!text || !number_parse(text, 0, UINT8_MAX, &n))
        return -EINVAL;
    f->opcode = (uint8_t)n;
    return 0;
}

/* Parses FIRST or FIRST+COUNT. */
static int parse_lbas(char *text, struct sim_fault *f)
{
    char *plus = text ? strchr(text, '+') : NULL;

    if (plus)
        *plus = '\0';
    f->lbas = 1;
    if (!text || !number_parse(text, 0, UINT64_MAX / 2, &f->first_lba) ||
        (plus && !number_parse(plus + 1, 0, UINT64_MAX / 2, &f->lbas)))
        return -EINVAL;
    return f->lbas ? 0 : -EINVAL;
}

#define FIELD(f) offsetof(struct sim_fault, f), sizeof(((struct sim_fault *)0)->f)

/* Each key has a number up to `max` as its value. The field gets the number times `unit`. */
static const struct {
    const char *name;
    size_t offset, len; /* bytes in struct sim_fault */
    uint64_t max, unit;
} numbers[] = {
    {"qid", FIELD(qid), UINT16_MAX, 1},     {"skip", FIELD(skip), UINT32_MAX, 1},
    {"times", FIELD(times), UINT32_MAX, 1}, {"one-in", FIELD(one_in), UINT32_MAX, 1},
    {"status", FIELD(status), 0x7fff, 1},   {"ms", FIELD(delay_ns), UINT32_MAX, MS},
};

static bool is_key(const char *item, const char *key)
{
    size_t len = strcspn(item, "=");

    return strlen(key) == len && strncmp(item, key, len) == 0;
}

/* Parses KEY or KEY=VALUE. */
static int parse_item(char *item, struct sim_fault *f)
{
    char *equals = strchr(item, '='), *value = equals ? equals + 1 : NULL;
    uint64_t n;

    if (is_key(item, "op"))
        return parse_opcode(value, f);
    if (is_key(item, "lba"))
        return parse_lbas(value, f);
    if (is_key(item, "admin")) {
        f->admin = true;
        return value ? -EINVAL : 0;
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (!is_key(item, numbers[i].name))
            continue;
        if (!value || !number_parse(value, 0, numbers[i].max, &n))
            return -EINVAL;
        n *= numbers[i].unit;
        memcpy((char *)f + numbers[i].offset, &n, numbers[i].len); /* little-endian */
        return 0;
    }
    return -EINVAL;
}

/* Names the key that a rule of this kind lacks, or returns NULL. */
static const char *missing(const struct sim_fault *f)
{
    if (f->kind == SIM_FAULT_STATUS && !f->status)
        return "status needs status=0x..., for example status=0x281";
    if ((f->kind == SIM_FAULT_LATE || f->kind == SIM_FAULT_REPEAT) && !f->delay_ns)
        return "late and repeat need ms=MILLISECONDS";
    if (f->kind == SIM_FAULT_REPEAT && f->admin)
        return "repeat concerns I/O commands";
    if (f->admin && f->lbas)
        return "admin commands have no LBAs";
    return NULL;
}

int serve_fault_parse(const char *spec, struct sim_fault *out, struct reason *why)
{
    struct sim_fault f = {0};
    char *copy = strdup(spec), *rest = copy, *item;
    int rc = -EINVAL;

    if (!copy)
        return -ENOMEM;
    item = strsep(&rest, ",");
    if (parse_kind(item, &f) != 0) {
        reason_set(why, 0,
                   "'%s' is no fault: status, lose, late, repeat, fatal, hang, remove, corrupt",
                   item);
        goto out;
    }
    while (rest && *rest) {
        item = strsep(&rest, ",");
        if (parse_item(item, &f) != 0) {
            reason_set(why, 0, "'%s' is not possible there, see gpunvme-sim(1)", item);
            goto out;
        }
    }
    if (missing(&f)) {
        reason_set(why, 0, "%s", missing(&f));
        goto out;
    }
    *out = f;
    rc = 0;
out:
    free(copy);
    return rc;
}
