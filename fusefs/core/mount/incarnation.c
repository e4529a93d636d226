/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Labels (FORMAT.md 4). Each change of them makes a new incarnation, and the
 * first write after them is a commit of that incarnation (R2).
 */
#include <errno.h>
#include <string.h>

#include "fusefs/core/state.h"

int ffs_read_label(struct bd_dev *dev, struct lay_label *out)
{
    const struct lay_io io = ffs_io(dev);
    struct lay_labels labels;
    int err = lay_labels_read(&io, dev->info.bytes >> LAY_BLOCK_SHIFT, false, &labels);

    if (err && err != -ERANGE)
        return err;
    *out = *lay_labels_newest(&labels);
    return 0;
}

int ffs_label_write(struct ffs *fs, struct lay_label *label)
{
    const struct lay_io io = ffs_io(fs->dev);

    lay_label_next(label, ffs_random());
    return lay_labels_write(&io, &fs->labels, label);
}

/* Changes bytes of the label and writes it, durably. The caller holds commit_lock. */
static int incarnation_change(struct ffs *fs, size_t at, const void *bytes, size_t len)
{
    struct lay_label label;

    /* The commit after the labels must not have to wait for space. */
    int err = ffs_log_room(fs) > 0 ? 0 : ffs_checkpoint(fs);
    if (err)
        return err;
    label = fs->label;
    memcpy((uint8_t *)&label + at, bytes, len);
    err = ffs_label_write(fs, &label);
    if (err)
        return ffs_fail(fs, "label", err);
    pthread_rwlock_wrlock(&fs->meta);
    fs->label = label;
    pthread_rwlock_unlock(&fs->meta);
    return ffs_commit_empty(fs);
}

static int incarnation_set(struct ffs *fs, size_t at, const void *bytes, size_t len)
{
    pthread_mutex_lock(&fs->journal.commit_lock);
    int err = ffs_writable(fs);
    if (!err)
        err = incarnation_change(fs, at, bytes, len);
    pthread_mutex_unlock(&fs->journal.commit_lock);
    return err;
}

int ffs_set_label(struct ffs *fs, const char *label)
{
    char text[sizeof(fs->label.label)] = "";

    if (!lay_label_ok(label, strlen(label)))
        return -EINVAL;
    memcpy(text, label, strlen(label));
    return incarnation_set(fs, offsetof(struct lay_label, label), text, sizeof(text));
}

int ffs_set_uuid(struct ffs *fs, const uint8_t uuid[16])
{
    return incarnation_set(fs, offsetof(struct lay_label, uuid), uuid, sizeof(fs->label.uuid));
}
