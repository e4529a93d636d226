/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads, judges and writes labels and superblocks (FORMAT.md 4). */
#include <errno.h>
#include <string.h>

#include "layout/correct.h"
#include "layout/label.h"

static const uint64_t label_places[LAY_LABEL_COPIES] = {0, LAY_LABEL_SECOND};

static void label_check(struct lay_labels *labels, struct lay_label_copy *copy)
{
    uint64_t features;

    copy->error = lay_check_label(&copy->label, &features, &copy->why);
    labels->features |= copy->error == -ENOTSUP ? features : 0;
}

/* Corrects one flipped bit of a copy that is damaged if it is then sound. */
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

/* Judges two sound copies. Of two equal ones, one with a flipped bit on the device is the worse. */
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
    /* A flipped bit in the UUID changes the seed of the checksum, too. */
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

/* Writes one copy and compares it, twice if necessary. */
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

/* Corrects one flipped bit of a superblock if it is then sound. */
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
