/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks the label and the block of multi-mount protection, and reads, judges
 * and writes labels and superblocks (FORMAT.md 4).
 */
#include <errno.h>
#include <string.h>

#include "layout/check.h"
#include "layout/correct.h"
#include "layout/label.h"
#include "layout/layout.h"

/* Returns the number of bytes that follow a UTF-8 lead byte, or -1 for another byte. */
static int utf8_tail(uint8_t lead)
{
    if (lead < 0x80)
        return 0;
    if (lead >= 0xc2 && lead < 0xe0)
        return 1;
    if (lead >= 0xe0 && lead < 0xf0)
        return 2;
    return lead >= 0xf0 && lead < 0xf5 ? 3 : -1;
}

/* Returns false if the two bytes begin an overlong form, a surrogate, or a code past U+10FFFF. */
static bool utf8_second_ok(uint8_t lead, uint8_t second)
{
    uint8_t lo = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t hi = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;

    return second >= lo && second <= hi;
}

bool lay_text_ok(const char *text, size_t len)
{
    const uint8_t *s = (const uint8_t *)text;

    for (size_t i = 0; i < len; i++) {
        int tail = utf8_tail(s[i]);
        if (s[i] < 0x20 || s[i] == 0x7f || tail < 0 || (size_t)tail > len - i - 1)
            return false;
        if (tail > 0 && !utf8_second_ok(s[i], s[i + 1]))
            return false;
        for (int k = 2; k <= tail; k++) {
            if ((s[i + (size_t)k] & 0xc0) != 0x80)
                return false;
        }
        i += (size_t)tail;
    }
    return true;
}

bool lay_label_ok(const char *label, size_t len)
{
    return len <= LAY_LABEL_MAX && lay_text_ok(label, len);
}

bool lay_label_magic(const void *block)
{
    const struct lay_head *head = block;

    return __builtin_popcount(lay_get32(head->magic) ^ LAY_MAGIC_LABEL) <= 1;
}

static int label_bad_version(const char **why, const char *what)
{
    lay_bad(why, what);
    return -ENOTSUP;
}

/* Another version may define the other fields differently. */
static int label_version(const struct lay_label *l, uint64_t *features, const char **why)
{
    uint64_t unknown = lay_get64(l->incompat) & ~LAY_FEATURE_INCOMPAT;
    unsigned major = lay_get16(l->version_major);

    if (major < LAY_VERSION_MAJOR)
        return label_bad_version(why, "has an older format, which only older releases read: mount "
                                      "it with one of them and copy its files");
    if (major > LAY_VERSION_MAJOR)
        return label_bad_version(why, "has a newer format, use a newer release");
    *features = unknown;
    if (unknown)
        return label_bad_version(why, "has unknown features, use a newer release");
    if ((lay_get64(l->incompat) & LAY_INCOMPAT_DRAFT) &&
        lay_get16(l->version_minor) != LAY_VERSION_MINOR)
        return label_bad_version(why, "was made by another development build, use that one");
    return 0;
}

static bool label_text_ok(const char *label)
{
    size_t len = strnlen(label, LAY_LABEL_MAX + 1);

    return lay_label_ok(label, len) && lay_is_zero(label + len, LAY_LABEL_MAX + 1 - len);
}

static int label_members(const struct lay_label *l, const char **why)
{
    const struct lay_member *m = &l->members[0];
    uint64_t blocks = lay_get64(m->blocks);
    uint32_t lba = lay_get32(m->lba_size);

    if (blocks < LAY_MIN_BLOCKS || blocks > LAY_MAX_BLOCKS)
        return lay_bad(why, "members: blocks");
    if (lba != 512 && lba != LAY_BLOCK_SIZE)
        return lay_bad(why, "members: lba_size");
    if (lay_get16(m->state) != LAY_MEMBER_LIVE || lay_get16(m->flags) != 0 ||
        !lay_is_zero(&m->maybe, sizeof(m->maybe)))
        return lay_bad(why, "members: state");
    if (lay_get64(m->seen.counter) >= lay_get64(l->incarnation.counter))
        return lay_bad(why, "members: seen");
    size_t others = sizeof(l->members) - sizeof(l->members[0]);
    return lay_is_zero(&l->members[1], others) ? 0 : lay_bad(why, "members");
}

/* Returns true if the places of the logs are valid. Removes the logs from *geo. */
static bool label_logs_ok(const struct lay_label *l, struct lay_geometry *geo)
{
    uint64_t first = lay_get64(l->logs[0]), second = lay_get64(l->logs[1]);
    uint64_t len = lay_get64(l->log_blocks);

    geo->log_blocks = geo->log_copy = 0;
    if (!lay_range_ok(geo, first, len))
        return false;
    if (!(geo->incompat & LAY_INCOMPAT_TWO_LOGS))
        return second == LAY_NONE;
    geo->log_blocks = len;
    bool ok = lay_range_ok(geo, second, len);
    geo->log_blocks = 0;
    return ok;
}

/* Checks the logs and the two places of the superblock. */
static int label_check_places(const struct lay_label *l, const char **why)
{
    uint64_t blocks = lay_get64(l->members[0].blocks), len = lay_get64(l->log_blocks);
    struct lay_geometry geo;

    if (len < LAY_MIN_LOG || len > LAY_MAX_LOG)
        return lay_bad(why, "log_blocks");
    lay_label_geometry(l, &geo);
    /* Each place is removed from the geometry before it is checked. */
    if (!label_logs_ok(l, &geo))
        return lay_bad(why, "logs");
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        geo.supers[i] = 0;
        if (!lay_range_ok(&geo, lay_get64(l->supers[i]), 1) || lay_get64(l->supers[i]) >= blocks)
            return lay_bad(why, "supers");
        geo.supers[i] = lay_get64(l->supers[i]);
    }
    return 0;
}

static int label_fields(const struct lay_label *l, const char **why)
{
    if (lay_get32(l->block_size) != LAY_BLOCK_SIZE)
        return lay_bad(why, "block_size");
    if (lay_get64(l->head.tid) != 0)
        return lay_bad(why, "tid");
    if (lay_get16(l->index) != 0 || lay_get16(l->reserved) != 0)
        return lay_bad(why, "index");
    if (lay_get32(l->flags) != 0)
        return lay_bad(why, "flags");
    if (!lay_incarnation_ok(&l->incarnation))
        return lay_bad(why, "incarnation");
    if (lay_get64(l->log_id) == 0)
        return lay_bad(why, "log_id");
    if (!lay_time_ok(l->created))
        return lay_bad(why, "created");
    if (!label_text_ok(l->label))
        return lay_bad(why, "label");
    int err = label_members(l, why);
    return err ? err : label_check_places(l, why);
}

bool lay_incarnation_ok(const struct lay_incarnation *incarnation)
{
    uint64_t counter = lay_get64(incarnation->counter);

    return counter != 0 && counter <= LAY_MAX_COUNTER && lay_get64(incarnation->id) != 0;
}

int lay_check_label(const struct lay_label *l, uint64_t *features, const char **why)
{
    uint64_t unknown = 0;

    if (features)
        *features = 0;
    if (lay_get32(l->head.magic) != LAY_MAGIC_LABEL) {
        lay_bad(why, "holds no gpunvmefs file system");
        return -EINVAL;
    }
    int err = lay_check_head(l, LAY_MAGIC_LABEL, l->head.uuid, LAY_ADDR_LABEL, 0, why);
    if (!err)
        err = label_version(l, &unknown, why);
    if (features)
        *features = unknown;
    if (!err)
        err = label_fields(l, why);
    if (err)
        return err;
    /* Features that this version may ignore can use bytes of the reserved area. */
    bool plain = !(lay_get64(l->compat) & ~LAY_FEATURE_COMPAT) &&
                 !(lay_get64(l->ro_compat) & ~LAY_FEATURE_RO_COMPAT);
    if (plain && (lay_get32(l->reserved2) != 0 || !lay_is_zero(l->reserved3, sizeof(l->reserved3))))
        return lay_bad(why, "reserved");
    return 0;
}

void lay_label_geometry(const struct lay_label *label, struct lay_geometry *geo)
{
    memset(geo, 0, sizeof(*geo));
    memcpy(geo->uuid, label->head.uuid, sizeof(geo->uuid));
    geo->log_id = lay_get64(label->log_id);
    geo->log_start = lay_get64(label->logs[0]);
    geo->log_copy = lay_get64(label->logs[1]) == LAY_NONE ? 0 : lay_get64(label->logs[1]);
    geo->log_blocks = lay_get64(label->log_blocks);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        geo->supers[i] = lay_get64(label->supers[i]);
    geo->compat = lay_get64(label->compat);
    geo->ro_compat = lay_get64(label->ro_compat);
    geo->incompat = lay_get64(label->incompat);
    geo->blocks = lay_get64(label->members[0].blocks);
}

void lay_label_set_geometry(struct lay_label *label, const struct lay_geometry *geo)
{
    label->members[0].blocks = lay_put64(geo->blocks);
    label->log_id = lay_put64(geo->log_id);
    label->log_blocks = lay_put64(geo->log_blocks);
    label->logs[0] = lay_put64(geo->log_start);
    label->logs[1] = lay_put64(geo->log_copy ? geo->log_copy : LAY_NONE);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        label->supers[i] = lay_put64(geo->supers[i]);
}

int lay_check_mmp(const struct lay_geometry *geo, const struct lay_mmp *mmp, const char **why)
{
    int err = lay_check_head(mmp, LAY_MAGIC_MMP, geo->uuid, LAY_ADDR_MMP, 0, why);
    uint32_t interval = lay_get32(mmp->interval);

    if (err)
        return err;
    if (lay_get64(mmp->head.tid) != 0)
        return lay_bad(why, "tid");
    if (interval < LAY_MMP_INTERVAL_MIN || interval > LAY_MMP_INTERVAL_MAX)
        return lay_bad(why, "interval");
    if (lay_get32(mmp->state) > LAY_MMP_CHECKED)
        return lay_bad(why, "state");
    if (!lay_time_ok(mmp->time))
        return lay_bad(why, "time");
    if (lay_get32(mmp->reserved) != 0 || !lay_is_zero(mmp->reserved2, sizeof(mmp->reserved2)))
        return lay_bad(why, "reserved");
    return 0;
}

static const uint64_t label_places[LAY_LABEL_COPIES] = {0, LAY_LABEL_SECOND};

static void label_check(struct lay_labels *labels, struct lay_label_copy *copy)
{
    uint64_t features;

    copy->error = lay_check_label(&copy->label, &features, &copy->why);
    labels->features |= copy->error == -ENOTSUP ? features : 0;
}

/* Corrects one flipped bit of a damaged copy if the corrected copy is sound. */
static void label_correct(struct lay_labels *labels, struct lay_label_copy *copy,
                          const uint8_t uuid[16])
{
    struct lay_label_copy fixed = *copy;

    if (!(copy->error == -EUCLEAN || copy->error == -EINVAL) || !lay_label_magic(&copy->label) ||
        lay_correct(uuid, LAY_ADDR_LABEL, &fixed.label) < 0)
        return;
    label_check(labels, &fixed);
    if (fixed.error == -EUCLEAN || fixed.error == -EINVAL)
        return;
    *copy = fixed;
    copy->corrected = true;
}

static int label_read(const struct lay_io *io, uint64_t device_blocks, struct lay_labels *labels,
                      unsigned i)
{
    struct lay_label_copy *copy = &labels->copies[i];

    *copy = (struct lay_label_copy){.error = -EIO, .why = "cannot be read"};
    if (label_places[i] >= device_blocks)
        return 0;
    int err = io->read(io->arg, label_places[i], &copy->label);
    if (err)
        return err == -EIO ? 0 : err;
    label_check(labels, copy);
    label_correct(labels, copy, copy->label.head.uuid);
    return 0;
}

static int label_refuse(struct lay_labels *labels, int err, const char *why)
{
    labels->why = why;
    return err;
}

/* Judges two sound copies. Prefers the copy without a flipped bit if both are equal. */
static int label_compare(struct lay_labels *labels)
{
    const struct lay_label *a = &labels->copies[0].label, *b = &labels->copies[1].label;
    uint64_t first = lay_get64(a->incarnation.counter), second = lay_get64(b->incarnation.counter);

    if (memcmp(a->head.uuid, b->head.uuid, sizeof(a->head.uuid)) != 0)
        return label_refuse(labels, -EUCLEAN, "its labels are of two file systems");
    if (first == second && memcmp(a, b, sizeof(*a)) != 0)
        return label_refuse(labels, -EUCLEAN, "its labels contradict each other");
    labels->newest = second > first || (second == first && labels->copies[0].corrected);
    return 0;
}

static int label_judge(struct lay_labels *labels, uint64_t device_blocks, bool reclaim)
{
    const struct lay_label_copy *c = labels->copies;
    bool magic = c[0].error == -EIO || lay_label_magic(&c[0].label);

    if (!magic && !reclaim)
        return label_refuse(labels, -EINVAL, "holds no gpunvmefs file system");
    for (unsigned i = 0; i < LAY_LABEL_COPIES; i++) {
        if (c[i].error == -ENOTSUP)
            return label_refuse(labels, -ENOTSUP, c[i].why);
    }
    if (c[0].error && c[1].error) {
        unsigned i = c[0].error == -EIO && c[1].error != -EINVAL;
        return label_refuse(labels, c[i].error, c[i].why);
    }
    labels->newest = c[0].error != 0;
    if (!c[0].error && !c[1].error) {
        int err = label_compare(labels);
        if (err)
            return err;
    }
    if (lay_get64(lay_labels_newest(labels)->members[0].blocks) > device_blocks)
        return label_refuse(labels, -ERANGE, "the device is smaller than the file system");
    return 0;
}

int lay_labels_read(const struct lay_io *io, uint64_t device_blocks, bool reclaim,
                    struct lay_labels *labels)
{
    int err = 0;

    labels->newest = 0;
    labels->features = 0;
    labels->why = NULL;
    for (unsigned i = 0; i < LAY_LABEL_COPIES && !err; i++)
        err = label_read(io, device_blocks, labels, i);
    if (err)
        return label_refuse(labels, err, "cannot be read");
    /* The UUID is the seed of the checksum and may have the flipped bit. */
    for (unsigned i = 0; i < LAY_LABEL_COPIES; i++) {
        const struct lay_label_copy *other = &labels->copies[1 - i];
        if (!other->error)
            label_correct(labels, &labels->copies[i], other->label.head.uuid);
    }
    return label_judge(labels, device_blocks, reclaim);
}

bool lay_labels_equal(const struct lay_labels *labels)
{
    const struct lay_label_copy *c = labels->copies;

    return !c[0].error && !c[1].error && !c[0].corrected && !c[1].corrected &&
           memcmp(&c[0].label, &c[1].label, sizeof(c[0].label)) == 0;
}

void lay_label_next(struct lay_label *label, uint64_t id)
{
    label->members[0].seen = label->incarnation;
    label->incarnation.counter = lay_put64(lay_get64(label->incarnation.counter) + 1);
    label->incarnation.id = lay_put64(id);
}

/* Writes one copy, reads it back and compares it. Tries again once after a failure. */
static int label_put(const struct lay_io *io, uint64_t block, const struct lay_label *label)
{
    struct lay_label back;
    int err = -EIO;

    for (unsigned tries = 0; tries < 2; tries++) {
        err = io->write(io->arg, block, label);
        if (!err)
            err = io->flush(io->arg);
        if (!err)
            err = io->read(io->arg, block, &back);
        if (!err && memcmp(&back, label, sizeof(back)) == 0)
            return 0;
        err = err ? err : -EIO;
    }
    return err;
}

int lay_labels_write(const struct lay_io *io, struct lay_labels *labels, struct lay_label *label)
{
    unsigned first = lay_labels_equal(labels) ? 0 : 1 - (unsigned)labels->newest;
    int err = 0;

    lay_seal(label, 0);
    if (lay_check_label(label, NULL, NULL) != 0)
        return -EINVAL;
    for (unsigned n = 0; n < LAY_LABEL_COPIES && !err; n++) {
        unsigned i = n == 0 ? first : 1 - first;
        struct lay_label_copy *copy = &labels->copies[i];
        *copy = (struct lay_label_copy){.error = -EUCLEAN, .why = "was not written"};
        err = label_put(io, label_places[i], label);
        if (err)
            break;
        *copy = (struct lay_label_copy){.label = *label};
        labels->newest = (int)i;
    }
    return err;
}

/* --- Superblocks ----------------------------------------------------------------------------- */

/* Corrects one flipped bit of a superblock if the corrected superblock is sound. */
static void super_correct(const struct lay_geometry *geo, struct lay_supers *supers, unsigned i)
{
    struct lay_super fixed = supers->copies[i];

    if (lay_correct(geo->uuid, LAY_ADDR_SUPER, &fixed) < 0 ||
        lay_check_super(&fixed, geo, NULL, NULL) != 0)
        return;
    supers->copies[i] = fixed;
    supers->errors[i] = 0;
    supers->corrected[i] = true;
}

int lay_supers_read(const struct lay_io *io, const struct lay_geometry *of_label,
                    struct lay_supers *supers)
{
    memset(supers, 0, sizeof(*supers));
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        int err = io->read(io->arg, of_label->supers[i], &supers->copies[i]);
        if (err && err != -EIO)
            return err;
        supers->errors[i] = err;
        supers->why[i] = err ? "cannot be read" : NULL;
        if (err)
            continue;
        supers->errors[i] = lay_check_super(&supers->copies[i], of_label, NULL, &supers->why[i]);
        if (supers->errors[i])
            super_correct(of_label, supers, i);
    }
    return 0;
}

const struct lay_super *lay_supers_newest(const struct lay_supers *supers)
{
    const struct lay_super *newest = NULL;

    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        const struct lay_super *sb = &supers->copies[i];
        if (!supers->errors[i] &&
            (!newest || lay_get64(sb->head.tid) > lay_get64(newest->head.tid)))
            newest = sb;
    }
    return newest;
}

const struct lay_super *lay_supers_of_age(const struct lay_supers *supers, uint32_t age)
{
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        if (!supers->errors[i] && lay_age(&supers->copies[i]) == age)
            return &supers->copies[i];
    }
    return NULL;
}
